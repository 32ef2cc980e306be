"""A thousand malformed uploads over TLS: every one is rejected, and the model is the one without them."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import httpx
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from free_ports import free_port
from hostile.client import HostileClient
from tests.paper_setting import Plan
from torch import nn

from nbafl.flower import frames, keys, postbox, wire
from nbafl.flower.certificates import make_certificates
from nbafl.flower.client import Client, parameters
from nbafl.flower.hub import Hub
from nbafl.flower.node import Connection, stay
from nbafl.flower.release import Releaser
from nbafl.flower.server import Server
from nbafl.flower.wire import Instruction
from nbafl.privacy.ledger import Ledger, Limits
from nbafl.privacy.noise import SecureGaussian

pytestmark = pytest.mark.e2e

HONEST, MALICIOUS, ROUNDS = 2, 50, 20
PLAN = Plan(
    clients=HONEST + MALICIOUS,
    rounds=ROUNDS,
    sensitivity="client",
    clip=0.5,
    epsilon=50,
    delta=1e-2,
    adversary="curious-server",
    model="softmax",
    lr=0.5,
    mu=0,
)
SHAPE, CLASSES = (5,), 3
Arrays = dict[str, np.ndarray]
Line = TypeVar("Line", bound=Connection)


def model() -> nn.Module:
    """One array, so that a reply has few parts."""
    layer = nn.Linear(*SHAPE, CLASSES, bias=False)
    nn.init.zeros_(layer.weight)
    return layer


def data(client: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(client)
    x = generator.standard_normal((30, *SHAPE)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 1)


# --- one way to be wrong each: from the honest reply's arrays and config, and a source of chance -------------------


def poison(value: float) -> Callable[[Arrays, dict, random.Random], RecordDict]:
    def change(arrays: Arrays, config: dict, chance: random.Random) -> RecordDict:
        name = chance.choice(sorted(arrays))
        arrays[name].flat[chance.randrange(arrays[name].size)] = value
        return content(arrays, config)

    return change


def reshaped(arrays: Arrays, config: dict, chance: random.Random) -> RecordDict:
    name = chance.choice(sorted(arrays))
    shape = chance.choice([(1,), (0,), (7, 7), (*arrays[name].shape, 1), ()])
    return content({**arrays, name: np.zeros(shape, dtype=np.float32)}, config)


def retyped(arrays: Arrays, config: dict, chance: random.Random) -> RecordDict:
    name = chance.choice(sorted(arrays))
    kind = chance.choice([np.float64, np.float16, np.int32, np.int64, np.complex64, np.bool_, "S4"])
    return content({**arrays, name: np.zeros(arrays[name].shape).astype(kind)}, config)


def renamed(arrays: Arrays, config: dict, chance: random.Random) -> RecordDict:
    name = chance.choice(sorted(arrays))
    value = arrays.pop(name)
    return content(
        {**arrays, name + chance.choice(["x", ".", ""]) * chance.randrange(1, 3) + "?": value}, config
    )


def missing(arrays: Arrays, config: dict, chance: random.Random) -> RecordDict:
    arrays.pop(chance.choice(sorted(arrays)))
    return content(arrays, config)


def truncated(arrays: Arrays, config: dict, chance: random.Random) -> RecordDict:
    made = content(arrays, config)
    array = made["arrays"][chance.choice(sorted(arrays))]
    array.data = array.data[: chance.randrange(len(array.data))]
    return made


def scrambled(arrays: Arrays, config: dict, chance: random.Random) -> RecordDict:
    made = content(arrays, config)
    array = made["arrays"][chance.choice(sorted(arrays))]
    start = chance.randrange(60)  # somewhere in the header, so that it cannot be right by accident
    array.data = array.data[:start] + chance.randbytes(8) + array.data[start + 8 :]
    return made


def lying(arrays: Arrays, config: dict, chance: random.Random) -> RecordDict:
    name = chance.choice(sorted(arrays))
    made = content(arrays, config)
    honest = made["arrays"][name].data
    made["arrays"][name] = Array(
        "float32", arrays[name].shape, "numpy.ndarray", honest.replace(b"<f4", b"<f8")
    )
    return made


def replayed(arrays: Arrays, config: dict, chance: random.Random) -> RecordDict:
    wrong = chance.choice(
        [
            {wire.ROUND: config[wire.ROUND] - 1},
            {wire.ROUND: config[wire.ROUND] + 1},
            {wire.TICKET: "0" * 32},
            {wire.PLAN: "f" * 64},
            {wire.ROUND: str(config[wire.ROUND])},
            {wire.TICKET: 5},
            {wire.SPEAKS: 1},
        ]
    )
    return content(arrays, {**config, **wrong})


def strange(arrays: Arrays, config: dict, chance: random.Random) -> RecordDict:
    record = wire.to_record(arrays)
    return chance.choice(
        [
            RecordDict({}),
            RecordDict({"arrays": record}),
            RecordDict({"nbafl": ConfigRecord(config)}),
            RecordDict({"arrays": MetricRecord({"loss": 1.0}), "nbafl": ConfigRecord(config)}),
            RecordDict({"arrays": record, "nbafl": MetricRecord({"loss": 1.0})}),
            RecordDict({"other": record, "nbafl": ConfigRecord(config)}),
            RecordDict({"arrays": ArrayRecord(), "nbafl": ConfigRecord(config)}),
        ]
    )


KINDS = [
    poison(np.nan),
    poison(np.inf),
    poison(-np.inf),
    poison(1e30),
    poison(1e4),
    reshaped,
    retyped,
    renamed,
    missing,
    truncated,
    scrambled,
    lying,
    replayed,
    strange,
]


def content(arrays: Arrays, config: dict) -> RecordDict:
    record = ArrayRecord({name: Array(value) for name, value in arrays.items()})
    return RecordDict({"arrays": record, "nbafl": ConfigRecord(config)})


class Intruder(HostileClient):
    """A registered client that sends what it should not."""

    def attack(
        self, sent: Callable[[], dict[int, Instruction]], node: int, chance: random.Random, incomplete: bool
    ) -> None:
        """Answer the next question wrongly."""
        while (found := self.receive()) is None:
            continue
        name, received = found
        asked = sent()[node]
        config = dict(asked.answered())
        arrays = {name: value.copy() for name, value in parameters(model()).items()}
        if incomplete:
            self.post(
                name, garbled(frames.encode(Message(content(arrays, config), reply_to=received)), chance)
            )
        else:
            self.send(name, Message(chance.choice(KINDS)(arrays, config, chance), reply_to=received))


def garbled(block: bytes, chance: random.Random) -> bytes:
    """A reply that ends too early, or goes on, or is no message at all."""
    cut = chance.randrange(len(block))
    flipped = bytearray(block)
    flipped[chance.randrange(4)] ^= 1 << chance.randrange(8)
    return chance.choice([block[:cut], block + b"x", chance.randbytes(50), b"", bytes(flipped)])


class Gathering:
    """A server with its hub, two honest clients in threads, and connections for the others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        certificates = make_certificates(["127.0.0.1"], folder / "tls")
        private = [keys.make_client_key(f"{n:02}", folder)[0] for n in range(PLAN.clients)]
        public = [keys.read_public_key(f"{path}.pub") for path in private]
        port = free_port()
        self.hub = Hub("127.0.0.1", port, certificates, public, 2**20)
        self.server = Server(PLAN, model(), self.hub, wait=600, min_answers=HONEST, timeout=600)
        self.server.strategy.grace = 0.0
        self.address, self.certificates, self.private = f"127.0.0.1:{port}", certificates, private

    def connect(self, kind: type[Line], client: int) -> Line:
        key = keys.read_private_key(self.private[client])
        line = kind(self.address, self.certificates.authority, key, 2**20)
        line._client.timeout = httpx.Timeout(600)
        return line

    def honest(self, client: int) -> threading.Thread:
        ledger = Ledger(self.folder / f"{client}.sqlite", anchors=self.folder / "anchors")
        ledger.set_limits(Limits(1e6, 1e-2))
        party = Client(Releaser(PLAN, ledger), model(), *data(client))
        arguments = (self.connect(Connection, client), party.handle, lambda: False, 600.0)
        thread = threading.Thread(target=stay, args=arguments, daemon=True)
        thread.start()
        return thread


