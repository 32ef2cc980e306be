"""`nbafl run` for real: the paper's losses, crashes, Ctrl-C, a full disk, a user's own model and data."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from tests.paper_setting import OPTIONS

from nbafl.cli import run_command

pytestmark = pytest.mark.e2e

SEEDS = (0, 1, 2)
# math.md, section 13: training loss of the broadcast model, mean of 3 seeds, paper calibration, mu = 0.
LOSS_BY_EPSILON = {50: 0.863, 60: 0.759, 100: 0.605, None: 0.520}
LOSS_BY_CLIENTS = {50: 0.759, 60: 0.689, 80: 0.616, 100: 0.584}


def nbafl(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "nbafl.cli", *map(str, arguments)]


def trained(capsys, tmp_path, *arguments: object) -> dict:
    out = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
    code = run_command(["run", "--json", "--out", str(out), *OPTIONS, *map(str, arguments)])
    assert code == 0
    return json.loads(capsys.readouterr().out)


def mean_loss(capsys, tmp_path, *arguments: object) -> float:
    losses = [
        trained(capsys, tmp_path, "--mu", 0, "--eval-every", 25, "--seed", seed, *arguments)["train_loss"]
        for seed in SEEDS
    ]
    return sum(losses) / len(losses)


def test_the_papers_trade_off_between_privacy_and_loss(capsys, tmp_path):
    found = {}
    for epsilon, expected in LOSS_BY_EPSILON.items():
        noise = ("--no-noise",) if epsilon is None else ("--epsilon", epsilon)
        found[epsilon] = mean_loss(capsys, tmp_path, "--calibration", "paper", *noise)
        assert found[epsilon] == pytest.approx(expected, abs=0.03)
    assert found[50] > found[60] > found[100] > found[None]
    exact = mean_loss(capsys, tmp_path, "--calibration", "exact")
    assert exact < found[50]


def test_more_clients_help_as_the_paper_says(capsys, tmp_path):
    found = [
        mean_loss(capsys, tmp_path, "--calibration", "paper", "--epsilon", 60, "--clients", clients)
        for clients in LOSS_BY_CLIENTS
    ]
    assert found == pytest.approx(list(LOSS_BY_CLIENTS.values()), abs=0.03)
    assert found == sorted(found, reverse=True)


def test_a_run_says_what_it_guarantees(capsys, tmp_path):
    outcome = trained(capsys, tmp_path, "--epsilon", 50, "--rounds", 3)
    assert outcome["rounds_done"] == 3
    assert outcome["plan"]["guarantee"]["eavesdropper"]["epsilon"] == pytest.approx(50, rel=1e-6)
    folder = Path(outcome["run_dir"])
    names = {"plan.toml", "metrics.jsonl", "model.safetensors", "checkpoint", "privacy.json", "report.html"}
    assert names <= {path.name for path in folder.iterdir()}
    report = (folder / "report.html").read_text()
    for phrase in ("Privacy statement", "eavesdropper", "delta", "conditional", "<svg"):
        assert phrase in report
    assert "http://" not in report.replace("http://www.w3.org", "")
    assert "https://" not in report


SLOW = (
    *OPTIONS,
    "--rounds",
    25,
    "--local-steps",
    40,
    "--per-round",
    30,
    "--server-momentum",
    0.5,
    "--seed",
    3,
)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    subprocess.run(nbafl("run", "--json", "--out", out, *SLOW), check=True, capture_output=True)
    return out


def started_until(out: Path, rounds: int, *more: object) -> subprocess.Popen:
    """A run in a process of its own, once it has finished so many rounds."""
    process = subprocess.Popen(
        nbafl("run", "--out", out, *SLOW, *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    metrics = out / "metrics.jsonl"
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < rounds:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.002)
    return process


def assert_same_outcome(resumed: Path, whole: Path) -> None:
    ours, theirs = load_file(resumed / "model.safetensors"), load_file(whole / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert ours[name].tobytes() == theirs[name].tobytes()
    lines = [
        [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        for path in (resumed, whole)
    ]
    for ours_line, theirs_line in zip(*lines, strict=True):
        assert ours_line | {"seconds": 0} == theirs_line | {"seconds": 0}


@pytest.mark.parametrize("rounds", [1, 13, 24])
def test_kill_9_then_resume_gives_the_same_model_bit_for_bit(tmp_path, uninterrupted, rounds):
    out = tmp_path / "run"
    process = started_until(out, rounds)
    time.sleep(random.Random(rounds).uniform(0, 0.03))
    process.kill()
    process.wait()
    assert not (out / "report.html").exists()
    subprocess.run(nbafl("run", "--resume", out, "--json"), check=True, capture_output=True)
    assert_same_outcome(out, uninterrupted)


def test_ctrl_c_leaves_a_run_that_can_be_resumed(tmp_path, uninterrupted):
    out = tmp_path / "run"
    process = started_until(out, 5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 130
    assert b"Traceback" not in said
    assert b"--resume" in said
    subprocess.run(nbafl("run", "--resume", out, "--json"), check=True, capture_output=True)
    assert_same_outcome(out, uninterrupted)


def test_a_full_disk_is_one_sentence_and_keeps_what_was_there(tmp_path):
    out = tmp_path / "run"
    process = subprocess.run(
        nbafl("run", "--out", out, *OPTIONS, "--rounds", 2),
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert process.returncode == 1
    assert "Traceback" not in process.stderr
    assert "File too large" in process.stderr
    assert [path.name for path in (out / "checkpoint").iterdir()] == ["lock"]
    subprocess.run(nbafl("run", "--resume", out, "--json"), check=True, capture_output=True)


def test_two_processes_never_work_on_one_run(tmp_path):
    out = tmp_path / "run"
    process = started_until(out, 1, "--rounds", 5000)
    second = subprocess.run(nbafl("run", "--resume", out), capture_output=True, text=True)
    process.kill()
    process.wait()
    assert second.returncode == 1
    assert "another process" in second.stderr


CNN = """
from torch import nn

