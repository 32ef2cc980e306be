"""A sweep end to end in this process: its runs, table, page, and what happens when it is interrupted or damaged."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from tests.paper_setting import Plan

import nbafl
from nbafl.data.federation import Federation
from nbafl.run import Run
from nbafl.studio import sweep_card
from nbafl.studio.run_folders import RunFolders

BASE = {
    "clients": 3,
    "samples": 30,
    "rounds": 3,
    "sensitivity": "gradient",
    "model": "softmax",
    "features": "raw",
    "delta": 1e-5,
    "lr": 0.5,
    "record_clip": 1.0,
    "server_momentum": 0.0,
}
GRID = {"epsilon": [1.0, 8.0], "adversary": ["broadcast", "curious-server"]}


def federation() -> Federation:
    rng = np.random.default_rng(5)
    centres = rng.normal(size=(3, 8))

    def part(count: int) -> tuple[np.ndarray, np.ndarray]:
        y = rng.integers(0, 3, count)
        return (centres[y] + rng.normal(size=(count, 8))).astype(np.float32), y

    return Federation.from_arrays(clients=[part(30) for _ in range(3)], test=part(60))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> nbafl.SweepTable:
    out = tmp_path_factory.mktemp("sweeps") / "one"
    return nbafl.sweep(Plan(**BASE), GRID, federation(), seeds=2, out=out, workers=1)


def test_the_table_has_a_row_a_run_and_pandas_reads_it(made: nbafl.SweepTable) -> None:
    frame = made.to_pandas()
    assert len(frame) == 8
    with open(made.path / "table.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == list(frame["name"])
    assert [float(row["test_accuracy"]) for row in rows] == list(frame["test_accuracy"])
    alone = Run.load(made.path / "runs" / rows[0]["name"])
    assert alone.metrics[-1]["test_accuracy"] == frame["test_accuracy"][0]
    assert alone.privacy["epsilon"] == frame["real_epsilon"][0]


def test_a_run_of_a_sweep_is_the_run_it_would_have_been_alone(made: nbafl.SweepTable, tmp_path: Path) -> None:
    row = made.rows[-1]
    plan = Plan(**{**BASE, "epsilon": row["epsilon"], "adversary": row["adversary"], "seed": row["seed"]})
    alone = nbafl.simulate(plan, federation(), out=tmp_path / "alone")
    swept = made.path / "runs" / row["name"] / "model.safetensors"
    assert swept.read_bytes() == (alone.path / "model.safetensors").read_bytes()


def test_the_best_setting_is_marked_and_can_be_run(made: nbafl.SweepTable) -> None:
    told = json.loads((made.path / "table.json").read_text())
    (best,) = [entry for entry in told["settings"] if entry["best"]]
    assert best["test_accuracy"]["mean"] == max(entry["test_accuracy"]["mean"] for entry in told["settings"])
    assert best["seeds"] == 2
    assert Plan.from_toml(made.path / "best.toml").epsilon == best["epsilon"]


def test_the_page_says_what_all_runs_cost_together(made: nbafl.SweepTable) -> None:
    page = (made.path / "index.html").read_text()
    assert "all of them compose" in page
    assert "src=" not in page
    assert "<link" not in page  # nothing is asked of the network
    worst = max(row["real_epsilon"] for row in made.rows)
    composed = {each["adversary"]: each["epsilon"] for each in made.composed()}
    assert composed["curious-server"] > worst


def test_an_epsilon_that_rests_on_a_premise_says_so_wherever_it_stands(tmp_path: Path) -> None:
    base = {**BASE, "local_steps": 2, "adversary": "eavesdropper"}
    grid = {"sensitivity": ["paper", "client"]}
    table = nbafl.sweep(
        Plan(**{**base, "sensitivity": "paper"}), grid, federation(), out=tmp_path / "s", workers=1
    )
    premises = {entry["sensitivity"]: entry["premise"] for entry in table.settings()}
    assert premises == {"paper": "if 2C/m holds", "client": ""}
    page = (table.path / "index.html").read_text()
    assert page.count("<strong>if 2C/m holds</strong>") == 1
    assert "sensitivity paper (if 2C/m holds)" in page  # the picture's legend
    entry = RunFolders(tmp_path).find("s")
    assert entry is not None
    assert sweep_card.draw(entry).count("if 2C/m holds") == 1


def test_a_second_call_keeps_what_is_whole_and_makes_what_is_damaged_again(
    made: nbafl.SweepTable,
) -> None:
    before = (made.path / "table.csv").read_bytes()
    kept, damaged = (made.path / "runs" / made.rows[number]["name"] for number in (0, 1))
    stamp = (kept / "model.safetensors").stat().st_mtime_ns
    content = (damaged / "model.safetensors").read_bytes()
    (damaged / "model.safetensors").write_bytes(content[:-4] + b"\0\0\0\1")
    made_again: list[str] = []
    nbafl.sweep(
        Plan(**BASE),
        GRID,
        federation(),
        seeds=2,
        out=made.path,
        workers=1,
        on_done=lambda *told: made_again.append(told[-1]),
    )
    assert made_again == ["kept", damaged.name]
    assert (kept / "model.safetensors").stat().st_mtime_ns == stamp
    assert (damaged / "model.safetensors").read_bytes() == content
    assert (made.path / "table.csv").read_bytes() == before


def test_held_out_records_choose_and_the_test_records_are_not_touched(tmp_path: Path) -> None:
    table = nbafl.sweep(
        Plan(**BASE), {"epsilon": [1.0]}, federation(), out=tmp_path / "held", workers=1, holdout=0.2
    )
    run = Run.load(tmp_path / "held" / "runs" / table.rows[0]["name"])
    assert run.plan.samples == 24
    assert "held-out training records" in (tmp_path / "held" / "index.html").read_text()
    assert Plan.from_toml(tmp_path / "held" / "best.toml").samples == 30