@pytest.fixture
def noiseless(monkeypatch: pytest.MonkeyPatch) -> None:
    """The models of two runs can only be compared without noise."""
    monkeypatch.setattr(
        SecureGaussian, "add", lambda _, vector, *__, **___: np.array(vector, dtype=np.float64)
    )


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """All parties share one interpreter here: nobody counts as gone because a busy machine delayed its heartbeat."""
    monkeypatch.setattr(postbox, "SILENCE", 1200.0)


@pytest.fixture
def quiet_logs() -> Iterator[None]:
    """Flower logs every request; writing tens of thousands of lines takes longer than the requests."""
    loggers = [logging.getLogger(name) for name in ("flwr", "nbafl", "httpx", "httpcore")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.mark.usefixtures("noiseless", "quiet_logs", "patient")
def test_a_thousand_malformed_uploads_change_nothing(tmp_path: Path) -> None:
    attacked = Gathering(tmp_path / "attacked")
    attacks, rejected = run_under_attack(attacked)
    assert attacks == MALICIOUS * ROUNDS == 1000
    assert rejected == attacks
    quiet = Gathering(tmp_path / "quiet")
    with quiet.hub:
        threads = [quiet.honest(client) for client in range(HONEST)]
        while len(list(quiet.hub.exchange.get_node_ids())) < HONEST:
            time.sleep(0.05)
        quiet.server.strategy.wait = 0.5
        for _ in range(ROUNDS):
            quiet.server.step()
        quiet.server.say_goodbye("finished")
        for thread in threads:
            thread.join(600)
    assert attacked.server.vector.norm() > 0.1
    assert (attacked.server.vector == quiet.server.vector).all()


def run_under_attack(gathering: Gathering) -> tuple[int, int]:
    """(attacks made, attacks rejected) over all rounds; in the last one the replies are no messages."""
    attacks, rejected, server = 0, 0, gathering.server
    with gathering.hub, ExitStack() as stack, ThreadPoolExecutor(MALICIOUS + 1) as worker:
        threads = [gathering.honest(client) for client in range(HONEST)]
        intruders = [gathering.connect(Intruder, HONEST + number) for number in range(MALICIOUS)]
        for intruder in intruders:
            stack.enter_context(intruder.activated())
        for number in range(1, ROUNDS + 1):
            stepping = worker.submit(server.step)
            attacking = [
                worker.submit(
                    intruder.attack,
                    lambda: server.strategy._sent,
                    node,
                    random.Random(1000 * number + node),
                    number == ROUNDS,
                )
                for node, intruder in enumerate(intruders, HONEST + 1)
            ]
            for attack in attacking:
                attack.result(600)
            stepping.result(600)
            happened = server.strategy.last
            assert happened is not None
            assert happened.answered == list(range(HONEST))
            attacks += len(attacking)
            rejected += len(happened.missing)
            # A refusal in the client's own words would mean that it was believed to have said no.
            assert not server.strategy.gone
        stack.close()
        gathering.server.say_goodbye("finished")
        for thread in threads:
            thread.join(600)
    return attacks, rejected
