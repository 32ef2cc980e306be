"""The pages under axe-core, wide and narrow, light and dark; and what a keyboard needs of a slider."""

from __future__ import annotations

from pathlib import Path

import pytest
from studio_browser import NARROW, WIDE, Server, open_page, plan_page, wait_for_command

pytestmark = pytest.mark.e2e

SETTLED = """() => !document.querySelector('.answers.pending')
  && [...document.querySelectorAll('[data-outlook] .badge.live')].every(e => !e.offsetParent)
  && [...document.querySelectorAll('[data-chart], [data-curve]')].filter(e => e.offsetParent).every(
    e => e.querySelector('.scatterlayer path'))
  && [...document.images].every(e => e.complete)
  && document.getAnimations().every(e => e.playState !== 'running' || e.effect.getTiming().iterations === Infinity)"""
"""Answers, charts and pictures are there, and nothing moves any more: half a fade is no colour to judge."""
SERIOUS = ("serious", "critical")


@pytest.fixture(scope="module")
def shown(finished: Path, other_finished: Path) -> list[str]:
    """Every page, with something on it."""
    both = f"run={finished.name}&run={other_finished.name}"
    return [
        "/?epsilon=3",
        "/?epsilon=nothing",
        "/runs",
        f"/runs?run={finished.name}",
        f"/runs?{both}&seeds=1",
        "/figures",
    ]


def serious(page) -> list[str]:
    from axe_playwright_python.sync_playwright import Axe

    violations = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {node['target']} {node['html'][:160]}"
        for each in violations
        if each["impact"] in SERIOUS
        for node in each["nodes"][:3]
    ]


@pytest.mark.usefixtures("figures")
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
def test_axe_finds_nothing_serious(
    page, server: Server, shown: list[str], viewport: dict, theme: str
) -> None:
    page.emulate_media(color_scheme=theme, reduced_motion="reduce")
    page.set_viewport_size(viewport)
    found = []
    for address in shown:
        open_page(page, server, address)
        page.locator(".card:visible").first.wait_for()
        page.locator(".answers:not(.pending), .runs, .figure-grid").first.wait_for(state="attached")
        assert page.evaluate("() => document.body.classList.contains('body--dark')") == (theme == "dark")
        page.wait_for_function(SETTLED)
        found += [f"{address}: {each}" for each in serious(page)]
    assert found == []


def test_a_slider_has_a_name_a_value_and_ends(page, server: Server) -> None:
    plan_page(page, server, "rounds=25")
    slider = page.locator("[data-slider=rounds] [role=slider], [data-slider=rounds][role=slider]").first
    assert slider.get_attribute("aria-label") == "Rounds T"
    assert slider.get_attribute("aria-valuetext") == "25"
    page.locator("[data-slider=rounds] .q-slider__track-container").focus()
    page.keyboard.press("Home")
    wait_for_command(page, "--rounds 1")
    page.keyboard.press("End")
    wait_for_command(page, "--rounds 500")


def test_the_theme_can_be_chosen_and_stays(page, server: Server) -> None:
    page.emulate_media(color_scheme="light")
    plan_page(page, server)
    page.locator("[data-action=theme]").click()
    page.wait_for_function("() => document.body.classList.contains('body--dark')")
    open_page(page, server, "/runs")
    page.wait_for_function("() => document.body.classList.contains('body--dark')")
