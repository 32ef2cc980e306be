"""Ports that tests give to servers: nobody else's, neither Ray's nor those of another process of the suite."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PLACE = Path(__file__).parent / "e2e"


def handed_out(worker: int) -> set[int]:
    """All ports that one of two processes would ever give."""
    code = "import free_ports; print(*free_ports._CANDIDATES)"
    environment = {**os.environ, "PYTEST_XDIST_WORKER": f"gw{worker}", "PYTEST_XDIST_WORKER_COUNT": "2"}
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=PLACE, env=environment, capture_output=True, text=True, check=True
    )
    return set(map(int, said.stdout.split()))


def test_no_port_is_anybody_elses() -> None:
    """CI saw a Ray cluster that was given a port of its own workers: ten thousand of them were handed out."""
    one, other = handed_out(0), handed_out(1)
    assert not one & other
    assert len(one) > 1000
    assert len(other) > 1000
    assert min(one | other) > 19_999, "Ray's workers"
    assert max(one | other) < 32_768, "outgoing connections"
