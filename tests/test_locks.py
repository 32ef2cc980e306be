"""Lock files between real processes: one holder, seen by others, gone with its process however that ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nbafl import locks
from nbafl.errors import Refused

HOLDER = """
import sys, time
from pathlib import Path
from nbafl import locks
with locks.hold(Path(sys.argv[1]), 0.0, "taken"):
    print("held", flush=True)
    time.sleep(3600)
"""


def test_a_lock_is_seen_kept_and_gone_with_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not locks.is_held(path)
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert locks.is_held(path)
        with pytest.raises(Refused, match=r"^busy\.$"), locks.hold(path, 0.05, "busy."):
            pytest.fail("two holders")
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert not locks.is_held(path)
    with locks.hold(path, 0.0, "busy."):
        assert locks.is_held(path)


def test_asking_needs_no_right_to_write(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch(mode=0o400)
    assert not locks.is_held(path)
