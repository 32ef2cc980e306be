"""Ports for the servers of tests."""

from __future__ import annotations

import random
import socket

# Below the ports that Linux gives to outgoing connections: a server that is killed and started again finds its own free.
_CANDIDATES = iter(random.SystemRandom().sample(range(10_000, 32_000), 22_000))


def free_port() -> int:
    """A port on which nobody listens, never the same twice in a process."""
    for port in _CANDIDATES:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise AssertionError("no free port")
