"""The short form of benchmarks/federation_soak.py: kill -9 at random instants on both sides."""

from __future__ import annotations

from pathlib import Path

import pytest
from federation_processes import Nursery
from killed_processes import Soak

pytestmark = pytest.mark.e2e


def test_clients_and_server_killed_at_random_instants(tmp_path: Path, nursery: Nursery) -> None:
    rounds = 40
    soak = Soak(nursery, tmp_path, clients=11, rounds=rounds, seed=14)
    soak.run(seconds=10, client_kills=12, server_kills=3)
    soak.finish(300)
    found = soak.counts()
    assert soak.killed["server"] >= 1
    assert soak.killed["clients"] >= 2
    assert found["unrecorded"] == found["double"] == 0
    assert found["rounds"] == rounds
