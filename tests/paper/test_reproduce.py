"""The figures end to end on a tiny federation: runs shared and cached, files written, the page whole."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from nbafl.cli.reproduce import reproduce as verb
from nbafl.errors import DataError, UsageError
from nbafl.paper.over_rounds import Sweep
from nbafl.paper.reproduce import FIGURES, Reproduction, reproduce, runs_of
from nbafl.paper.runs import Runs, Wanted
from nbafl.paper.settings import Settings
from nbafl.paper.trainings import compute, main, read_results, write_trials

TINY = Settings(
    clients=6,
    samples=10,
    rounds=4,
    per_round=3,
    client_grid=(6, 8),
    round_grid=(2, 3, 5),
    drawn_grid=(2, 4, 6),
    bound_rounds=40,
    lr=0.015,
    mu_bound=60.0,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Reproduction]:
    folder = tmp_path_factory.mktemp("reproduce")
    return folder, reproduce(seeds=2, out=folder, settings=TINY)


def test_every_figure_comes_as_png_svg_and_csv(made: tuple[Path, Reproduction]) -> None:
    folder, _ = made
    for number in FIGURES:
        for calibration in ("paper", "exact"):
            stem = folder / f"fig{number:02d}_{calibration}"
            assert stem.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
            assert "<svg" in stem.with_suffix(".svg").read_text()
            rows = list(csv.DictReader(stem.with_suffix(".csv").open()))
            assert rows
            assert all(np.isfinite(float(row["value"])) for row in rows)


def test_the_csv_holds_what_was_trained(made: tuple[Path, Reproduction]) -> None:
    folder, _ = made
    rows = list(csv.DictReader((folder / "fig02_paper.csv").open()))
    wanted = Wanted("paper", 60.0, 6, 6, 4, 0.0, curve=True)
    runs = Runs(TINY, 2, [wanted])
    runs.load(folder / "data" / "results.json")
    drawn = [float(row["value"]) for row in rows if row["line"] == "NbAFL, ε = 60" and row["seed"] == "1"]
    assert drawn == runs.values(wanted)[1].tolist()


def test_every_figure_has_a_verdict_under_both_calibrations(made: tuple[Path, Reproduction]) -> None:
    folder, result = made
    assert json.loads((folder / "verdicts.json").read_text()) == result.verdicts
    judged = {(entry["figure"], entry["calibration"]) for entry in result.verdicts}
    assert judged == {(number, calibration) for number in FIGURES for calibration in ("paper", "exact")}
    assert {entry["verdict"] for entry in result.verdicts} <= {"holds", "fails", "artefact", "undecided"}
    assert len({entry["claim"] for entry in result.verdicts}) == 5


def test_the_page_is_whole_by_itself(made: tuple[Path, Reproduction]) -> None:
    page = made[1].page.read_text()
    assert page.count("data:image/png;base64,") == 2 * len(FIGURES)
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "2, 3, 5" in page  # the grid of T is stated


def test_a_second_call_trains_nothing(
    made: tuple[Path, Reproduction], monkeypatch: pytest.MonkeyPatch
) -> None:
    def trains(*_: Any, **__: Any) -> None:
        raise AssertionError("a cached result was computed again")

    monkeypatch.setattr("nbafl.paper.trainings.simulate_batch", trains)
    for asked in ((2, 9, 10), (11,), (7,)):
        again = reproduce(asked, seeds=2, out=made[0], settings=TINY)
        assert again.verdicts == [entry for entry in made[1].verdicts if entry["figure"] in asked]


def test_a_call_for_some_figures_keeps_the_others_on_the_page(made: tuple[Path, Reproduction]) -> None:
    folder, result = made
    again = reproduce((3, 8), seeds=2, out=folder, settings=TINY)
    assert again.kept == (2, 4, 5, 6, 7, 9, 10, 11)
    assert {entry["figure"] for entry in again.verdicts} == {3, 8}
    assert json.loads((folder / "verdicts.json").read_text()) == result.verdicts
    assert again.page.read_text().count("data:image/png;base64,") == 2 * len(FIGURES)


def test_figures_of_other_numbers_do_not_stay_on_the_page(
    made: tuple[Path, Reproduction], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(made[0], tmp_path / "copy"))
    assert reproduce((8,), seeds=2, out=folder, settings=replace(TINY, clip=5.0)).kept == ()
    folder = Path(shutil.copytree(made[0], tmp_path / "other"))
    fewer = reproduce((2,), seeds=1, out=folder, settings=TINY)
    assert fewer.kept == ()
    assert {entry["figure"] for entry in json.loads((folder / "verdicts.json").read_text())} == {2}
    (folder / "verdicts.json").write_text("not ours")
    assert reproduce((3,), seeds=1, out=folder, settings=TINY).kept == ()


def test_a_short_run_is_the_beginning_of_a_long_one_with_the_same_noise() -> None:
    """K-random under the paper's rule: the same noise for every T here, so one run serves the grid."""
    sweep = Sweep("paper", 60.0, 3, 0.0)
    runs = Runs(TINY, 2, sweep.wanted(TINY))
    assert len(runs.trials) == 2  # one for each seed
    assert {trial.job.rounds for trial in runs.trials} == {5}
    runs.results = compute(runs.trials)
    for place, rounds in enumerate(TINY.round_grid):
        alone = [replace(t, job=replace(t.job, rounds=rounds)) for t in runs.trials]
        expected = [curve["train_loss"][-1] for curve in compute(alone).values()]
        assert sweep.losses(runs)[:, place].tolist() == expected


