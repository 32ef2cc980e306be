"""The table of runs in a real browser: filtered, grouped, written on, renamed, audited, deleted; charts taken along."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from studio_browser import Server, open_page, plan_page, type_text, wait_for_command

pytestmark = pytest.mark.e2e


@pytest.fixture
def mine(server: Server, finished: Path) -> Path:
    """A run that a test may do anything to."""
    return Path(shutil.copytree(finished, server.runs / "mine"))


def test_what_is_filtered_sorted_and_grouped_stands_in_the_address(
    page, server: Server, finished: Path, other_finished: Path
) -> None:
    open_page(page, server, "/runs")
    page.locator("th", has_text="Claimed").click()
    page.wait_for_url("**/runs?sort=claimed*")
    page.locator("[data-switch=grouped]").click()
    page.wait_for_url("**/runs?sort=claimed&seeds=1")
    page.get_by_placeholder("Find a run").fill("300")
    page.wait_for_url("**find=300*")
    page.reload()
    page.locator("tr", has_text=other_finished.name).wait_for()
    page.get_by_text("1-1 of 1").wait_for()
    assert page.locator("tr", has_text=finished.name).count() == 0
    with page.expect_download() as table:
        page.locator("[data-export=csv]").first.click()
    assert "ε that really holds,Test accuracy" in Path(table.value.path()).read_text()
    with page.expect_download() as picture:
        page.locator("[data-export=svg]").first.click()
    assert "<text" in Path(picture.value.path()).read_text()


def test_a_chart_asked_for_before_its_script_has_come_is_taken_along_when_it_has(
    page, server: Server, finished: Path
) -> None:
    held, holding = [], True
    page.route("**/esm/*/index.js", lambda route: held.append(route) if holding else route.continue_())
    open_page(page, server, f"/runs?run={finished.name}")
    page.locator("[data-export=svg]").first.click()
    with page.expect_download() as table:  # comes from the server, so the click before it was heard
        page.locator("[data-export=csv]").first.click()
    assert table.value.suggested_filename.endswith(".csv")
    assert held, "the charts' script was not asked for"
    with page.expect_download() as picture:
        holding = False
        for route in held:
            route.continue_()
    assert picture.value.suggested_filename == "accuracy-against-real-epsilon.svg"
    assert "<text" in Path(picture.value.path()).read_text()


def test_the_bars_of_the_plan_page_are_taken_along(page, server: Server) -> None:
    plan_page(page, server, "epsilon=3")
    shown = page.locator('[data-epsilon="plan:curious_server"]').get_attribute("data-value")
    found = {}
    for kind in ("svg", "png", "csv"):
        with page.expect_download() as taken:
            page.locator(f'[title^="What each adversary"][data-export={kind}]').click()
        assert taken.value.suggested_filename == f"epsilon-per-adversary.{kind}"
        found[kind] = Path(taken.value.path()).read_bytes()
    assert "the claim, ε = 3</text>" in found["svg"].decode()
    assert found["png"].startswith(b"\x89PNG")
    assert len(found["png"]) > 20_000, "an empty picture"
    assert f"this plan,curious-server,{shown}," in found["csv"].decode()


def test_a_run_is_written_on_renamed_audited_and_deleted(page, server: Server, mine: Path) -> None:
    open_page(page, server, f"/runs?run={mine.name}")
    page.locator("[data-action=label]").click()
    type_text(page, "note", "look again")
    type_text(page, "tags", "good, first")
    page.locator("[data-action=confirm]").click()
    page.locator(".written", has_text="look again").wait_for()
    page.locator("[data-action=rename]").click()
    type_text(page, "new-name", "../elsewhere")
    page.locator("[data-action=confirm]").click()
    page.locator("[data-error=dialog]", has_text="name must be").wait_for()
    type_text(page, "new-name", "yours")
    page.locator("[data-action=confirm]").click()
    page.wait_for_url("**/runs?run=yours")
    page.locator("[data-action=audit]").click()
    page.locator(".badge.live").first.wait_for()
    page.locator(".audit-picture").first.wait_for()
    assert json.loads((server.runs / "yours" / "audit.json").read_text())["verdict"] == "consistent"
    assert "Audit: consistent" in (server.runs / "yours" / "report.html").read_text()
    assert (server.runs / "yours" / "audit.html").is_file()
    page.locator("[data-action=delete]").click()
    page.locator("[data-action=confirm]").click()
    page.locator("tr", has_text="yours").wait_for(state="detached")
    assert not (server.runs / "yours").exists()


def test_own_data_become_a_plan(page, server: Server, tmp_path: Path) -> None:
    for party in ("ann", "bob"):
        rows = "".join(f"{age},{age % 2}\n" for age in range(20, 50))
        (tmp_path / f"{party}.csv").write_text(f"age,ill\n{rows}")
    plan_page(page, server)
    page.locator("[data-goal=own-data]").click()
    page.locator("[data-action=look]").click()
    page.locator("[data-error=own-data]", has_text="dataset must be a folder").wait_for()
    type_text(page, "own-dataset", str(tmp_path))
    type_text(page, "own-target", "ill")
    page.locator("[data-action=look]").click()
    page.locator("[data-own-data]", has_text="2 parties with 60 records").wait_for()
    page.locator("[data-action=write-schema]").click()
    page.locator("[data-own-schema]", has_text="set public = true").wait_for()
    page.locator("[data-own-data]", has_text="not yet declared public").wait_for()
    assert page.locator("[data-action=write-schema]").is_disabled()
    assert 'target = "ill"' in (tmp_path / "schema.toml").read_text()
    page.locator("[data-action=use-data]").click()
    wait_for_command(page, f"--dataset {tmp_path}", "--target ill", "--clients 2", "--samples 30")
