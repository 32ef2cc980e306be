"""The pages that runs, audits, sweeps and evidence leave behind, under axe-core and on a phone."""

from __future__ import annotations

from pathlib import Path

import pytest
from studio_browser import NARROW, WIDE
from test_studio_accessible import serious

import nbafl
from nbafl.cli import run_command

pytestmark = pytest.mark.e2e

PLAN = ("--clients", "3", "--samples", "20", "--rounds", "2", "--features", "raw", "--eval-every", "1")
CUT = """() => [...document.querySelectorAll('th, td')].filter(e => e.offsetParent && !e.querySelector('code'))
  .filter(e => { const range = document.createRange(); range.selectNodeContents(e);
    const words = e.innerText.trim().split(/[\\s_.:/-]+/); const lines = range.getClientRects().length;
    return words.length === 1 && words[0] && lines > 1; }).map(e => e.innerText)"""
"""Cells of one word that stand on two lines."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("saved")
    assert run_command(["run", *PLAN, "--out", str(folder / "run")]) == 0
    audit = [
        "audit",
        "--config",
        str(folder / "run" / "plan.toml"),
        "--trials",
        "2000",
        "--out",
        str(folder / "run"),
    ]
    assert run_command(audit) in (0, 1)
    nbafl.Run.load(folder / "run").report()
    assert run_command(["keys", "make", "operator", "--out", str(folder)]) == 0
    assert run_command(["evidence", str(folder / "run"), "--key", str(folder / "operator")]) == 0
    assert (
        run_command(["sweep", *PLAN, "--epsilon", "1,8", "--workers", "1", "--out", str(folder / "sweep")])
        == 0
    )
    pages = ("run/report.html", "run/audit.html", "run/evidence.html", "sweep/index.html")
    return [folder / page for page in pages]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
def test_axe_finds_nothing_serious(browser, saved: list[Path], viewport: dict, theme: str) -> None:
    page = browser.new_page(viewport=viewport, color_scheme=theme)
    found = []
    for file in saved:
        page.goto(file.as_uri())
        page.evaluate("() => document.querySelectorAll('details').forEach(each => each.open = true)")
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), file.name
        assert page.evaluate(CUT) == [], file.name
        ink = page.evaluate("() => getComputedStyle(document.body).color.match(/\\d+/g).map(Number)")
        assert (min(ink) > 128) == (theme == "dark"), file.name
        found += [f"{file.name}: {each}" for each in serious(page)]
    page.close()
    assert found == []