def test_what_differs_gives_another_digest() -> None:
    trials = runs_of(FIGURES, Settings(), 1).trials
    assert len({trial.key for trial in trials}) == len(trials)


def test_trainings_travel_to_another_machine_and_back(tmp_path: Path) -> None:
    runs = runs_of((11,), replace(TINY, drawn_grid=(2, 6), epsilons_drawn=(50.0,)), 2)
    write_trials(tmp_path / "jobs.json", runs.trials)
    main([str(tmp_path / "jobs.json"), str(tmp_path / "results.json")])
    assert read_results(tmp_path / "results.json") == compute(runs.trials)
    runs.load(tmp_path / "results.json")
    assert runs.missing() == []
    runs.complete(tmp_path / "cache.json")
    assert read_results(tmp_path / "cache.json") == runs.results  # kept for the next call
    (tmp_path / "results.json").write_text("[]")
    with pytest.raises(DataError, match="does not hold results"):
        read_results(tmp_path / "results.json")


def test_the_trainings_need_torch_and_numpy_alone() -> None:
    """As on a machine where nothing else can be installed."""
    absent = "scipy pydantic matplotlib typer rich jinja2 dp_accounting safetensors randomgen click"
    code = f"""
import sys
for name in {absent.split()!r}:
    sys.modules[name] = None
import nbafl.paper.trainings
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("figures", "seeds", "field"), [((1,), 2, "figures"), ((2,), 0, "seeds")])
def test_impossible_requests_are_refused(figures: tuple[int, ...], seeds: int, field: str) -> None:
    with pytest.raises(UsageError, match=field):
        runs_of(figures, TINY, seeds)


def test_the_verb_writes_the_trainings_and_prints_json(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(verb)
    runner = CliRunner()
    jobs = tmp_path / "jobs.json"
    done = runner.invoke(app, ["2", "--seeds", "1", "--out", str(tmp_path), "--jobs", str(jobs)])
    assert done.exit_code == 0, done.output
    assert len(json.loads(jobs.read_text())["trainings"]) == 7  # three epsilons twice, and one without noise
    done = runner.invoke(app, ["8", "--seeds", "1", "--out", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    assert [(entry["figure"], entry["calibration"]) for entry in printed] == [(8, "paper"), (8, "exact")]


@pytest.mark.e2e
def test_the_papers_setting_gives_the_known_values() -> None:
    """math.md, section 13, three seeds there: 0.863, 0.759, 0.605, 0.520, and 0.555 at K = 40; two seeds here."""
    s = Settings()
    known = {(50.0, 50): 0.863, (60.0, 50): 0.759, (100.0, 50): 0.605, (None, 50): 0.520, (50.0, 40): 0.555}
    wanted = {key: Wanted("paper", key[0], 50, key[1], 25, 0.0) for key in known}
    runs = Runs(s, 2, wanted.values())
    runs.results = compute(runs.trials)
    for key, value in known.items():
        assert runs.values(wanted[key]).mean() == pytest.approx(value, abs=0.03)


def test_pictures_for_print_hold_real_text(tmp_path):
    from nbafl.paper.pictures import Panel, Picture, Series, write

    line = Series("N = 50", (1, 2, 3), np.array([[0.3, 0.2, 0.1]]), 0)
    files = write(Picture(4, "paper", "a picture", (Panel((line,), "round", "training loss"),)), tmp_path)
    assert "training loss" in files.svg.read_text()
    printed = files.svg.with_suffix(".pdf").read_bytes()
    width = float(re.search(rb"/MediaBox \[ 0 0 ([0-9.]+)", printed)[1])
    assert width == pytest.approx(3.5 * 72)
    assert b"/FontDescriptor" in printed
