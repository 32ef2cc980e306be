"""A secure federation of real processes over TLS in which clients and server are killed at random instants.

    python tests/e2e/secure_soak.py        # 10 clients, M = 7, 20 rounds, 30 kills of clients, 10 of the server

The short form runs in CI (test_secure_federation.py). Both check the same: every sum that was opened has at least M
parts and equals what the clients encoded, nothing left a client unrecorded, ledgers verify, the model trains.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import federation_processes
import numpy as np
from federation_processes import Federation, Nursery, Process, is_listening, wait_for

PATIENCE = 200
"""Seconds a client goes on trying when the server is away: longer than a restart takes on a busy machine."""


@dataclass
class Outcome:
    rounds: int
    opened: int
    fewest: int
    first_accuracy: float
    last_accuracy: float
    client_kills: int
    server_kills: int
    seconds: float


class TracingNursery(Nursery):
    """Processes that also write down what was encoded and opened."""

    def __init__(self, folder: Path, trace: Path) -> None:
        plain = federation_processes.NURSERY
        os.environ["NBAFL_TRACE"] = str(trace)
        federation_processes.NURSERY = "import secure_trace; secure_trace.install()\n" + plain
        try:
            super().__init__(folder)
        finally:
            federation_processes.NURSERY = plain


def soak(
    folder: Path,
    *,
    clients: int,
    fewest: int,
    accomplices: int,
    rounds: int,
    client_kills: int,
    server_kills: int,
    seed: int,
    pause: tuple[float, float] = (0.3, 1.5),
) -> Outcome:
    """One federation from the first open to the goodbye, with that many kills at random instants."""
    source, started = random.Random(seed), time.monotonic()
    trace = folder / "trace"
    named = f"curious-server:{accomplices}" if accomplices else "curious-server"
    federation = Federation(
        folder, clients, "--samples", 100, "--rounds", rounds, "--sensitivity", "gradient", "--model", "softmax",
        "--epsilon", 40, "--delta", 1e-3, "--lr", 0.6, "--server-momentum", 0.5, "--aggregation", "secure",
        "--adversary", named, "--min-answers", fewest,
    )  # fmt: skip
    nursery = TracingNursery(folder, trace)
    try:
        # the roster is made of the key files when the server starts, and clients need it: it comes first
        server = nursery.start("server", *federation.serve("--wait", 300, "--timeout", 300))
        wait_for(lambda: (federation.home / "handout" / "roster.toml").is_file(), "the roster")
        wait_for(lambda: is_listening(federation.port), "the server")
        parties = [_party(nursery, federation, client) for client in range(clients)]
        wait_for(lambda: federation.metrics, f"the first round:\n{server.output}", 300)
        kills = ["client"] * client_kills + ["server"] * server_kills
        source.shuffle(kills)
        done, restarted = {"client": 0, "server": 0}, set()
        for place, kind in enumerate(kills):  # spread over the rounds, each at a random instant
            due = 1 + place * (rounds - 2) / len(kills)
            wait_for(partial(_reached, federation, due), "a round", 900)
            time.sleep(source.uniform(*pause))
            if _reached(
                federation, rounds
            ):  # a fast machine is through: a client started now would wait for nobody
                break
            if kind == "server":
                server.kill()
                server = nursery.start("server", *federation.serve("--wait", 300, "--timeout", 300))
            else:
                victim = source.randrange(clients)
                parties[victim].kill()
                parties[victim] = _party(nursery, federation, victim)
                restarted.add(victim)
            done[kind] += 1
        assert server.finish(900) == 0, server.output
        for client, party in enumerate(parties):
            check_end(party, client in restarted)
        opened = check_sums(trace, fewest)
        check_ledgers(federation, trace, clients)
        made = federation.metrics
        return Outcome(
            len(made), opened, fewest, float(made[0]["test_accuracy"]), float(made[-1]["test_accuracy"]),
            done["client"], done["server"], time.monotonic() - started,
        )  # fmt: skip
    finally:
        nursery.close()


def _reached(federation: Federation, rounds: float) -> bool:
    return len(federation.metrics) >= rounds


def _party(nursery: Nursery, federation: Federation, client: int) -> Process:
    return nursery.start(f"client-{client}", *federation.join(client, "--patience", PATIENCE))


def check_end(party: Process, restarted: bool) -> None:
    """A client is told of the end; one whose restart took longer than the server's farewell finds nobody there."""
    code = party.finish(PATIENCE + 300)
    too_late = restarted and code == 1 and "could not be reached" in party.output
    assert code == 0 or too_late, party.output


def check_sums(trace: Path, fewest: int) -> int:
    """Every sum opened is that of the words its members encoded under its own c; returns how many there are."""
    found = sorted(trace.glob("sum-*.json"))
    for place in found:
        said = json.loads(place.read_text())
        number = place.stem.removeprefix("sum-")
        assert len(said["members"]) >= fewest
        words = [
            np.load(trace / f"words-{number}-{said['commitment'][:16]}-{member}.npy")
            for member in said["members"]
        ]
        total = np.load(place.with_suffix(".npy"))
        np.testing.assert_array_equal(np.sum(words, axis=0, dtype=total.dtype), total)
    return len(found)


def check_ledgers(federation: Federation, trace: Path, clients: int) -> None:
    """Whoever is in a sum has a row of that round with that c; one row a round; chains and uploads fit."""
    rows = {}
    for client in range(clients):
        ledger = federation.ledger(client)
        ledger.verify()
        releases = [row for row in ledger.rows() if row.kind == "release"]
        assert len({row.round for row in releases}) == len(releases), "two uploads in one round"
        rows[client + 1] = {(row.round, row.broadcast) for row in releases}
        ledger.close()
    for place in trace.glob("sum-*.json"):
        said, number = json.loads(place.read_text()), int(place.stem.removeprefix("sum-"))
        for member in said["members"]:
            assert (number, said["commitment"]) in rows[member], f"client {member}, round {number}: no row"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        outcome = soak(
            Path(place), clients=10, fewest=7, accomplices=1, rounds=20, client_kills=30, server_kills=10,
            seed=int(sys.argv[1]) if len(sys.argv) > 1 else 1,
        )  # fmt: skip
    print(outcome)
    assert outcome.opened >= outcome.rounds / 2
    assert outcome.last_accuracy > outcome.first_accuracy
