"""Fixtures of the federation tests: a nursery that starts processes quickly; and of the browser tests: a Chromium, a studio
with a few things in its folder, one with nothing in it.

They end with each file of tests: Playwright's event loop keeps other tests from running one, and an idle studio costs.

Chromium is the system's (`make browser` installs it). NBAFL_THROTTLE=6 makes the pages' scripts six times slower, to
flush out races.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from federation_processes import Nursery
from studio_browser import CHROMIUM, PATIENCE, WIDE, Server, Watch, end, serve
from tests.paper_setting import OPTIONS

from nbafl.cli import run_command

SMALL_RUN = "--clients 4 --samples 25 --rounds 12 --model softmax --seed 3"


@pytest.fixture(scope="session")
def mother(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """The process that has imported everything; all federation tests fork theirs from it."""
    made = Nursery(tmp_path_factory.mktemp("processes"))
    yield made
    made.close()


@pytest.fixture
def nursery(mother: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nursery]:
    """Processes of one test, ended with it."""
    monkeypatch.setenv("NBAFL_ANCHORS", str(tmp_path / "anchors"))
    mother.folder = tmp_path
    yield mother
    mother.end_all()


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.fail("these tests need chromium: run `make browser`")
    with playwright.sync_playwright() as driver:
        # Containers often have a tiny /dev/shm, in which a large page makes the browser crash.
        options = ["--no-sandbox", "--disable-dev-shm-usage"]
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=options)
        yield opened
        opened.close()


@pytest.fixture
def context(browser):
    opened = browser.new_context(viewport=WIDE)
    opened.set_default_timeout(PATIENCE)
    watch = Watch()
    watch.over(opened)
    yield opened
    complaints, foreign = list(watch.complaints), list(watch.foreign)
    opened.close()
    assert complaints == []
    assert foreign == []


@pytest.fixture
def page(context):
    opened = context.new_page()
    if "NBAFL_THROTTLE" in os.environ:
        rate = float(os.environ["NBAFL_THROTTLE"])
        context.new_cdp_session(opened).send("Emulation.setCPUThrottlingRate", {"rate": rate})
    return opened


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The studio most tests of a file visit; each leaves alone what it did not bring."""
    started = serve(tmp_path_factory.mktemp("studio"))
    yield started
    end(started)


@pytest.fixture(scope="module")
def bare_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A studio that has nothing to show."""
    started = serve(tmp_path_factory.mktemp("bare"))
    yield started
    end(started)


@pytest.fixture(scope="module")
def finished(server: Server) -> Path:
    """A finished run of 12 rounds in the studio's folder, made by the real thing."""
    folder = server.runs / "finished-before"
    assert run_command(["run", *OPTIONS, *SMALL_RUN.split(), "--epsilon", "100", "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def other_finished(server: Server) -> Path:
    """A second one, with another promise."""
    folder = server.runs / "finished-later"
    assert run_command(["run", *OPTIONS, *SMALL_RUN.split(), "--epsilon", "300", "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def figures(server: Server) -> Path:
    """Two small figures by the code that makes the real ones, and verdicts in the form `reproduce` writes."""
    from nbafl.paper.pictures import Panel, Picture, Series, write

    folder = server.runs / "reproduce"
    folder.mkdir()
    x = tuple(range(1, 26))
    for number in (4, 6):
        for calibration, slope in (("paper", 0.5), ("exact", 0.7)):
            spread = np.random.default_rng(number).normal(0, 0.01, (3, 25))
            values = np.exp(-slope * np.arange(25) / 5)[None] + spread
            lines = tuple(
                Series(f"N = {50 + 10 * rank}", x, values / (1 + rank / 4), rank) for rank in range(3)
            )
            panels = (Panel(lines, "round", "training loss"),)
            write(Picture(number, calibration, "a picture", panels), folder)
    claims = ((4, "more clients, less loss", "paper", "holds"), (6, "there is a best T", "exact", "artefact"))
    keys = ("figure", "claim", "calibration", "verdict")
    privacy = {"claimed_epsilon": 50, "real_epsilon": 171.644, "delta": 0.01, "adversary": "eavesdropper"}
    privacy |= {"assumption": "2C/m granted"}
    verdicts = [{**dict(zip(keys, claim, strict=True)), "evidence": {"privacy": privacy}} for claim in claims]
    (folder / "verdicts.json").write_text(json.dumps(verdicts))
    return folder
