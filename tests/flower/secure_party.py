"""A secure federation in one room: clients with ledgers and secrets on disk, and a grid without a network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from flwr.app import Message
from tests.flower.rooms import OneRoom

from nbafl.flower import wire
from nbafl.flower.client import Client, parameters
from nbafl.flower.keys import make_client_key, read_identity, read_signing_key
from nbafl.flower.roster import Roster
from nbafl.flower.secure_member import SecureMember, SecureReleaser
from nbafl.flower.secure_rounds import SecureRounds
from nbafl.flower.wire import Layout
from nbafl.plan import Plan
from nbafl.privacy.ledger import Ledger, Limits
from nbafl.simulation.models import build

SHAPE, CLASSES, RECORDS, CLIENTS = (6,), 3, 40, 4


class Room(OneRoom):
    """A grid whose clients stand in the same room; `silent` clients do not answer."""

    def __init__(self, clients: dict[int, Client]) -> None:
        self.clients, self.silent, self.seen = clients, set(), []

    def reply(self, message: Message) -> Message | None:
        if message.metadata.dst_node_id in self.silent:
            return None
        self.seen.append(message)
        reply = self.clients[message.metadata.dst_node_id].handle(message)
        assert reply is not None
        return reply

    def get_node_ids(self) -> list[int]:
        return list(self.clients)


class Party:
    def __init__(self, folder: Path, **fields: object) -> None:
        given = {
            "clients": CLIENTS, "rounds": 3, "samples": RECORDS, "model": "softmax", "epsilon": 30.0, "delta": 1e-3,
            "sensitivity": "gradient", "aggregation": "secure", "adversary": "curious-server:1", "min_answers": 3,
            "dimension": 21, "lr": 0.5,
        }  # fmt: skip
        self.plan, self.folder = Plan(**{**given, **fields}), folder
        names = [make_client_key(f"c{number}", folder / "keys")[1] for number in range(1, CLIENTS + 1)]
        self.roster = Roster.of([read_identity(name) for name in names], RECORDS)
        self.model = build("softmax", SHAPE, CLASSES, 0)
        self.layout = Layout.of(parameters(self.model))
        self.arrays = wire.to_record(parameters(self.model))
        self.room = Room({number: self.client(number) for number in range(1, CLIENTS + 1)})
        self.rounds = self.server()

    def client(self, number: int) -> Client:
        """A client as a fresh process would make it from its disk."""
        ledger = Ledger(self.folder / f"{number}" / "ledger.sqlite", anchors=self.folder / "anchors")
        ledger.set_limits(Limits(1e9, 1e-3))
        releaser = SecureReleaser(self.plan, ledger)
        key = read_signing_key(self.folder / "keys" / f"c{number}")
        member = SecureMember(releaser, self.roster, number, key, self.secrets(number))
        source = np.random.default_rng(number)
        x = source.uniform(-0.3, 0.3, (RECORDS, *SHAPE)).astype(np.float32)
        return Client(releaser, self.model, x, source.integers(0, CLASSES, RECORDS), secure=member)

    def secrets(self, number: int) -> Path:
        return self.folder / f"{number}" / "secure.secrets"

    def restart(self, number: int) -> None:
        self.room.clients[number].releaser.ledger.close()
        self.room.clients[number] = self.client(number)

    def server(self) -> SecureRounds:
        nodes = {number: number for number in range(1, CLIENTS + 1)}

        def there() -> dict[int, int]:
            return {number: node for number, node in nodes.items() if node not in self.room.silent}

        return SecureRounds(
            self.plan, self.roster, self.folder / "server", self.room, there, wait=1.0, grace=0.0
        )

    def mean(self, number: int) -> np.ndarray:
        return self.rounds.mean(number, self.arrays, self.layout).vector

    def rows(self, number: int) -> list[object]:
        return [row for row in self.room.clients[number].releaser.ledger.rows() if row.kind == "release"]
