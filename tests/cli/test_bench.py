"""`nbafl bench`: its table, and the environment that `--peers` makes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from nbafl.cli.bench import _peer_environment, _print, _run
from nbafl.errors import Refused
from nbafl.simulation.workloads import Measurement, find

STARTS_ANOTHER = "import subprocess, sys; child = subprocess.Popen(['sleep', '3600']); {note}; child.wait()"


def alive(number: int) -> bool:
    """Whether a process still runs (one that ended and was not yet collected does not)."""
    status = Path(f"/proc/{number}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def number_in(note: Path) -> int:
    deadline = time.monotonic() + 300
    while not (note.exists() and note.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return int(note.read_text())


def ends(number: int) -> bool:
    deadline = time.monotonic() + 300
    while alive(number) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(number)


def starter(note: Path) -> list[str]:
    write = f"open({str(note)!r}, 'w').write(str(child.pid))"
    return [sys.executable, "-c", STARTS_ANOTHER.format(note=write)]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_a_command_that_takes_too_long_ends_with_all_it_started(tmp_path: Path) -> None:
    note = tmp_path / "note"
    for limit in (2, 20, 200):  # where a busy machine takes longer to begin at all, it is given more time
        with pytest.raises(subprocess.TimeoutExpired):
            _run(starter(note), dict(os.environ), limit=limit)
        if note.exists() and note.read_text():
            break
    assert ends(number_in(note))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_an_interrupt_ends_all_that_was_started(tmp_path: Path) -> None:
    command = starter(tmp_path / "note")
    ours = f"import os; from nbafl.cli.bench import _run; _run({command!r}, dict(os.environ))"
    process = subprocess.Popen([sys.executable, "-c", ours], stderr=subprocess.DEVNULL)
    grandchild = number_in(tmp_path / "note")
    process.send_signal(signal.SIGINT)
    assert process.wait(300) != 0
    assert ends(grandchild)


def test_a_failed_installation_is_one_sentence_and_never_taken_for_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pip finds nothing, whatever this machine's settings are.
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", ""), ("CONFIG_FILE", os.devnull)):
        monkeypatch.setenv(f"PIP_{name}", value)
    left = tmp_path / ".venv-peers" / "lib" / "half"
    left.mkdir(parents=True)
    for _ in range(2):
        with pytest.raises(
            Refused, match=r"^The peers could not be installed: No matching distribution found for \S+\.$"
        ):
            _peer_environment(tmp_path, Console(quiet=True))
        assert not (tmp_path / ".venv-peers" / ".installed").exists()
    assert not left.exists()


def test_the_table_says_what_each_floor_counts(capsys: pytest.CaptureFixture[str]) -> None:
    measured = Measurement(
        "W1", 0.7, 1.2, 0.583, 1.5, 829.0, 0.835, "plain", "cpu", 190.8, 229.0, 4.66, 47.1, 91.0, 0.542, 1.29
    )
    _print(find("W1"), measured, {"pfl": 1.75, "flower": None})
    shown = capsys.readouterr().out
    for words in (
        "all products dense",
        "229",
        "zeros skipped",
        "4.66 dense + 47.1 sparse",
        "91 GFLOP/s",
        "2.5 ×",
    ):
        assert words in shown
