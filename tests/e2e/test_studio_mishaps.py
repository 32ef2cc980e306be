"""What used to go wrong on the pages: numbers too large, links that hold no plan, a studio that is away, lost runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from studio_browser import (
    NARROW,
    PAPER,
    PATIENCE,
    WIDE,
    Server,
    choose,
    end,
    epsilons,
    held_up,
    open_page,
    plan_page,
    serve,
    type_text,
    wait_for_command,
)

pytestmark = pytest.mark.e2e

SLOW = "sensitivity=client&clip=1&per_round=20&rounds=100000"
"""A valid plan whose account takes minutes."""


def test_a_question_nobody_waits_for_is_given_up_and_other_pages_are_answered(
    page, context, server: Server
) -> None:
    plan_page(page, server, "rounds=25")
    other = context.new_page()
    open_page(other, server, f"/?{SLOW}")
    other.locator(".answers.pending").wait_for()
    type_text(page, "rounds", "31")
    wait_for_command(page, "--rounds 31")
    assert other.locator("[data-epsilon]").count() == 0
    type_text(other, "rounds", "30")
    wait_for_command(other, "--rounds 30")
    other.locator(".answers:not(.pending)").wait_for()


HEIGHTS = "() => [...document.querySelectorAll('.answers .card')].map(e => Math.round(e.getBoundingClientRect().height))"


def test_cards_keep_their_height_while_and_after_a_question_is_pending(page, server: Server) -> None:
    plan_page(page, server, "rounds=30")
    page.locator("[data-outlook] .badge.live").wait_for(state="hidden")
    before = page.evaluate(HEIGHTS)
    with held_up(server):
        type_text(page, "rounds", "31")
        page.locator("[data-outlook] .badge.live").wait_for()
        pending = page.evaluate(HEIGHTS)
    wait_for_command(page, "--rounds 31")
    page.locator("[data-outlook] .badge.live").wait_for(state="hidden")
    assert len(before) == 7
    assert pending == before
    assert page.evaluate(HEIGHTS) == before
    type_text(page, "epsilon", "20")  # another plan than the pilot's, and something to beware of
    wait_for_command(page, "--epsilon 20")
    page.locator(".beware .notice").wait_for()
    page.locator("[data-outlook] .badge.live").wait_for(state="hidden")
    after = page.evaluate(HEIGHTS)
    assert [after[place] for place in (0, 1, 3, 5)] == [before[place] for place in (0, 1, 3, 5)]


IMPOSSIBLE = (
    ("clients=0", "clients", "0", "clients must be at least 1, got 0."),
    ("epsilon=1e300", "epsilon", "1e+300", "epsilon must be at most 1000000000, got 1e+300."),
    ("rounds=100000000", "rounds", "100000000", "rounds must be at most 100000, got 100000000."),
    ("clients=99999999", "clients", "99999999", "clients must be at most 1000000, got 99999999."),
    ("per_round=80&clients=50", "per_round", "80", "per_round must be at most clients (50), got 80."),
    ("sensitivity=client&clip=high", "clip", "high", "clip must be a number, got 'high'."),
)


def test_a_link_without_a_plan_marks_its_field_and_shows_no_numbers(page, server: Server) -> None:
    for query, name, shown, sentence in IMPOSSIBLE:
        open_page(page, server, f"/?{query}")
        page.locator(f"[data-error={name}]", has_text=sentence).wait_for()
        assert page.locator("[data-error=plan]").inner_text() == sentence
        assert page.locator(f"[data-field={name}]").input_value() == shown
        assert page.locator("[data-epsilon]").count() == 0
        assert page.locator(".answers .card:visible").count() == 0


def test_numbers_too_large_are_refused_at_their_field(page, server: Server) -> None:
    plan_page(page, server)
    before = epsilons(page)
    for _, name, _, sentence in IMPOSSIBLE[:4]:
        kept = page.locator(f"[data-field={name}]").input_value()
        type_text(page, name, sentence.split("got ")[1].rstrip("."))
        page.locator(f"[data-error={name}]", has_text=sentence).wait_for()
        page.locator(".answers.stale").wait_for()
        type_text(page, name, kept)
        page.locator(".answers:not(.stale):not(.pending)").wait_for()
    assert epsilons(page) == before


def test_the_number_of_accomplices_stands_beside_its_label(page, server: Server) -> None:
    plan_page(page, server)
    choose(page, "adversary", "Colluders")
    field = page.locator("[data-field=colluders]")
    field.wait_for()
    label, value = page.get_by_text("How many of them").bounding_box(), field.bounding_box()
    assert label["x"] + label["width"] <= value["x"] or label["y"] + label["height"] <= value["y"]


@pytest.fixture
def unwatched(browser):
    """A page whose studio may go away."""
    opened = browser.new_page()
    opened.set_default_timeout(PATIENCE)
    yield opened
    opened.close()


def test_while_the_studio_is_away_nothing_can_be_edited(unwatched, tmp_path: Path) -> None:
    away = serve(tmp_path)
    plan_page(unwatched, away)
    end(away)
    unwatched.get_by_text("nothing can be changed until it is back").wait_for()
    assert unwatched.evaluate("() => document.querySelector('.content').inert")
    unwatched.wait_for_function(
        "() => Number(getComputedStyle(document.querySelector('.answers .card')).opacity) < 0.6"
    )


def test_a_run_can_be_stopped_after_the_studio_was_started_again(unwatched, tmp_path: Path) -> None:
    page, first = unwatched, serve(tmp_path)
    plan_page(page, first, f"{PAPER}&clients=4&samples=25&rounds=50000&model=softmax&epsilon=300")
    page.locator("[data-action=start]").click()
    type_text(page, "run-name", "outlives-it")
    page.locator("[data-action=confirm-start]").click()
    page.get_by_text("Its process is starting").wait_for()
    page.locator(".run-head .badge", has_text="running").wait_for()
    page.goto("about:blank")
    end(first)
    second = serve(tmp_path)
    try:
        open_page(page, second, "/runs?run=outlives-it")
        page.locator("[data-action=stop]").click()
        page.locator(".run-head .badge", has_text="stopped").wait_for()
    finally:
        page.goto("about:blank")
        end(second)


def test_lost_runs_and_folders_of_runs_are_told_apart(page, server: Server, finished: Path) -> None:
    open_page(page, server, "/runs?run=was-deleted")
    page.get_by_text("was-deleted is not here").wait_for()
    inner = Path(shutil.copytree(finished, server.runs / "study" / "first"))
    page.locator("tr", has_text="study/first").get_by_text("finished").wait_for()
    assert page.locator("tr", has_text="damaged").count() == 0
    page.get_by_placeholder("Find a run").fill("study eavesdropper 12 of 12")
    page.get_by_text("1-1 of 1").wait_for()
    page.locator("tr", has_text="study/first").click()
    page.locator(".run-head .badge", has_text="finished").wait_for()
    assert page.request.get(server.url + "/files/runs/study/first/report").ok
    shutil.rmtree(inner.parent)


def test_a_long_name_does_not_widen_the_page(page, server: Server, finished: Path) -> None:
    name = "n" * 180
    folder = Path(shutil.copytree(finished, server.runs / name))
    for viewport in ({"width": 1440, "height": 900}, NARROW):
        page.set_viewport_size(viewport)
        open_page(page, server, f"/runs?run={name}&run={finished.name}")
        page.locator("table.compare").wait_for()
        assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
    shutil.rmtree(folder)


CONTRAST = """() => { const [text, ground] = ['.q-notification .q-btn', '.q-notification'].map(
  (where, i) => getComputedStyle(document.querySelector(where))[i ? 'backgroundColor' : 'color']);
  return [text, ground]; }"""


def _luminance(colour: str) -> float:
    parts = [float(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
def test_a_long_value_in_a_link_does_not_widen_the_page(page, server: Server, viewport: dict) -> None:
    page.set_viewport_size(viewport)
    open_page(page, server, f"/?clients={'9' * 400}")
    page.get_by_text("clients must be a finite number").first.wait_for()
    assert page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0


def test_badges_stand_in_one_line_on_a_phone(page, server: Server) -> None:
    page.set_viewport_size(NARROW)
    plan_page(page, server)
    tops = [badge.bounding_box()["y"] for badge in page.locator(".answers .head .badge").all()]
    assert len(tops) == 2
    assert tops[0] == tops[1]


def test_the_close_of_a_message_can_be_read(page, server: Server) -> None:
    open_page(page, server, "/?epsilon=nothing")
    page.locator("[data-action=toml]").click()
    page.locator(".q-notification .q-btn").wait_for()
    text, ground = (_luminance(colour) for colour in page.evaluate(CONTRAST))
    assert (max(text, ground) + 0.05) / (min(text, ground) + 0.05) >= 4.5


def test_on_a_phone_a_chart_is_not_under_the_header(page, server: Server, finished: Path) -> None:
    page.set_viewport_size(NARROW)
    open_page(page, server, "/runs")
    page.locator("tr", has_text=finished.name).click()
    page.locator("[data-chart='0']").wait_for()
    page.wait_for_function("() => scrollY > 0")
    page.wait_for_timeout(800)  # the page scrolls smoothly
    place = "where => { const at = document.querySelector(where).getBoundingClientRect(); return [at.top, at.bottom]; }"
    assert page.evaluate(place, ".details")[0] >= page.evaluate(place, ".top")[1]
