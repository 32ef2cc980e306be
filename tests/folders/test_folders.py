"""Folder formats: read without torch, and damaged ones answered in one sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nbafl import Plan
from nbafl.errors import DataError
from nbafl.folders import audits, files, reproductions
from nbafl.run import Run

READ_ALL = """
import sys
from nbafl import Run
from nbafl.folders import audits, homes, reproductions
from nbafl.studio import run_folders
run = Run.load(sys.argv[1])
assert run.metrics[-1]["round"] == run.rounds_done == 2
assert audits.read(run.path)["trials"] == 7
assert run_folders.RunFolders(run.path.parent).look()[0].rounds_done == 2
assert reproductions.visit(run.path).figures == ()
assert homes.HomeFolder(run.path).plan_file.is_file()
assert "torch" not in sys.modules, "torch was imported"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two finished rounds, a third being written, and an audit of the plan."""
    path = tmp_path / "runs" / "one"
    audits.write(path, Plan(), {"trials": 7})
    lines = "".join(files.as_line({"round": n, "seconds": 1.0, "train_loss": 1 / n}) for n in (1, 2))
    (path / "metrics.jsonl").write_text(lines + '{"round": 3, "sec')
    return path


def test_every_format_is_read_without_torch(folder: Path) -> None:
    subprocess.run([sys.executable, "-c", READ_ALL, str(folder)], check=True)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("{\n", "a line in it is not JSON"),
        ("[1, 2]\n", "a line in it is not a JSON object"),
        ('{"round": 1}\n', "a line in it is not a round's metrics"),
        ('{"round": "x", "seconds": 1}\n', "a line in it is not a round's metrics"),
    ],
)
def test_damaged_metrics_are_one_sentence(folder: Path, damage: str, told: str) -> None:
    (folder / "metrics.jsonl").write_text(damage)
    for read in (lambda run: run.metrics, lambda run: run.rounds_done, Run.summary):
        with pytest.raises(DataError, match=told):
            read(Run.load(folder))


def test_a_run_without_a_statement_says_so(folder: Path) -> None:
    with pytest.raises(DataError, match="the run is not finished"):
        _ = Run.load(folder).privacy


def test_lines_are_dropped_in_one_step_and_infinity_becomes_null(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text(files.as_line({"n": 1, "x": float("inf")}) + '{"n": 2, "x": NaN}\n{"n": 3}\n{"n": 4')
    files.keep_lines(path, lambda line: line["n"] < 3)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"n": 1, "x": None},
        {"n": 2, "x": None},
    ]


def test_verdicts_come_back_as_they_were_written(tmp_path: Path) -> None:
    entry = {"figure": 2, "claim": "c", "calibration": "paper", "verdict": "holds", "evidence": {"seeds": 3}}
    reproductions.write_verdicts(tmp_path, [entry])
    assert reproductions.read_verdicts(tmp_path) == [reproductions.Verdict(**entry)]
    (tmp_path / "verdicts.json").write_text('{"figure": 2}')
    with pytest.raises(DataError, match="it is not a list of verdicts"):
        reproductions.read_verdicts(tmp_path)
