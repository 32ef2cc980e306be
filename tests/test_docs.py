"""The documentation is held to what the code does."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import nbafl
from nbafl.plan import Plan

ROOT = Path(__file__).parent.parent


def test_the_reference_names_every_field_of_a_plan():
    text = (ROOT / "docs" / "reference.md").read_text()
    for name in Plan.model_fields:
        assert re.search(rf"\b{name}\b", text), name


def test_the_tables_of_the_reference_are_those_of_the_code():
    spec = importlib.util.spec_from_file_location("make_tables", ROOT / "docs" / "make_tables.py")
    make_tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_tables)
    text = make_tables.PAGE.read_text(encoding="utf-8")
    assert make_tables.renewed(text) == text, "run: python docs/make_tables.py"


GENERATED = {ROOT / "docs" / f"{name}.md" for name in ("verbs", "messages", "files", "changelog")}
"""Pages that the site makes from the code (docs/site_pages.py)."""


def test_links_between_documents_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            place = page.parent / target
            assert place.exists() or place in GENERATED, f"{page.name}: {target}"


def test_one_version_everywhere():
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1]
    assert told == nbafl.__version__ == cited


def test_every_test_that_the_errata_name_is_there():
    text = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("errata*.md"))
    named = re.findall(r"(test_\w+\.py)::(test_\w+)", text)
    assert named
    for file, test in named:
        (path,) = (ROOT / "tests").rglob(file)
        assert f"def {test}(" in path.read_text(encoding="utf-8"), f"{file}::{test}"


def test_folders_are_drawn_as_blocks_on_the_page_of_files():
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "docs" / "site_pages.py")
    site_pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(site_pages)
    text = site_pages.folders()
    assert "```text\nHOME/plan.toml" in text
    prose = re.sub(r"```text.*?```", "", text, flags=re.DOTALL)
    assert re.findall(r"^\S+ {3,}\S.*", prose, re.MULTILINE) == []
