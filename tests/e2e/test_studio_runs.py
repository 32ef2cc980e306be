"""The Runs page in a real browser: started, watched, compared, stopped and resumed, damaged, audited, many."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from studio_browser import PAPER, Server, end, nbafl, open_page, plan_page, serve, type_text
from tests.paper_setting import OPTIONS

from nbafl.cli import run_command

pytestmark = pytest.mark.e2e

SMALL = f"{PAPER}&clients=4&samples=25&rounds=12&model=softmax&epsilon=300"
POINTS = "(document.querySelector('[data-chart=\"0\"]')?.data ?? []).map(t => t.x.length)"


def _wait_for_points(page, condition: str) -> int:
    """Wait until the points `n` of the lines in the first chart are so; returns how many the first line has."""
    found = page.wait_for_function(f"() => {{ const n = {POINTS}; return {condition} ? n[0] : null; }}")
    return found.json_value()


def _start(page, server: Server, query: str, name: str) -> None:
    plan_page(page, server, query)
    page.locator("[data-action=start]").click()
    type_text(page, "run-name", name)
    page.locator("[data-action=confirm-start]").click()
    page.wait_for_url("**/runs?run=*")


def test_before_any_run_the_page_says_what_to_do(page, bare_server: Server) -> None:
    open_page(page, bare_server, "/runs")
    page.get_by_text("No runs yet").wait_for()
    assert "nbafl run" in page.locator("body").inner_text()


def test_a_run_started_from_the_page_grows_and_finishes(
    page, context, server: Server, tmp_path: Path
) -> None:
    _start(page, server, f"{SMALL}&rounds=800", "from-the-page")
    time_left = "[...document.querySelectorAll('.fact')].some(fact => fact.innerText.includes('left'))"
    first = _wait_for_points(page, f"n.length === 1 && n[0] >= 1 && n[0] < 800 && {time_left}")
    _wait_for_points(page, f"n[0] > {first}")
    page.reload()
    _wait_for_points(page, f"n[0] > {first}")
    page.locator(".run-head .badge", has_text="finished").wait_for()
    _wait_for_points(page, "n[0] === 800")
    assert "epsilon = 300 at delta = 0.01 against eavesdropper" in page.locator(".statement").inner_text()
    with page.expect_download() as download:
        page.locator("[data-action=download-report]").click()
    download.value.save_as(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_bytes() == (
        server.runs / "from-the-page" / "report.html"
    ).read_bytes()
    with context.expect_page() as opened:
        page.locator("[data-action=report]").click()
    opened.value.get_by_text("Run from-the-page").first.wait_for()
    page.locator("[data-action=use-plan]").click()
    page.locator('[data-epsilon="plan:eavesdropper"]').wait_for()
    assert "--epsilon 300" in page.locator("[data-command]").inner_text()


def test_a_name_that_cannot_be_gets_a_sentence(page, server: Server, finished: Path) -> None:
    plan_page(page, server, SMALL)
    page.locator("[data-action=start]").click()
    for name in ("../escape", finished.name):
        type_text(page, "run-name", name)
        page.locator("[data-action=confirm-start]").click()
        page.locator("[data-error=run-name]", has_text=f"got '{name}'.").wait_for()
    assert not (server.root / "escape").exists()


def test_a_run_that_cannot_start_says_why(page, server: Server) -> None:
    _start(page, server, "dataset=/no/such/folder&target=y", "no-data")
    page.locator(".run-sub", has_text="/no/such/folder").first.wait_for()
    page.locator(".badge", has_text="failed").first.wait_for()


def test_a_run_in_a_terminal_shows_up_and_can_be_compared(page, server: Server, other_finished: Path) -> None:
    open_page(page, server, f"/runs?run={other_finished.name}")
    _wait_for_points(page, "n.length === 1 && n[0] === 12")
    words = nbafl(
        "run",
        *OPTIONS,
        "--clients",
        4,
        "--samples",
        25,
        "--rounds",
        9,
        "--model",
        "softmax",
        "--epsilon",
        100,
    )
    subprocess.run([*words, "--out", server.runs / "in-a-terminal"], capture_output=True, check=True)
    row = page.locator("tr", has_text="in-a-terminal")
    row.wait_for()
    row.get_by_role("checkbox").click()
    _wait_for_points(page, "n.length === 2 && n[1] === 9")
    table = page.locator("table.compare").inner_text()
    assert other_finished.name in table
    assert "in-a-terminal" in table
    assert "ε 100 at δ 0.01, eavesdropper, per record (replace), exact, if 2C/m holds" in table
    assert re.search(r"seed\s+3\s+0", table)
    page.wait_for_url(f"**/runs?run={other_finished.name}&run=in-a-terminal")


def test_a_run_can_be_stopped_and_resumed(page, server: Server) -> None:
    _start(page, server, f"{SMALL}&rounds=20000", "to-and-fro")
    _wait_for_points(page, "n.length === 1 && n[0] >= 2")
    page.locator("[data-action=stop]").click()
    page.locator(".run-head .badge", has_text="stopped").wait_for()
    before = len((server.runs / "to-and-fro" / "metrics.jsonl").read_text().splitlines())
    page.locator("[data-action=resume]").click()
    page.locator(".run-head .badge", has_text="running").wait_for()
    _wait_for_points(page, f"n[0] > {before}")
    page.locator("[data-action=stop]").click()
    page.locator(".run-head .badge", has_text="stopped").wait_for()


def test_damaged_folders_are_shown_as_such(page, server: Server, finished: Path) -> None:
    broken = Path(shutil.copytree(finished, server.runs / "broken"))
    (broken / "plan.toml").write_text("epsilon = = 1")
    (server.runs / "half-made" / "checkpoint").mkdir(parents=True)
    mistold = Path(shutil.copytree(finished, server.runs / "mistold"))
    (mistold / "audit.json").write_text("not json")
    open_page(page, server, "/runs?run=broken")
    page.locator(".run-head .badge", has_text="damaged").wait_for()
    page.get_by_text("not valid TOML").first.wait_for()
    page.locator("tr", has_text="half-made").get_by_text("damaged").wait_for()
    page.locator("tr", has_text="mistold").click()
    page.get_by_text("audit.json of 'mistold' is damaged").wait_for()
    for name in ("broken", "half-made", "mistold"):
        shutil.rmtree(server.runs / name)
    page.locator("tr", has_text="mistold").wait_for(state="detached")


@pytest.fixture(scope="module")
def audited(server: Server, finished: Path) -> Path:
    """The folder of an audit of the finished run's plan."""
    folder = server.runs / "audit-of-it"
    words = ["audit", "--config", str(finished / "plan.toml"), "--trials", "2000", "--no-pictures", "--json"]
    assert run_command([*words, "--out", str(folder)]) == 0
    return folder


