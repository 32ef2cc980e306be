"""One run over several processes, started by torchrun: the same model bit for bit, and a rank that dies loses nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from free_ports import free_port

pytestmark = pytest.mark.e2e

CASES = Path(__file__).with_name("ranks_cases.py")
TRAINING = (
    *("run", "--preset", "paper", "--clients", 12, "--samples", 30, "--device", "cpu", "--seed", 3),
    *("--calibration", "exact", "--rounds", 60),
)


def torchrun(ranks: int, *words: object) -> list[str]:
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        ranks,
        "--master-port",
        free_port(),
    ]
    return [str(word) for word in (*launcher, *words)]


def finished(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)


def test_every_engine_gives_the_same_model_for_every_number_of_ranks(tmp_path: Path) -> None:
    commands = [[sys.executable, str(CASES), str(tmp_path / "alone")]]
    commands += [torchrun(ranks, CASES, tmp_path / str(ranks)) for ranks in (2, 3)]
    found = []
    for command in commands:
        outcome = finished(command)
        assert outcome.returncode == 0, outcome.stderr[-2000:]
        found.append(json.loads(outcome.stdout.splitlines()[-1]))
    shares = [each.pop("as on GPUs") for each in found]
    assert len(found[0]) >= 13
    assert found[1] == found[0]
    assert found[2] == found[0]
    np.testing.assert_allclose(shares[1], shares[0], atol=1e-6)
    np.testing.assert_allclose(shares[2], shares[0], atol=1e-6)


def model(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_a_rank_that_dies_ends_the_run_in_a_sentence_and_another_number_of_ranks_goes_on(
    tmp_path: Path,
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    alone = finished([sys.executable, "-m", "nbafl.cli", *map(str, TRAINING), "--out", str(whole)])
    assert alone.returncode == 0, alone.stderr
    process = subprocess.Popen(
        torchrun(2, "-m", "nbafl.cli", *TRAINING, "--out", broken), stderr=subprocess.PIPE, text=True
    )
    lines = broken / "metrics.jsonl"
    deadline = time.monotonic() + 600
    while not (lines.is_file() and lines.read_text().count("\n") >= 3):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(second_rank(process.pid), signal.SIGKILL)
    _, said = process.communicate(timeout=600)
    assert process.returncode != 0
    assert "another rank of this run ended" in said
    assert "Traceback" not in said.split("nbafl: another rank")[0]
    assert not (broken / "model.safetensors").exists()
    resumed = finished(torchrun(3, "-m", "nbafl.cli", "run", "--resume", broken))
    assert resumed.returncode == 0, resumed.stderr[-2000:]
    assert model(broken) == model(whole)


def second_rank(launcher: int) -> int:
    """The process id of rank 1 among the launcher's children."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    for child in map(int, children):
        if b"\0RANK=1\0" in b"\0" + Path(f"/proc/{child}/environ").read_bytes():
            return child
    raise AssertionError(f"none of {children} is rank 1")


def test_bad_usage_is_said_once(tmp_path: Path) -> None:
    outcome = finished(torchrun(2, "-m", "nbafl.cli", "run", "--clients", 0, "--out", tmp_path / "none"))
    assert outcome.returncode != 0
    assert outcome.stderr.count("nbafl: clients") == 1
