"""Whether a server runs: a process of this machine is looked at, one of another machine is believed while it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nbafl.cli import run_command
from nbafl.flower import processes, status
from nbafl.plan import Plan

PRIVACY = {
    "epsilon": 1.0, "delta": 1e-5, "adversary": "broadcast", "unit": "client", "adjacency": "replace", "premise": "proved",
    "assumptions": [],
}  # fmt: skip


def state(home: Path, pid: int, process: str, age: float = 0.0, phase: str = "training") -> str:
    found = {"time": time.time() - age, "pid": pid, "process": process, "phase": phase, "privacy": PRIVACY}
    (home / "status.json").write_text(json.dumps(found))
    return str(status.read(home)["state"])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "plan.toml").write_text(Plan(clients=2, sensitivity="client", clip=1.0).to_toml())
    return tmp_path


def test_a_killed_server_is_not_running_from_that_moment_on(home: Path) -> None:
    server = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        known = processes.identity(server.pid)
        assert state(home, server.pid, known) == "running"
        assert state(home, server.pid, known, age=3600) == "running", "busy, or the machine slept"
        server.kill()
        os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
        assert state(home, server.pid, known) == "not running", "not reaped yet, and yet dead"
    finally:
        server.kill()
        server.communicate()
    assert state(home, server.pid, known) == "not running"
    assert state(home, server.pid, known, phase="finished") == "finished"


def test_another_process_with_the_same_number_is_not_the_server(home: Path) -> None:
    machine, _, _ = processes.identity().rpartition(" ")
    assert state(home, os.getpid(), processes.identity()) == "running"
    assert state(home, os.getpid(), f"{machine} 1") == "not running"


@pytest.mark.parametrize("process", ["another-boot pid:[1] 77", ""])
def test_a_number_of_another_machine_means_nothing_here(home: Path, process: str) -> None:
    assert state(home, 2**22 + 1, process) == "running", "no such process here, but it wrote just now"
    assert state(home, os.getpid(), process, age=60) == "not running", "that number is somebody else's here"


def test_with_a_roster_there_are_no_keys_to_put_anywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = [
        "--sensitivity",
        "client",
        "--clip",
        "1",
        "--rounds",
        "2",
        "--features",
        "raw",
        "--model",
        "softmax",
    ]
    prepare = ["serve", "--prepare", *plan]
    assert run_command(["keys", "make", "a", "b", "--out", str(tmp_path / "keys")]) == 0
    home = tmp_path / "fed"
    assert run_command([*prepare, "--home", str(home), "--roster", str(tmp_path / "keys")]) == 0
    said = capsys.readouterr().out
    assert "put every client" not in said
    assert f"the roster holds the keys of all 2 clients; next: nbafl serve --home {home}" in said
    assert run_command([*prepare, "--home", str(tmp_path / "other"), "--clients", "2"]) == 0
    assert f"into {tmp_path / 'other' / 'clients'}, then: nbafl serve" in capsys.readouterr().out