def test_an_audit_is_shown_beside_the_claim(page, server: Server, finished: Path, audited: Path) -> None:
    found = json.loads((audited / "audit.json").read_text())
    open_page(page, server, f"/runs?run={finished.name}")
    page.locator(".badge", has_text="consistent").wait_for()
    text = page.locator("body").inner_text()
    assert f"{found['attacks']['eavesdropper']['accounted_epsilon']:.4g}" in text
    assert "100 at δ = 0.01 against eavesdropper is not contradicted" in text
    page.locator("tr", has_text=audited.name).click()
    page.locator(".run-head .badge", has_text="audit").wait_for()


def test_turning_away_before_the_charts_are_loaded_is_no_error(
    page, server: Server, finished: Path, audited: Path
) -> None:
    held, holding = [], True
    page.route("**/esm/*/index.js", lambda route: held.append(route) if holding else route.continue_())
    open_page(page, server, f"/runs?run={finished.name}")
    page.locator(".badge", has_text="consistent").wait_for()
    page.locator("tr", has_text=audited.name).click()
    page.locator(".run-head .badge", has_text="audit").wait_for()
    assert held, "the charts' script was not asked for"
    holding = False
    for route in held:
        route.continue_()
    # The chart nobody looks at any more is drawn, in its hidden place, when plotly has come.
    page.wait_for_function("() => document.querySelector('[data-chart=\"0\"]').data?.length === 1")
    page.locator("tr", has_text=finished.name).click()
    page.locator("[data-chart='0'] .scatterlayer path").first.wait_for()


def test_two_hundred_runs_are_listed(page, tmp_path: Path, finished: Path, record_property) -> None:
    many = serve(tmp_path)
    try:
        for number in range(200):
            shutil.copytree(finished, many.runs / f"run-{number:03}")
        started = time.perf_counter()
        page.goto(many.url + "/runs")
        page.get_by_text("1-12 of 200").wait_for()
        seconds = time.perf_counter() - started
        record_property("seconds_to_list_200_runs", seconds)
        print(f"200 run folders: on the page after {seconds:.2f} s")
        page.get_by_placeholder("Find a run").fill("run-117")
        page.get_by_text("1-1 of 1").wait_for()
        page.close()
    finally:
        end(many)
