"""Ports for the servers of tests."""

from __future__ import annotations

import os
import random
import socket

# Below the ports that Linux gives to outgoing connections: a server that is killed and started again finds its own free.
# Above those that Ray keeps for its workers (10002 to 19999): a cluster whose own port is one of them does not start.
# Apart from those of the other processes of this suite: a port that nobody listens on yet looks free to all of them.
_WORKER, _WORKERS = (
    int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")),
    int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")),
)
_OWN = range(20_000 + _WORKER, 32_000, _WORKERS)
_CANDIDATES = iter(random.SystemRandom().sample(_OWN, len(_OWN)))


def free_port() -> int:
    """A port on which nobody listens, never the same twice in a process, nor in two workers of one suite."""
    for port in _CANDIDATES:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise AssertionError("no free port")
