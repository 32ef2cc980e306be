"""The Plan page in a real browser: sliders, choices, nonsense, links, downloads, the look ahead, the keyboard."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from studio_browser import (
    PAPER,
    PATIENCE,
    Server,
    check_against_command_line,
    choose,
    command,
    epsilons,
    plan_json,
    plan_page,
    slide,
    type_text,
    wait_for_command,
)
from tests.paper_setting import Plan

from nbafl.studio.predictions import known_sources
from nbafl.theory.planning import plan_bounds

pytestmark = pytest.mark.e2e


def test_the_page_opens_on_a_guarantee_that_holds(page, server: Server) -> None:
    plan_page(page, server)
    told = check_against_command_line(page)
    assert command(page) == ["nbafl", "run"]
    assert (told["claimed"]["epsilon"], told["claimed"]["delta"], told["conditional"]) == (1, 1e-5, False)
    assert epsilons(page)["plan:eavesdropper"] == pytest.approx(1, rel=1e-6)
    assert page.locator(".head .badge", has_text="not kept").count() == 0
    for name, text in (("sensitivity", "Gradient"), ("calibration", "Exact")):
        assert text in page.locator(f"[data-choice={name}]").inner_text()
    assert page.locator("[data-field=rounds]").input_value() == "190"
    page.locator("[data-outlook-summary]", has_text="best T").wait_for()
    assert "a pilot of the default plan" in page.locator("[data-outlook]").inner_text()
    assert page.locator("[data-action=measure]").is_hidden()


def test_moving_sliders_gives_the_numbers_of_the_command_line(page, server: Server) -> None:
    plan_page(page, server, PAPER)
    first = check_against_command_line(page)
    slide(page, "epsilon", "ArrowLeft", 12, until="--epsilon 13")
    slide(page, "rounds", "ArrowRight", 3, until="--rounds 35")
    slide(page, "per_round", "ArrowLeft", 20, until="--per-round 30")
    moved = check_against_command_line(page)
    assert moved["claimed"]["epsilon"] < first["claimed"]["epsilon"]
    assert "--per-round 30" in " ".join(command(page))


def test_choosing_another_model_brings_what_it_needs(page, server: Server) -> None:
    plan_page(page, server, PAPER)
    choose(page, "sensitivity", "Proximal")
    page.get_by_text("model to softmax").wait_for()
    wait_for_command(page, "--sensitivity proximal", "--feature-norm 1.5")
    assert check_against_command_line(page)["conditional"] is False
    assert page.locator("[data-slider=clip]").is_visible()
    choose(page, "sensitivity", "Gradient")
    page.locator("[data-slider=record_clip]").wait_for()
    choose(page, "adversary", "Colluders")
    wait_for_command(page, "--adversary colluders:1")
    type_text(page, "colluders", "3")
    page.locator('[data-epsilon="plan:colluders_3"]').wait_for()
    wait_for_command(page, "--adversary colluders:3")
    assert check_against_command_line(page)["claimed"]["adversary"] == "colluders:3"


def test_the_papers_rule_does_not_keep_its_claim(page, server: Server) -> None:
    plan_page(page, server)
    page.get_by_role("button", name="The paper’s setting").click()
    page.locator(".head .badge", has_text="not kept").wait_for()
    assert epsilons(page)["plan:eavesdropper"] == pytest.approx(171.644, abs=1e-3)


NONSENSE = (
    ("epsilon", "lots", "epsilon must be a number, got 'lots'."),
    ("epsilon", "-3", "epsilon must be at least 0.000000001, got -3.0."),
    ("delta", "2", "delta must be less than 1, got 2.0."),
    ("clients", "3.5", "clients must be a whole number, got '3.5'."),
    ("per_round", "60", "per_round must be at most clients (50), got 60."),
    ("exposures", "1000", "exposures must be at most rounds (25), got 1000."),
    ("clip", "<script>", "clip must be a number, got '<script>'."),
)


def test_nonsense_is_answered_with_a_sentence(page, server: Server) -> None:
    plan_page(page, server, PAPER)
    before = epsilons(page)
    for name, text, sentence in NONSENSE:
        kept = page.locator(f"[data-field={name}]").input_value()
        type_text(page, name, text)
        page.locator("[data-error=plan]", has_text=sentence).wait_for()
        assert page.locator(f"[data-error={name}]").inner_text() == sentence
        assert epsilons(page) == before
        assert page.locator("[data-action=start]").is_disabled()
        type_text(page, name, kept)
        page.locator("[data-error=plan]").wait_for(state="hidden")
        assert page.locator(f"[data-error={name}]").inner_text() == ""
    assert epsilons(page) == before
    check_against_command_line(page)


def test_a_link_and_a_reload_bring_the_same_plan_back(page, server: Server) -> None:
    plan_page(page, server, f"{PAPER}&epsilon=3&delta=1e-5&partition=shards:2")
    assert page.locator("[data-field=partition]").input_value() == "shards:2"
    slide(page, "samples", "ArrowRight", 4, until="--samples 150")
    page.wait_for_function("() => location.search.includes('samples=150')")
    shown, words = epsilons(page), command(page)
    page.reload()
    page.locator('[data-epsilon="plan:eavesdropper"]').wait_for()
    assert (epsilons(page), command(page)) == (shown, words)
    assert "shards:2" in words


def test_the_plan_can_be_downloaded_and_its_command_copied(
    page, context, server: Server, tmp_path: Path
) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    plan_page(page, server, "epsilon=3&delta=1e-5&sensitivity=gradient")
    with page.expect_download() as download:
        page.locator("[data-action=toml]").click()
    target = tmp_path / "plan.toml"
    download.value.save_as(target)
    told = plan_json(["nbafl", "run", "--config", str(target)])
    assert told["guarantee"]["eavesdropper"]["epsilon"] == epsilons(page)["plan:eavesdropper"]
    page.locator("[data-action=copy]").click()
    page.get_by_text("on the clipboard").wait_for()
    page.wait_for_function("async () => (await navigator.clipboard.readText()).startsWith('nbafl')")
    assert shlex.split(page.evaluate("() => navigator.clipboard.readText()")) == command(page)


CURVE = """over => {
  const drawn = document.querySelector(`[data-curve=${over}]`)?.data;
  return drawn ? drawn.map(t => ({x: t.x, y: t.y})) : null;
}"""


def test_the_look_ahead_marks_the_best_t_and_k(page, server: Server) -> None:
    plan_page(page, server, f"{PAPER}&epsilon=60")
    page.locator("[data-outlook-summary]", has_text="best T").wait_for()
    told = plan_bounds(Plan(epsilon=60), known_sources(None)[1].knowledge)
    for over in ("rounds", "per_round"):
        line, best = page.wait_for_function(CURVE, arg=over).json_value()
        swept = told["curves"][over]["empirical"]
        assert (line["x"], line["y"]) == (swept["candidates"], swept["values"])
        assert best["x"] == [told["best"]["empirical"][over]]
    page.get_by_role("button", name="As the paper prints it").click()
    page.get_by_text("lambda_2").first.wait_for()
    assert not page.locator("[data-curve=rounds]").is_visible()
    assert "public MNIST" in page.locator("[data-outlook]").inner_text()


def test_a_pilot_can_be_measured_for_the_plan(page, server: Server) -> None:
    plan_page(page, server, f"{PAPER}&clients=3&samples=20&model=softmax&mu=1&local_steps=1")
    page.locator("[data-outlook]", has_text="differs from that pilot in clients").wait_for()
    page.locator("[data-action=measure]").click()
    page.locator("[data-outlook]", has_text="this plan’s own training").wait_for()
    page.locator("[data-outlook-summary]", has_text="best T").wait_for()
    assert page.locator("[data-action=measure]").is_hidden()


LATENCY = """([name, patience]) => new Promise((resolve, reject) => {
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
  setTimeout(() => reject(new Error(`the page did not answer the slider ${name}`)), patience);
  slider.focus();
  slider.dispatchEvent(new KeyboardEvent('keydown', {keyCode: 37, key: 'ArrowLeft', bubbles: true}));
  slider.dispatchEvent(new KeyboardEvent('keyup', {keyCode: 37, key: 'ArrowLeft', bubbles: true}));
})"""


def test_how_long_a_slider_move_takes_is_reported(page, server: Server, record_property) -> None:
    for query, label in ((PAPER, "all clients"), (f"{PAPER}&per_round=20", "K of N")):
        plan_page(page, server, query)
        times = []
        for name in ("epsilon", "rounds", "clients", "samples", "clip") * 2:
            times.append(page.evaluate(LATENCY, [name, PATIENCE]))
            page.wait_for_timeout(400)  # as a hand rests between two moves
        assert len(times) == 10
        times.sort()
        record_property(f"slider_ms_{label}", times)
        print(f"slider to painted page ({label}): median {times[5]:.0f} ms, worst {times[-1]:.0f} ms")


REACHABLE = (
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
)


def test_the_keyboard_alone_is_enough(page, server: Server) -> None:
    plan_page(page, server)
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
    for reachable in REACHABLE:
        assert any(reachable in str(each) for each in seen), reachable