def tiny(shape, outputs):
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 5, stride=3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 8 * 8, outputs)
    )
"""


def test_a_users_own_model(tmp_path):
    (tmp_path / "my_models.py").write_text(CNN)
    command = nbafl(
        "run",
        "--json",
        *OPTIONS,
        "--model",
        "my_models:tiny",
        "--no-noise",
        "--rounds",
        15,
        "--clients",
        10,
        "--lr",
        0.3,
    )
    outcome = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    found = json.loads(outcome.stdout)
    assert found["test_accuracy"] > 0.6
    assert Path(tmp_path / found["run_dir"]).is_dir()


def write_clients(folder: Path, numbers: random.Random) -> None:
    """Four hospitals of unequal size; a categorical column, and an outcome that both columns decide."""
    for name, size in (("a", 30), ("b", 60), ("c", 90), ("d", 180)):
        lines = ["age,ward,outcome"]
        for _ in range(size):
            age, ward = numbers.random(), numbers.choice(["east", "west"])
            outcome = "ill" if age + (0.4 if ward == "west" else -0.4) > 0.5 else "well"
            lines.append(f"{age:.4f},{ward},{outcome}")
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


def test_a_users_own_csv_files_of_unequal_size(tmp_path, capsys):
    folder = tmp_path / "hospitals"
    folder.mkdir()
    write_clients(folder, random.Random(0))
    outcome = trained(
        capsys, tmp_path, "--dataset", folder, "--target", "outcome", "--model", "softmax", "--lr", 1,
        "--rounds", 40, "--epsilon", 50, "--delta", "1e-3", "--clip", 10,
    )  # fmt: skip
    assert outcome["train_accuracy"] > 0.85
    assert len(outcome["plan"]["noise"]["sigma_uplink"]) == 4
    assert outcome["plan"]["guarantee"]["eavesdropper"]["epsilon"] == pytest.approx(50, rel=1e-6)
