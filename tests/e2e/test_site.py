"""The site as a reader has it: built strictly, no dead link, no orphan, nothing from a network, search from disk."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from studio_browser import NARROW, PATIENCE, WIDE
from test_studio_accessible import serious

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parent.parent.parent


class Page(HTMLParser):
    """What a page points at: links for readers, resources for the browser; and its own anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.resources: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors.add(given.get("id") or given.get("name") or "")
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        elif tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.resources.append(given.get("href") or "")
        elif tag in ("script", "img", "iframe", "source", "video") and given.get("src"):
            self.resources.append(str(given["src"]))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make docs` does; a warning of mkdocs is an error there."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


def target(page: Path, link: str) -> tuple[Path, str]:
    parts = urlsplit(link)
    place = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    return place, unquote(parts.fragment)


def test_no_link_is_dead(site: Path, pages: dict[Path, Page]) -> None:
    dead = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links start at the server's root
            continue
        for link in (*page.links, *page.resources):
            if urlsplit(link).scheme:
                continue
            place, anchor = target(path, link)
            known = pages.get(place)
            if not place.exists() or (anchor and known is not None and anchor not in known.anchors):
                dead.append(f"{path.relative_to(site)}: {link}")
    assert dead == []
    assert len(pages) > 35


def test_no_page_is_an_orphan(site: Path, pages: dict[Path, Page]) -> None:
    met, waiting = set(), [site / "index.html"]
    while waiting:
        path = waiting.pop()
        if path in met or path not in pages:
            continue
        met.add(path)
        waiting += [target(path, link)[0] for link in pages[path].links if not urlsplit(link).scheme]
    assert {path.name for path in pages.keys() - met} <= {"404.html"}


def test_nothing_comes_from_a_network(site: Path, pages: dict[Path, Page]) -> None:
    foreign = [
        f"{path.name}: {link}"
        for path, page in pages.items()
        for link in page.resources
        if urlsplit(link).netloc
    ]
    assert foreign == []
    for style in site.rglob("*.css"):
        assert "url(http" not in style.read_text(encoding="utf-8"), style


def test_every_document_is_on_the_site(site: Path, pages: dict[Path, Page]) -> None:
    for document in (ROOT / "docs").rglob("*.md"):
        assert site / document.relative_to(ROOT / "docs").with_suffix(".html") in pages, document
    for notebook in (ROOT / "docs" / "notebooks").glob("*.ipynb"):
        shown = pages[site / "notebooks" / f"{notebook.stem}.html"]
        assert f"{notebook.stem}-1.png" in shown.resources, notebook


@pytest.mark.parametrize("screen", [WIDE, NARROW], ids=["wide", "narrow"])
def test_search_answers_without_a_server(site: Path, browser, screen: dict[str, int]) -> None:
    context = browser.new_context(viewport=screen)
    try:
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "index.html").as_uri())
        if screen is NARROW:
            page.locator("label.md-header__button[for=__search]").click()
        asking = page.locator("[data-md-component=search-query]")
        asking.click()
        asking.press_sequentially("sensitivity")
        found = page.locator(".md-search-result__link")
        found.first.wait_for()
        assert found.count() > 3
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert [url for url in asked if urlsplit(url).scheme not in ("file", "data", "blob")] == []
    finally:
        context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("screen", [WIDE, NARROW], ids=["wide", "narrow"])
def test_axe_finds_nothing_serious(site: Path, browser, screen: dict[str, int], theme: str) -> None:
    """One page of every make: prose and code, wide tables, made from the code, formulas, a notebook."""
    page, found = browser.new_page(viewport=screen, color_scheme=theme), []
    for name in (
        "index",
        "howto-federation",
        "reference",
        "verbs",
        "math",
        "glossary",
        "notebooks/ten-lines",
    ):
        page.goto((site / f"{name}.html").as_uri())
        found += [f"{name}: {each}" for each in serious(page)]
    page.close()
    assert found == []
