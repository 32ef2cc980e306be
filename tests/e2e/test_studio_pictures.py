"""Every page of the studio as a picture: wide and narrow; with NBAFL_SCREENSHOTS also in between, and all of them dark.

With NBAFL_SCREENSHOTS=DIR the pictures are written there; docs/images is made that way, with NBAFL_SHOWCASE naming a
folder (holding runs/) that is worth looking at.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from studio_browser import NARROW, WIDE, Server, end, open_page, plan_page, serve

pytestmark = pytest.mark.e2e

PAINTED = """() => [...document.querySelectorAll('[data-chart], [data-curve]')].filter(e => e.offsetParent).every(
  e => e.querySelector('.scatterlayer path'))"""


@pytest.fixture(scope="module")
def showcase(request: pytest.FixtureRequest) -> Iterator[Server]:
    """What the pictures show: the folder NBAFL_SHOWCASE, or what other tests visit too."""
    folder = os.environ.get("NBAFL_SHOWCASE")
    if folder is None:
        for name in ("finished", "other_finished", "figures"):
            request.getfixturevalue(name)
        yield request.getfixturevalue("server")
        return
    started = serve(Path(folder).resolve())
    yield started
    end(started)


SIZES = {"wide": WIDE, "narrow": NARROW}
THEMES = ["light"]
if "NBAFL_SCREENSHOTS" in os.environ:
    SIZES, THEMES = {**SIZES, "middle": {"width": 900, "height": 1000}}, ["light", "dark"]


@pytest.mark.parametrize("name", ["plan", "runs", "run", "figures"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("theme", THEMES)
def test_every_page_is_pictured_and_fits_its_screen(
    page, showcase: Server, tmp_path: Path, name: str, size: str, theme: str
) -> None:
    page.emulate_media(color_scheme=theme)
    page.set_viewport_size(SIZES[size])
    if name == "plan":
        plan_page(page, showcase)
        page.locator("[data-outlook-summary]", has_text="best T").wait_for()
    else:
        open_page(page, showcase, "/figures" if name == "figures" else "/runs")
        page.locator(".card:visible, .runs").first.wait_for()
    if name == "runs":
        for row in page.locator("tbody tr", has_text="finished").all()[:3]:
            row.get_by_role("checkbox").click()
        page.locator("[data-chart]").first.wait_for()
        page.evaluate("() => { document.activeElement.blur(); scrollTo(0, 0); }")
        page.mouse.move(0, 0)
    if name == "run":
        page.locator("tbody tr", has_text="finished").first.click()
        page.locator("[data-chart]").first.wait_for()
    page.wait_for_function(PAINTED)
    if "NBAFL_SCREENSHOTS" in os.environ:
        page.wait_for_timeout(500)  # the last ripple fades; only the picture's looks depend on it
    folder = Path(os.environ.get("NBAFL_SCREENSHOTS", tmp_path))
    page.screenshot(path=folder / f"studio-{name}-{size}{'-dark' if theme == 'dark' else ''}.png")
    assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
