"""What secure aggregation costs: seconds and bytes a round beside the plain protocol and beside Flower's SecAgg+.

    python benchmarks/secure_cost.py [N ...]        # default: 10 20 50

Clients and server are those of a federation, in one process and without a network: real training (an MLP of 203,530
weights on 100 records), real noise, ledgers on disk, and the bytes of every message. Seconds are those of this process
on one core, whoever else is on the machine; read them as ratios within one run. The last lines open a sum with 5 of 50
and 20 of 200 clients gone, in simulation of the protocol.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Message
from flwr.supercore.task_identity import TaskIdentity

import flower_secagg
from nbafl.flower import wire
from nbafl.flower.client import Client, parameters
from nbafl.flower.keys import make_client_key, read_identity, read_signing_key
from nbafl.flower.release import Broadcast, Releaser
from nbafl.flower.roster import Roster
from nbafl.flower.secure_member import SecureMember, SecureReleaser
from nbafl.flower.secure_rounds import SecureRounds
from nbafl.flower.strategy import NbAFL
from nbafl.flower.wire import Instruction, Layout
from nbafl.plan import Plan
from nbafl.privacy.ledger import Ledger, Limits
from nbafl.secure import encoding, primitives
from nbafl.secure.client import Client as Machine
from nbafl.secure.server import Server
from nbafl.secure.state import Charge
from nbafl.secure.terms import Terms
from nbafl.simulation.models import build

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.flower.rooms import OneRoom

ROUNDS = 4


class Room(OneRoom):
    """A grid whose clients are in this process; counts the bytes of every message both ways."""

    def __init__(self, clients: dict[int, Client]) -> None:
        self.clients, self.down, self.up = clients, 0, 0

    def reply(self, message: Message) -> Message:
        reply = self.clients[message.metadata.dst_node_id].handle(message)
        assert reply is not None, "a client must answer"
        assert not reply.has_error(), reply.error.reason
        self.down += size(message)
        self.up += size(reply)
        return reply

    def get_node_ids(self) -> list[int]:
        return list(self.clients)


def size(message: Message) -> int:
    """Bytes of what a message carries."""
    arrays = sum(
        len(array.data) for record in message.content.array_records.values() for array in record.values()
    )
    values = (value for record in message.content.config_records.values() for value in record.values())
    return arrays + sum(_length(value) for value in values)


def _length(value: object) -> int:
    if isinstance(value, list):
        return sum(_length(each) for each in value)
    return len(value) if isinstance(value, (str, bytes)) else 8


def plan_of(clients: int, aggregation: str) -> Plan:
    return Plan(
        clients=clients, samples=100, rounds=ROUNDS, epsilon=8.0, delta=1e-5, sensitivity="gradient", model="mlp",
        adversary="curious-server:1" if clients > 1 else "curious-server", aggregation=aggregation, features="raw",
    )  # fmt: skip


def parties(plan: Plan, folder: Path) -> tuple[dict[int, Client], Roster]:
    """Clients with ledgers and keys of their own; node ids are 100 + index."""
    identities = []
    for number in range(1, plan.clients + 1):
        _, public = make_client_key(f"c{number:03}", folder / "keys")
        identities.append(read_identity(public))
    roster = Roster.of(identities, 100)
    source = np.random.default_rng(1)
    model = build("mlp", (1, 28, 28), 10, 0)
    clients = {}
    for number in range(1, plan.clients + 1):
        place = folder / f"{plan.aggregation}-{number}"
        ledger = Ledger(place / "ledger.sqlite", anchors=folder / "anchors")
        ledger.set_limits(Limits(1e9, 1e-5))
        x = source.uniform(size=(100, 1, 28, 28)).astype(np.float32)
        y = source.integers(0, 10, 100)
        if plan.aggregation == "plain":
            clients[99 + number] = Client(Releaser(plan, ledger), model, x, y)
            continue
        releaser = SecureReleaser(plan, ledger)
        key = read_signing_key(folder / "keys" / f"c{number:03}")
        member = SecureMember(releaser, roster, number, key, place / "secrets")
        clients[99 + number] = Client(releaser, model, x, y, secure=member)
    return clients, roster


def measure(clients: int, aggregation: str) -> tuple[float, float]:
    """(seconds of this process, bytes) of a round: the median of those after the first, which also opens."""
    plan = plan_of(clients, aggregation)
    model = build("mlp", (1, 28, 28), 10, 0)
    layout = Layout.of(parameters(model))
    arrays = wire.to_record(parameters(model))
    seconds, sizes = [], []
    with tempfile.TemporaryDirectory() as place:
        members, roster = parties(plan, Path(place))
        room = Room(members)
        nodes = {node - 99: node for node in members}
        rounds: Any = None
        if aggregation == "secure":
            rounds = SecureRounds(plan, roster, Path(place) / "server", room, lambda: nodes)
        strategy = NbAFL(plan, clients={node: node - 100 for node in members}, own_clients=True)
        for number in range(1, ROUNDS + 1):
            started, before = time.process_time(), room.down + room.up
            if rounds is not None:
                rounds.mean(number, arrays, layout)
            else:
                messages = list(strategy.configure_train(number, arrays, ConfigRecord(), room))
                arrays, _ = strategy.aggregate_train(number, room.send_and_receive(messages))
            seconds.append(time.process_time() - started)
            sizes.append(room.down + room.up - before)
    return float(np.median(seconds[1:])), float(np.median(sizes[1:]))


def measure_flower(clients: int) -> tuple[float, float]:
    """The same for SecAgg+ of Flower, around the same training, without noise and ledger."""
    plan, model = plan_of(clients, "plain"), build("mlp", (1, 28, 28), 10, 0)
    layout = Layout.of(parameters(model))
    with tempfile.TemporaryDirectory() as place:
        members, _ = parties(plan_of(1, "plain"), Path(place))
        asked = Instruction(plan.digest(), 1, "t", 0)

        def train(received: list[np.ndarray]) -> list[np.ndarray]:
            named = dict(zip(parameters(model), received, strict=True))
            vector = members[100]._train(Broadcast(asked, layout, layout.vector(named)))
            return list(layout.arrays(vector, named).values())

        made = flower_secagg.rounds(clients, list(parameters(model).values()), train, size, ROUNDS)
    return tuple(float(np.median([each[i] for each in made[1:]])) for i in (0, 1))  # type: ignore[return-value]


class Memory:
    """A store that keeps nothing for long: this is about arithmetic."""

    def __init__(self) -> None:
        self.parts: tuple[bytes | None, bytes | None] = (None, None)

    def load(self) -> tuple[bytes | None, bytes | None]:
        return self.parts

    def save(self, expected: int, state: bytes, secrets: bytes, charge: Charge | None = None) -> None:  # noqa: ARG002
        self.parts = state, secrets

    def check(self, round: int, commitment: bytes) -> None: ...
    def upload(self, round: int, commitment: bytes) -> bytes: ...  # type: ignore[empty-body]


class Shelf(dict[str, bytes]):
    def put(self, name: str, content: bytes) -> None:
        self[name] = content


def server_with_many_gone(clients: int = 200, gone: int = 20, dimension: int = 203_530) -> dict[str, float]:
    """Seconds of the server's own work and of one client's, and KB beside model and upload."""
    keys = [os.urandom(32) for _ in range(clients)]
    public = tuple(primitives.verifying_key(key) for key in keys)
    terms = Terms(b"p" * 32, b"r" * 32, public, 5, clients - gone, 9, dimension, 4)
    machines = {n: Machine(terms, n, keys[n - 1], Memory()) for n in terms.numbers}
    server = Server(terms, Shelf())
    for machine in machines.values():
        server.add_open(machine.open())
    for machine in machines.values():
        machine.join(server.opens or ())
    prepared = {number: machine.prepare(1) for number, machine in machines.items()}
    running = server.begin(1, b"b" * 32, prepared)
    words, alive = encoding.to_words(np.arange(dimension) - 7, 4), range(1, clients - gone + 1)
    client = 0.0
    for number in alive:
        request = running.train_request(number)
        started = time.process_time()
        upload = machines[number].train(request, lambda _: words)
        client += (time.process_time() - started) / len(alive)
        running.add_upload(upload)
    agree = running.agree_request()
    for number in alive:
        running.add_agreement(machines[number].agree(agree))
    unmask = running.unmask_request()
    for number in alive:
        running.add_reveal(machines[number].unmask(unmask))
    started = time.process_time()  # of this core, whoever else is on the machine
    opened = running.open()
    seconds = time.process_time() - started
    expected = (np.arange(dimension) - 7) * len(alive)
    assert (encoding.to_integers(opened.words, 4) == expected).all(), "the sum is wrong"
    up = len(prepared[1]) + len(machines[1].unmask(unmask)) + len(machines[1].agree(agree))
    down = len(running.train_request(1).encode()) + len(unmask.encode()) + len(agree.encode())
    return {"server_seconds": seconds, "client_seconds": client, "up_kb": up / 1024, "down_kb": down / 1024}


def main(counts: list[int]) -> None:
    torch.set_num_threads(1)
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 2, 3
    print("| N | plain: s, MB a round | secure: s, MB; times plain | SecAgg+: s, MB; times plain |")
    print("| --- | --- | --- | --- |")
    for clients in counts:
        plain = measure(clients, "plain")
        others = [measure(clients, "secure"), measure_flower(clients)]
        cells = [
            f"{seconds:.2f}, {sent / 1e6:.1f}; {seconds / plain[0]:.2f}, {sent / plain[1]:.2f}"
            for seconds, sent in others
        ]
        print(f"| {clients} | {plain[0]:.2f}, {plain[1] / 1e6:.1f} | {' | '.join(cells)} |", flush=True)
    for clients, gone in ((50, 5), (200, 20)):
        found = server_with_many_gone(clients, gone)
        told = ", ".join(f"{name} {value:.2f}" for name, value in found.items())
        print(f"{gone} of {clients} gone, d = 203,530, one core: {told}", flush=True)


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]] or [10, 20, 50])
