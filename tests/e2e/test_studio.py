"""The studio in a real browser: sliders, nonsense, live runs, comparison, figures, token; and nothing leaves the machine.

Chromium is the system's (`make browser` installs it). With NBAFL_SCREENSHOTS=DIR the pictures of each page, wide and
narrow, are written there; docs/images is made that way.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import nbafl
from nbafl.cli import run_command
from nbafl.studio.outlook import default_source
from nbafl.theory.planning import plan_bounds

playwright = pytest.importorskip("playwright.sync_api")

pytestmark = pytest.mark.e2e

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TOKEN = "end-to-end-secret"
WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
SMALL = "clients=4&samples=25&rounds=12&model=softmax&epsilon=300"
PATIENCE = 120_000


@dataclass
class Server:
    """A studio of its own: a real process over its own folders."""

    url: str
    root: Path
    process: subprocess.Popen
    log: Path

    @property
    def runs(self) -> Path:
        return self.root / "runs"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _nbafl(*words: object) -> list[str]:
    return [sys.executable, "-m", "nbafl.cli", *map(str, words)]


def _serve(root: Path, *options: str) -> Server:
    port, log = _free_port(), root / "studio.log"
    (root / "runs").mkdir(parents=True, exist_ok=True)
    words = _nbafl("studio", "--port", port, "--runs", "runs", *options)
    with open(log, "wb") as output:
        # The web framework behaves differently when it thinks it is under test; a user's studio is not.
        plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        process = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT, cwd=root, env=plain)
    server = Server(f"http://127.0.0.1:{port}", root, process, log)
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(server.url, timeout=5).close()
            return server
        except urllib.error.HTTPError:
            return server
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"the studio did not come up: {log.read_text()}")


def _end(server: Server) -> None:
    server.process.send_signal(signal.SIGINT)
    try:
        server.process.wait(20)
    finally:
        server.process.kill()
    assert "Traceback" not in server.log.read_text()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = _serve(tmp_path_factory.mktemp("studio"))
    yield started
    _end(started)


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.fail("these tests need chromium: run `make browser`")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@dataclass
class Watch:
    """What a page did that it should not have done."""

    complaints: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def over(self, context) -> None:
        context.on("console", lambda m: self.complaints.append(m.text) if m.type == "error" else None)
        context.on("weberror", lambda e: self.complaints.append(str(e.error)))
        context.on("request", self._seen)
        context.on(
            "response", lambda r: self.complaints.append(f"{r.status} {r.url}") if r.status >= 400 else None
        )

    def _seen(self, request) -> None:
        address = urlsplit(request.url)
        if address.scheme not in ("data", "blob") and address.hostname != "127.0.0.1":
            self.foreign.append(request.url)


@pytest.fixture
def context(browser):
    opened = browser.new_context(viewport=WIDE)
    opened.set_default_timeout(PATIENCE)
    watch = Watch()
    watch.over(opened)
    yield opened
    opened.close()
    assert watch.complaints == []
    assert watch.foreign == []


@pytest.fixture
def page(context):
    return context.new_page()


def _open(page, server: Server, address: str = "/") -> None:
    page.goto(server.url + address)
    page.wait_for_function("() => window.socket === undefined || window.socket.connected")


def _plan_page(page, server: Server, query: str = "") -> None:
    _open(page, server, f"/?{query}")
    page.locator('[data-epsilon="plan:eavesdropper"]').wait_for()


def _epsilons(page) -> dict[str, float | None]:
    shown = page.eval_on_selector_all(
        "[data-epsilon]", "all => all.map(e => [e.dataset.epsilon, e.dataset.value])"
    )
    return {name: None if value == "none" else float(value) for name, value in shown}


def _numbers(page) -> dict[str, float]:
    shown = page.eval_on_selector_all(
        "[data-number]", "all => all.map(e => [e.dataset.number, e.dataset.value])"
    )
    return {name: float(value) for name, value in shown}


def _command(page) -> list[str]:
    return shlex.split(page.locator("[data-command]").inner_text())


def _plan_json(words: list[str]) -> dict:
    assert words[:2] == ["nbafl", "run"]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert run_command(["plan", *words[2:], "--json"]) == 0
    return json.loads(printed.getvalue())


def _check_against_command_line(page) -> dict:
    """Every number on the page is the one `nbafl plan --json` prints for the command the page shows."""
    told, epsilons, numbers = _plan_json(_command(page)), _epsilons(page), _numbers(page)
    for name, entry in told["guarantee"].items():
        assert epsilons[f"plan:{name}"] == entry["epsilon"]
        if told["conditional"]:
            assert epsilons[f"clip:{name}"] == told["unconditional"][name]["epsilon"]
    for name in ("sigma_uplink", "sigma_downlink", "sigma_aggregate"):
        assert numbers[name] == told["noise"][name]
    assert numbers["uplink_sensitivity"] == told["sensitivity"]["uplink"]
    assert numbers["downlink_sensitivity"] == told["sensitivity"]["downlink"]
    text = page.locator("body").inner_text()
    for sentence in told["warnings"] + told["assumptions"]:
        assert sentence in text
    return told


def _slide(page, name: str, key: str, times: int = 1) -> None:
    """Move a slider with the keyboard and wait until the page has answered."""
    before = page.locator("[data-command]").inner_text()
    page.locator(f"[data-slider={name}] .q-slider__track-container").focus()
    for _ in range(times):
        page.keyboard.press(key)
    page.wait_for_function(
        "before => document.querySelector('[data-command]').innerText !== before", arg=before
    )
    _settled(page)


def _settled(page) -> None:
    """Wait until the command on the page has stopped changing."""
    last, now = None, page.locator("[data-command]").inner_text()
    while last != now:
        page.wait_for_timeout(250)
        last, now = now, page.locator("[data-command]").inner_text()


def _type(page, name: str, text: str) -> None:
    page.locator(f"[data-field={name}]").fill(text)


def _choose(page, name: str, option: str) -> None:
    page.locator(f"[data-choice={name}]").click()
    page.locator(".q-menu .q-item", has_text=option).first.click()


# --- plan page ------------------------------------------------------------------------------------------------


def test_moving_sliders_gives_the_numbers_of_the_command_line(page, server: Server) -> None:
    _plan_page(page, server)
    first = _check_against_command_line(page)
    _slide(page, "epsilon", "ArrowLeft", 12)
    _slide(page, "rounds", "ArrowRight", 3)
    _slide(page, "per_round", "ArrowLeft", 20)
    moved = _check_against_command_line(page)
    assert moved["claimed"]["epsilon"] < first["claimed"]["epsilon"]
    assert "--per-round 30" in " ".join(_command(page))


def test_choosing_another_model_brings_what_it_needs(page, server: Server) -> None:
    _plan_page(page, server)
    _choose(page, "sensitivity", "Proximal")
    page.get_by_text("model to softmax").wait_for()
    _settled(page)
    assert _check_against_command_line(page)["conditional"] is False
    assert page.locator("[data-slider=clip]").is_visible()
    _choose(page, "sensitivity", "Gradient")
    page.locator("[data-slider=record_clip]").wait_for()
    _choose(page, "adversary", "Colluders")
    _type(page, "colluders", "3")
    page.locator('[data-epsilon="plan:colluders:3"]').wait_for()
    _settled(page)
    assert _check_against_command_line(page)["claimed"]["adversary"] == "colluders:3"


def test_the_papers_rule_does_not_keep_its_claim(page, server: Server) -> None:
    _plan_page(page, server)
    page.get_by_role("button", name="The paper’s setting").click()
    page.locator(".head .badge", has_text="not kept").wait_for()
    assert _epsilons(page)["plan:eavesdropper"] == pytest.approx(171.644, abs=1e-3)


NONSENSE = (
    ("epsilon", "lots", "epsilon must be a number, got 'lots'."),
    ("epsilon", "-3", "epsilon must be greater than 0, got -3.0."),
    ("delta", "2", "delta must be less than 1, got 2.0."),
    ("clients", "3.5", "clients must be a whole number, got '3.5'."),
    ("per_round", "60", "per_round must be at most clients (50), got 60."),
    ("exposures", "1e9", "exposures must be at most rounds (25), got 1000000000."),
    ("clip", "<script>", "clip must be a number, got '<script>'."),
)


def test_nonsense_is_answered_with_a_sentence(page, server: Server) -> None:
    _plan_page(page, server)
    before = _epsilons(page)
    for name, text, sentence in NONSENSE:
        kept = page.locator(f"[data-field={name}]").input_value()
        _type(page, name, text)
        page.locator("[data-error=plan]", has_text=sentence).wait_for()
        assert page.locator(f"[data-error={name}]").inner_text() == sentence
        assert _epsilons(page) == before
        assert page.locator("[data-action=start]").is_disabled()
        _type(page, name, kept)
        page.locator("[data-error=plan]").wait_for(state="hidden")
        assert page.locator(f"[data-error={name}]").inner_text() == ""
    _settled(page)
    assert _epsilons(page) == before
    _check_against_command_line(page)


def test_a_link_and_a_reload_bring_the_same_plan_back(page, server: Server) -> None:
    _plan_page(page, server, "epsilon=3&delta=1e-5&partition=shards:2")
    assert "Also set: partition = shards:2" in page.locator("body").inner_text()
    _slide(page, "samples", "ArrowRight", 4)
    shown, words = _epsilons(page), _command(page)
    page.reload()
    page.locator('[data-epsilon="plan:eavesdropper"]').wait_for()
    assert (_epsilons(page), _command(page)) == (shown, words)
    assert "shards:2" in words


def test_the_plan_can_be_downloaded_and_its_command_copied(
    page, context, server: Server, tmp_path: Path
) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    _plan_page(page, server, "epsilon=3&delta=1e-5&sensitivity=gradient")
    with page.expect_download() as download:
        page.locator("[data-action=toml]").click()
    target = tmp_path / "plan.toml"
    download.value.save_as(target)
    told = _plan_json(["nbafl", "run", "--config", str(target)])
    assert told["guarantee"]["eavesdropper"]["epsilon"] == _epsilons(page)["plan:eavesdropper"]
    page.locator("[data-action=copy]").click()
    page.get_by_text("on the clipboard").wait_for()
    assert shlex.split(page.evaluate("() => navigator.clipboard.readText()")) == _command(page)


def _curve(page, over: str) -> dict:
    return page.evaluate(
        f"() => (document.querySelector('[data-curve={over}]')?.data ?? []).map(t => ({{x: t.x, y: t.y}}))"
    )


def test_the_look_ahead_marks_the_best_t_and_k(page, server: Server) -> None:
    _plan_page(page, server, "epsilon=60")
    page.locator("[data-outlook-summary]", has_text="best T").wait_for()
    told = plan_bounds(nbafl.Plan(epsilon=60), default_source(None).knowledge)
    for over in ("rounds", "per_round"):
        line, best = _curve(page, over)
        swept = told["curves"][over]["empirical"]
        assert (line["x"], line["y"]) == (swept["candidates"], swept["values"])
        assert best["x"] == [told["best"]["empirical"][over]]
    page.get_by_role("button", name="As the paper prints it").click()
    page.get_by_text("lambda_2").first.wait_for()
    assert not page.locator("[data-curve=rounds]").is_visible()
    assert "public MNIST" in page.locator("[data-outlook]").inner_text()


def test_a_pilot_can_be_measured_for_the_plan(page, server: Server) -> None:
    _plan_page(page, server, "clients=3&samples=20&model=softmax&mu=1&local_steps=1")
    page.locator("[data-outlook]", has_text="differs from that pilot in clients").wait_for()
    page.locator("[data-action=measure]").click()
    page.locator("[data-outlook]", has_text="this plan’s own training").wait_for()
    page.locator("[data-outlook-summary]", has_text="best T").wait_for()
    assert page.locator("[data-action=measure]").is_hidden()


LATENCY = """name => new Promise(resolve => {
  const slider = document.querySelector(`[data-slider=${name}] .q-slider__track-container`);
  const watched = document.querySelector('.answers');
  const before = document.querySelector('[data-command]').innerText;
  const started = performance.now();
  const seen = new MutationObserver(() => {
    if (document.querySelector('[data-command]').innerText === before) return;
    seen.disconnect();
    requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now() - started)));
  });
  seen.observe(watched, {subtree: true, childList: true, characterData: true});
  slider.focus();
  slider.dispatchEvent(new KeyboardEvent('keydown', {keyCode: 37, key: 'ArrowLeft', bubbles: true}));
  slider.dispatchEvent(new KeyboardEvent('keyup', {keyCode: 37, key: 'ArrowLeft', bubbles: true}));
})"""


def test_how_long_a_slider_move_takes_is_reported(page, server: Server, record_property) -> None:
    _plan_page(page, server)
    for query, label in (("", "all clients"), ("per_round=20", "K of N")):
        _plan_page(page, server, query)
        _settled(page)
        times = []
        for name in ("epsilon", "rounds", "clients", "samples", "clip") * 2:
            times.append(page.evaluate(LATENCY, name))
            page.wait_for_timeout(400)
        assert len(times) == 10
        times.sort()
        record_property(f"slider_ms_{label}", times)
        print(f"slider to painted page ({label}): median {times[5]:.0f} ms, worst {times[-1]:.0f} ms")


# --- runs page ------------------------------------------------------------------------------------------------


def _points(page, chart: int = 0) -> list[int]:
    return page.evaluate(
        f"() => (document.querySelector('[data-chart=\"{chart}\"]')?.data ?? []).map(t => t.x.length)"
    )


def _wait_for_points(page, condition: str) -> None:
    page.wait_for_function(
        f"() => {{ const n = (document.querySelector('[data-chart=\"0\"]')?.data ?? []).map(t => t.x.length);"
        f" return {condition}; }}"
    )


def _start(page, server: Server, query: str, name: str) -> None:
    _plan_page(page, server, query)
    page.locator("[data-action=start]").click()
    _type(page, "run-name", name)
    page.locator("[data-action=confirm-start]").click()
    page.wait_for_url("**/runs?run=*")


def test_before_any_run_the_page_says_what_to_do(page, server: Server) -> None:
    _open(page, server, "/runs")
    page.get_by_text("No runs yet").wait_for()
    assert "nbafl run" in page.locator("body").inner_text()


def test_a_run_started_from_the_page_grows_and_finishes(
    page, context, server: Server, tmp_path: Path
) -> None:
    _start(page, server, f"{SMALL}&rounds=800", "from-the-page")
    _wait_for_points(page, "n.length === 1 && n[0] >= 1")
    first = _points(page)[0]
    page.locator(".fact", has_text="left").wait_for()
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


def test_a_name_that_cannot_be_gets_a_sentence(page, server: Server) -> None:
    _plan_page(page, server, SMALL)
    page.locator("[data-action=start]").click()
    for name in ("../escape", "from-the-page"):
        _type(page, "run-name", name)
        page.locator("[data-action=confirm-start]").click()
        page.locator("[data-error=run-name]", has_text=f"got '{name}'.").wait_for()
    assert not (server.root / "escape").exists()


def test_a_run_that_cannot_start_says_why(page, server: Server) -> None:
    _start(page, server, "dataset=/no/such/folder&target=y", "no-data")
    page.locator(".run-sub", has_text="/no/such/folder").first.wait_for()
    page.locator(".badge", has_text="failed").first.wait_for()


def test_a_run_in_a_terminal_shows_up_and_can_be_compared(page, server: Server) -> None:
    _open(page, server, "/runs?run=from-the-page")
    _wait_for_points(page, "n.length === 1 && n[0] === 800")
    options = [
        "--clients",
        4,
        "--samples",
        25,
        "--rounds",
        12,
        "--model",
        "softmax",
        "--epsilon",
        100,
        "--seed",
        3,
    ]
    subprocess.run(
        _nbafl("run", *options, "--out", server.runs / "in-a-terminal"), capture_output=True, check=True
    )
    row = page.locator("tr", has_text="in-a-terminal")
    row.wait_for()
    row.get_by_role("checkbox").click()
    _wait_for_points(page, "n.length === 2 && n[1] === 12")
    table = page.locator("table.compare").inner_text()
    assert "from-the-page" in table
    assert "in-a-terminal" in table
    assert "ε 100 at δ 0.01, eavesdropper, exact, if 2C/m holds" in table
    assert re.search(r"seed\s+0\s+3", table)
    assert "run=from-the-page&run=in-a-terminal" in page.url


def test_a_run_can_be_stopped_and_resumed(page, server: Server) -> None:
    _start(page, server, f"{SMALL}&rounds=3000", "to-and-fro")
    _wait_for_points(page, "n.length === 1 && n[0] >= 2")
    page.locator("[data-action=stop]").click()
    page.locator(".run-head .badge", has_text="stopped").wait_for()
    before = len((server.runs / "to-and-fro" / "metrics.jsonl").read_text().splitlines())
    page.locator("[data-action=resume]").click()
    page.locator(".run-head .badge", has_text="running").wait_for()
    _wait_for_points(page, f"n[0] > {before}")
    page.locator("[data-action=stop]").click()
    page.locator(".run-head .badge", has_text="stopped").wait_for()


def test_damaged_folders_are_shown_as_such(page, server: Server) -> None:
    broken = Path(shutil.copytree(server.runs / "in-a-terminal", server.runs / "broken"))
    (broken / "plan.toml").write_text("epsilon = = 1")
    (server.runs / "half-made" / "checkpoint").mkdir(parents=True)
    audited = Path(shutil.copytree(server.runs / "in-a-terminal", server.runs / "audited"))
    (audited / "audit.json").write_text("not json")
    _open(page, server, "/runs?run=broken")
    page.locator(".run-head .badge", has_text="damaged").wait_for()
    page.get_by_text("not valid TOML").first.wait_for()
    page.locator("tr", has_text="half-made").get_by_text("damaged").wait_for()
    page.locator("tr", has_text="audited").click()
    page.get_by_text("audit.json of 'audited' is damaged").wait_for()
    for name in ("broken", "half-made", "audited"):
        shutil.rmtree(server.runs / name)


def test_an_audit_is_shown_beside_the_claim(page, server: Server) -> None:
    run = server.runs / "in-a-terminal"
    code = run_command(["audit", "--config", str(run / "plan.toml"), "--trials", "2000", "--no-pictures", "--json",
                        "--out", str(server.runs / "audit-of-it")])  # fmt: skip
    assert code == 0
    found = json.loads((server.runs / "audit-of-it" / "audit.json").read_text())
    _open(page, server, "/runs?run=in-a-terminal")
    page.locator(".badge", has_text="consistent").wait_for()
    text = page.locator("body").inner_text()
    assert f"{found['attacks']['eavesdropper']['accounted_epsilon']:.4g}" in text
    assert "100 at δ = 0.01 against eavesdropper is not contradicted" in text
    page.locator("tr", has_text="audit-of-it").click()
    page.locator(".run-head .badge", has_text="audit").wait_for()


def test_turning_away_before_the_charts_are_loaded_is_no_error(page, server: Server) -> None:
    held: list = []
    page.route("**/esm/*/index.js", lambda request: held.append(request))
    _open(page, server, "/runs?run=in-a-terminal")
    page.locator(".badge", has_text="consistent").wait_for()
    page.locator("tr", has_text="audit-of-it").click()
    page.locator(".run-head .badge", has_text="audit").wait_for()
    assert held, "the charts' script was not asked for"
    for request in held:
        request.continue_()
    page.wait_for_timeout(1000)
    page.locator("tr", has_text="in-a-terminal").click()
    page.locator("[data-chart='0'] .scatterlayer path").first.wait_for()


def test_two_hundred_runs_are_listed(page, tmp_path: Path, server: Server, record_property) -> None:
    other = _serve(tmp_path)
    try:
        for number in range(200):
            shutil.copytree(server.runs / "in-a-terminal", other.runs / f"run-{number:03}")
        started = time.perf_counter()
        page.goto(other.url + "/runs")
        page.get_by_text("1-12 of 200").wait_for()
        seconds = time.perf_counter() - started
        record_property("seconds_to_list_200_runs", seconds)
        print(f"200 run folders: on the page after {seconds:.2f} s")
        page.get_by_placeholder("Find a run").fill("run-117")
        page.get_by_text("1-1 of 1").wait_for()
        page.close()
    finally:
        _end(other)


# --- figures page ---------------------------------------------------------------------------------------------


def test_before_any_figure_the_page_says_what_to_do(page, server: Server) -> None:
    _open(page, server, "/figures")
    page.get_by_text("No figures yet").wait_for()
    assert f"nbafl reproduce --out {server.runs / 'reproduce'}" in page.locator("body").inner_text()


def test_figures_stand_side_by_side_with_their_verdicts(page, server: Server) -> None:
    _make_figures(server.runs / "reproduce")
    _open(page, server, "/figures")
    pictures = page.locator("#figure-4 img")
    pictures.first.wait_for()
    page.wait_for_function(
        "() => [...document.querySelectorAll('#figure-4 img')].every(i => i.naturalWidth > 100)"
    )
    assert [p.get_attribute("alt") for p in pictures.all()] == [
        "Figure 4 under The paper’s rule, as printed",
        "Figure 4 under Exact noise against the eavesdropper",
    ]
    text = page.locator("#figure-4").inner_text()
    assert "holds" in text
    assert "more clients, less loss" in text
    assert "is worth ε = 171.6 at δ = 0.01 against eavesdropper (2C/m granted)" in text
    with page.expect_download() as download:
        page.locator("#figure-4 a", has_text="data").first.click()
    assert download.value.suggested_filename == "fig04_paper.csv"


def _make_figures(folder: Path) -> None:
    """Two small figures by the code that makes the real ones, and verdicts in the form `reproduce` writes."""
    import numpy as np

    from nbafl.paper.pictures import Panel, Picture, Series, write

    folder.mkdir(exist_ok=True)
    for number in (4, 6):
        for calibration, slope in (("paper", 0.5), ("exact", 0.7)):
            x = tuple(range(1, 26))
            values = np.exp(-slope * np.arange(25) / 5)[None] + np.random.default_rng(number).normal(
                0, 0.01, (3, 25)
            )
            lines = tuple(
                Series(f"N = {50 + 10 * rank}", x, values / (1 + rank / 4), rank) for rank in range(3)
            )
            write(
                Picture(number, calibration, "a picture", (Panel(lines, "round", "training loss"),)), folder
            )
    claims = ((4, "more clients, less loss", "paper", "holds"), (6, "there is a best T", "exact", "artefact"))
    keys = ("figure", "claim", "calibration", "verdict")
    privacy = {"claimed_epsilon": 50, "real_epsilon": 171.644, "delta": 0.01, "adversary": "eavesdropper"}
    privacy |= {"assumption": "2C/m granted"}
    verdicts = [{**dict(zip(keys, claim, strict=True)), "evidence": {"privacy": privacy}} for claim in claims]
    (folder / "verdicts.json").write_text(json.dumps(verdicts))


# --- the door -------------------------------------------------------------------------------------------------


def test_with_a_token_nothing_is_served_without_it(browser, tmp_path: Path) -> None:
    server = _serve(tmp_path, "--token", TOKEN)
    try:
        for address in (
            "/",
            "/runs",
            "/figures",
            "/studio-static/studio.css",
            "/_nicegui_ws/socket.io/?EIO=4",
        ):
            with pytest.raises(urllib.error.HTTPError) as refusal:
                urllib.request.urlopen(server.url + address, timeout=10)
            assert refusal.value.code == 401
        page = browser.new_page()
        page.goto(server.url)
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Open").click()
        page.locator('[data-epsilon="plan:eavesdropper"]').wait_for()
        assert TOKEN not in page.url
        page.close()
    finally:
        _end(server)


def test_a_foreign_name_for_this_machine_is_refused(server: Server) -> None:
    request = urllib.request.Request(server.url, headers={"Host": "evil.example"})
    with pytest.raises(urllib.error.HTTPError) as refusal:
        urllib.request.urlopen(request, timeout=10)
    assert refusal.value.code == 403


def test_a_port_that_is_taken_is_said_in_a_sentence(server: Server) -> None:
    port = urlsplit(server.url).port
    refused = subprocess.run(_nbafl("studio", "--port", port), capture_output=True, text=True)
    assert refused.returncode == 1
    assert f"port {port}" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_an_address_that_is_none_is_said_in_a_sentence(browser, server: Server) -> None:
    page = browser.new_page()
    page.goto(server.url + "/nowhere")
    page.get_by_text("There is no such page").wait_for()
    page.close()


# --- pictures -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def showcase(server: Server) -> Iterator[Server]:
    """What the pictures show: the folder NBAFL_SHOWCASE (holding runs/), or what the tests above made."""
    folder = os.environ.get("NBAFL_SHOWCASE")
    if folder is None:
        yield server
        return
    started = _serve(Path(folder).resolve())
    yield started
    _end(started)


@pytest.mark.parametrize("name", ["plan", "runs", "figures"])
@pytest.mark.parametrize(("size", "viewport"), [("wide", WIDE), ("narrow", NARROW)])
def test_every_page_is_pictured_and_fits_its_screen(
    context, showcase: Server, tmp_path: Path, name: str, size: str, viewport: dict
) -> None:
    page = context.new_page()
    page.set_viewport_size(viewport)
    if name == "plan":
        _plan_page(page, showcase)
    else:
        _open(page, showcase, f"/{name}")
        page.locator(".card:visible, .runs").first.wait_for()
    if name == "runs":
        for row in page.locator("tbody tr", has_text="finished").all()[:3]:
            row.get_by_role("checkbox").click()
        page.locator("[data-chart]").first.wait_for()
        page.evaluate("() => { document.activeElement.blur(); scrollTo(0, 0); }")
        page.mouse.move(0, 0)
    page.wait_for_timeout(1500)
    folder = Path(os.environ.get("NBAFL_SCREENSHOTS", tmp_path))
    page.screenshot(path=folder / f"studio-{name}-{size}.png")
    assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")


def test_the_keyboard_alone_is_enough(page, server: Server) -> None:
    _plan_page(page, server)
    page.keyboard.press("Tab")
    seen = []
    for _ in range(60):
        seen.append(
            page.evaluate(
                "() => { const e = document.activeElement; const s = e.closest('[data-slider],[data-field],[data-choice],"
                "[data-action]'); return s ? Object.values(s.dataset)[0] : (e.innerText || e.tagName) }"
            )
        )
        page.keyboard.press("Tab")
    for reachable in (
        "Runs",
        "Figures",
        "epsilon",
        "delta",
        "sensitivity",
        "adversary",
        "clients",
        "start",
        "toml",
        "copy",
    ):
        assert any(reachable in str(each) for each in seen), reachable
