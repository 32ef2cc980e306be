"""A federation whose clients and server are killed at random instants, and what their files say afterwards."""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from federation_processes import Federation, Nursery, Process, wait_for

from nbafl.flower.roster import Roster


class Soak:
    """The processes, and who was killed how often."""

    def __init__(self, nursery: Nursery, folder: Path, clients: int, rounds: int, seed: int) -> None:
        self.nursery, self.chance = nursery, random.Random(seed)
        options = ("--rounds", rounds, "--samples", 50, "--model", "softmax", "--adversary", "curious-server")
        rule = ("--sensitivity", "gradient", "--features", "raw", "--epsilon", 10, "--delta", 1e-5)
        self.federation = Federation(folder, clients, *options, *rule)
        self.rounds = rounds
        self.killed: Counter[str] = Counter()
        self.memory: list[float] = []
        self.server = self._serve()
        self.clients = {client: self._join(client) for client in range(clients)}

    def _serve(self) -> Process:
        return self.nursery.start("serve", *self.federation.serve("--wait", 600, "--timeout", 600))

    def _join(self, client: int) -> Process:
        # One whose restart took longer than the server's farewell gives up after longer than a restart of the server takes.
        limits = ("--epsilon", 1e6, "--outputs", 10, "--patience", 200)
        options = self.federation.join(client, *limits, data="hostile.data:fifty")
        return self.nursery.start(f"join-{client}", *options)

    def kill_client(self) -> None:
        client = self.chance.choice(list(self.clients))
        if self.clients[client].alive:
            self.clients[client].kill()
            self.killed["clients"] += 1
        self.clients[client] = self._join(client)

    def kill_server(self) -> None:
        if self.server.code is None and self.server.alive:
            with suppress(OSError, StopIteration):  # it may end by itself at this very moment
                self.memory.append(self.server.memory_mb)
            self.server.kill()
            self.killed["server"] += 1
        self.server = self._serve()

    def run(self, seconds: float, client_kills: int, server_kills: int) -> None:
        """Kill at instants drawn evenly over the time, sooner where the rounds run ahead of it."""
        instants = [(self.chance.uniform(0, seconds), self.kill_client) for _ in range(client_kills)]
        instants += [(self.chance.uniform(0, seconds), self.kill_server) for _ in range(server_kills)]
        wait_for(lambda: self.federation.metrics, "the first round", 1200)
        began = time.monotonic()
        for instant, kill in sorted(instants, key=lambda pair: pair[0]):
            while time.monotonic() - began < instant and not self._ahead(instant / seconds):
                time.sleep(0.05)
            if self.server.code is not None or time.monotonic() - began > 1.2 * seconds:
                break
            kill()
        self.seconds = time.monotonic() - began

    def _ahead(self, share: float) -> bool:
        """Whether more than this share of the rounds is done: no kill may come too late."""
        finished = (self.federation.home / "run" / "metrics.jsonl").read_bytes().count(b"\n")
        return self.server.code is not None or finished > share * self.rounds

    def finish(self, patience: float) -> list[int]:
        """Exit codes once the rounds are done; clients killed in their last moment are told goodbye as well."""
        codes = [self.server.finish(patience)]
        return codes + [
            client.finish() for client in self.clients.values() if client.alive or client.code is not None
        ]

    def counts(self) -> dict[str, object]:
        federation = self.federation
        released = {
            client: Counter(row.round for row in federation.ledger(client).rows() if row.kind == "release")
            for client in self.clients
        }
        for client in self.clients:
            federation.ledger(client).verify()
        # Numbers follow the roster, which is sorted by name: client-10 comes before client-2.
        places = [
            int(name.removeprefix("client-")) for name in Roster.load(federation.home / "roster.toml").names
        ]
        used = [(line["number"], places[index]) for line in federation.answers for index in line["answered"]]  # type: ignore[attr-defined]
        quarter = max(1, len(self.memory) // 4)
        return {
            "uploads_used": len(used),
            "unrecorded": sum(released[client][number] == 0 for number, client in used),
            "double": sum(count > 1 for rows in released.values() for count in rows.values()),
            "releases": sum(sum(rows.values()) for rows in released.values()),
            "rounds": len(federation.metrics),
            "server_mb_first_quarter": statistics.median(self.memory[:quarter]) if self.memory else None,
            "server_mb_last_quarter": statistics.median(self.memory[-quarter:]) if self.memory else None,
        }
