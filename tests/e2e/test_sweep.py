"""Sweeps as people run them: killed and taken up again, by local processes and on a Ray cluster of two nodes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from free_ports import free_port

pytestmark = pytest.mark.e2e

RUNNER = Path(__file__).with_name("sweep_runner.py")


def start(out: Path, runs: int, how: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(RUNNER), str(out), str(runs), how]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def make(out: Path, runs: int, how: str) -> bytes:
    process = start(out, runs, how)
    _, said = process.communicate(timeout=1800)
    assert process.returncode == 0, said[-3000:]
    return (out / "table.csv").read_bytes()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The table of all 24 runs, made by one process without interruption."""
    return make(tmp_path_factory.mktemp("sweep") / "whole", 24, "workers=1")


def test_killed_twice_it_goes_on_and_gives_the_same_table(tmp_path: Path, expected: bytes) -> None:
    out = tmp_path / "killed"
    for wanted in (3, 9):
        process = start(out, 24, "workers=2")
        assert process.stdout is not None
        for line in process.stdout:
            if int(line.split()[0]) >= wanted:
                break
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    kept = sum(1 for _ in out.glob("runs/*/model.safetensors"))
    assert kept >= 9
    assert make(out, 24, "workers=2") == expected


def test_a_killed_worker_does_not_end_the_sweep(tmp_path: Path, expected: bytes) -> None:
    out = tmp_path / "worker"
    process = start(out, 24, "workers=2")
    assert process.stdout is not None
    for line in process.stdout:
        if int(line.split()[0]) >= 4:
            break
    os.kill(a_worker_of(process.pid), signal.SIGKILL)
    _, said = process.communicate(timeout=1800)
    assert process.returncode == 0, said[-3000:]
    assert (out / "table.csv").read_bytes() == expected


def a_worker_of(parent: int) -> int:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    for child in map(int, children):
        if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
            return child
    raise AssertionError("no worker is running")


@pytest.fixture
def cluster() -> Iterator[tuple[str, int]]:
    """A real Ray cluster: a head and a second node; (its address, the second raylet's process id)."""
    ray = Path(sys.executable).with_name("ray")
    port = free_port()
    common = ["--num-cpus", "1", "--object-store-memory", "100000000", "--disable-usage-stats"]

    def node(*words: str) -> None:
        done = subprocess.run([ray, "start", *common, *words], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr

    with tempfile.TemporaryDirectory(prefix="nbafl-ray-", dir="/tmp", ignore_cleanup_errors=True) as place:
        head = ["--port", str(port), "--include-dashboard=false", "--node-ip-address", "127.0.0.1"]
        try:
            node("--head", "--temp-dir", place, *head)
            first = members(place, "raylet/raylet")
            node("--address", f"127.0.0.1:{port}")
            yield f"127.0.0.1:{port}", (members(place, "raylet/raylet") - first).pop()
        finally:  # `ray stop` would end everybody's clusters
            for member in members(place):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member, signal.SIGKILL)


def members(place: str, program: str = "") -> set[int]:
    """Processes of the cluster that keeps its files there."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = entry.joinpath("cmdline").read_bytes()
            if place.encode() in words and words.split(b"\0")[0].endswith(program.encode()):
                found.add(int(entry.name))
    return found


def test_on_a_cluster_that_loses_a_node_the_table_is_the_same(
    tmp_path: Path, expected: bytes, cluster: tuple[str, int]
) -> None:
    address, second = cluster
    out = tmp_path / "ray"
    process = start(out, 24, f"ray={address}")
    assert process.stdout is not None
    for line in process.stdout:
        if int(line.split()[0]) >= 6:
            break
    os.kill(second, signal.SIGKILL)
    _, said = process.communicate(timeout=1800)
    assert process.returncode == 0, said[-3000:]
    assert (out / "table.csv").read_bytes() == expected
