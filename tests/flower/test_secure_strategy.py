"""Secure aggregation around a stock Flower app: strategy and mod over a grid in this process, nodes numbered by Flower."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity
from tests.flower.rooms import OneRoom

from nbafl.errors import DataError, UsageError
from nbafl.flower import Limits, SecureNbAFL, private, steps, wire
from nbafl.flower.keys import make_client_key, read_identity
from nbafl.flower.roster import Roster
from nbafl.flower.secure_strategy import Introductions
from nbafl.plan import Plan
from nbafl.privacy.ledger import Ledger

CLIENTS, SIZE = 4, 50
PLAN = Plan(
    clients=CLIENTS, rounds=3, samples=10, sensitivity="client", clip=1.0, epsilon=30.0, delta=1e-3,
    aggregation="secure", adversary="curious-server:1", min_answers=3, dimension=SIZE, features="raw",
    calibration="exact", server_momentum=0.0,
)  # fmt: skip
MODEL = {"weight": np.zeros((SIZE // 10, 10), dtype=np.float32), "batches": np.array(3)}
NODES = {77: "c3", 13: "c1", 99: "c4", 45: "c2"}
"""Flower's node ids and the names of whoever runs there: in no order that the roster has."""


@pytest.fixture(autouse=True)
def _identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBAFL_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("NBAFL_ANCHORS", str(tmp_path / "anchors"))
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 2, 3


class AppGrid(OneRoom):
    """SuperNodes in this process: each message starts the app anew, as Flower does."""

    def __init__(self, app: Callable[[], ClientApp], nodes: dict[int, str]) -> None:
        self.app, self.nodes, self.silent, self.steps = app, dict(nodes), set[int](), []

    def reply(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        self.steps.append(message.content["config"][steps.STEP])
        if node in self.silent:
            return None
        where = Context(1, node, {"nbafl-name": self.nodes[node]}, RecordDict(), {})
        reply = self.app()(message, where)
        reply.metadata.__dict__["_src_node_id"] = node
        return reply

    def get_node_ids(self) -> list[int]:
        return [node for node in self.nodes if node not in self.silent]


class Federation:
    """Keys, a roster, a stock app with the mod, and a grid of its nodes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.keys = folder, folder / "keys"
        public = [make_client_key(name, self.keys)[1] for name in sorted(NODES.values())]
        self.roster = Roster.of([read_identity(file) for file in public], 10)
        self.grid = AppGrid(self.app, NODES)

    def app(self) -> ClientApp:
        mod = private(PLAN, roster=self.roster, key=self.keys, limits=Limits(1e9, 1e-3))
        app = ClientApp(mods=[mod])

        @app.train()
        def train(received: Message, context: Context) -> Message:
            """Knows nothing of secure aggregation: client i moves every weight by i/100."""
            assert set(received.content) == {"arrays", "config"}
            assert received.content["config"]["lr"] == 0.1
            model = {name: array.numpy().copy() for name, array in received.content["arrays"].items()}
            model["weight"] += np.float32(int(str(context.node_config["nbafl-name"])[1:]) / 100)
            metrics = MetricRecord({"num-examples": 10})
            return Message(
                RecordDict({"arrays": wire.to_record(model), "metrics": metrics}), reply_to=received
            )

        app.evaluate()(train)
        return app

    def strategy(self) -> SecureNbAFL:
        return SecureNbAFL(PLAN, self.roster, self.folder / "server", wait=1.0, grace=0.0)

    def start(self, **options: object) -> tuple[np.ndarray, list[int]]:
        """The weights at the end, and how many were in each round's sum."""
        result = self.strategy().start(
            self.grid, wire.to_record(MODEL), train_config=ConfigRecord({"lr": 0.1}), **options
        )
        assert result.arrays["batches"].numpy() == 3
        answered = [int(each["answered"]) for each in result.train_metrics_clientapp.values()]
        return result.arrays["weight"].numpy().astype(np.float64).ravel(), answered

    def rows(self, name: str) -> list[int]:
        ledger = Ledger(self.folder / "state" / f"ledger-{name}.sqlite", must_exist=True)
        ledger.verify()
        rounds = [row.round for row in ledger.rows() if row.kind == "release"]
        ledger.close()
        return rounds


def noise(uploads: int) -> float:
    """Standard deviation of a coordinate of a mean."""
    return float(PLAN.noise_scales().sigma_uplink[0]) / uploads**0.5


def test_a_stock_app_trains_under_secure_aggregation(tmp_path: Path) -> None:
    """Three rounds: the model moves by the mean of what clients trained, and every client's ledger has every round."""
    federation = Federation(tmp_path)
    weights, answered = federation.start()
    assert answered == [4, 4, 4]
    moved = 3 * np.mean([1, 2, 3, 4]) / 100
    assert abs(weights.mean() - moved) < 7 * noise(4) * (3 / SIZE) ** 0.5
    assert weights.std() < 2 * noise(4) * 3**0.5
    for name in NODES.values():
        assert federation.rows(name) == [1, 2, 3]
    sent = federation.grid.steps
    assert sent[:8] == ["name"] * 4 + ["open"] * 4
    assert sent[8:24] == ["prepare"] * 4 + ["train"] * 4 + ["agree"] * 4 + ["unmask"] * 4
    assert (
        sent[24:] == (["train"] * 4 + ["agree"] * 4 + ["unmask"] * 4) * 2
    )  # prepares travel with the last unmask


def test_a_client_that_stays_away_is_not_in_the_sum_and_too_few_lose_the_round(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    asked = federation.grid.send_and_receive

    def leaving(messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Client c2 falls silent in the first round's train, two more in the second's."""
        messages = list(messages)
        config = messages[0].content["config"]
        if config[steps.STEP] == "train":
            federation.grid.silent = {1: {45}, 2: {45, 77}, 3: set()}[config["nbafl-round"]]
        return asked(messages, timeout=timeout)

    federation.grid.send_and_receive = leaving  # type: ignore[method-assign]
    strategy = federation.strategy()
    strategy.grace = 1.0  # round 3: everybody is back
    config, arrays = ConfigRecord({"lr": 0.1}), wire.to_record(MODEL)
    _, arrays = strategy.resume(arrays)
    first, metrics = strategy.make_round(1, arrays, config, federation.grid, 60)
    assert metrics["answered"] == 3
    assert strategy.last is not None
    assert set(strategy.last.missing) == {1}
    federation.grid.silent = set()
    second, metrics = strategy.make_round(2, first, config, federation.grid, 60)
    assert metrics["answered"] == 0
    assert (second["weight"].numpy() == first["weight"].numpy()).all()
    federation.grid.silent = set()
    _, metrics = strategy.make_round(3, second, config, federation.grid, 60)
    assert metrics["answered"] == 4
    assert federation.rows("c1") == [1, 2, 3], "a lost round is paid"


def test_a_server_started_again_goes_on_where_it_was(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    strategy, config = federation.strategy(), ConfigRecord({"lr": 0.1})
    done, arrays = strategy.resume(wire.to_record(MODEL))
    assert done == 0
    arrays, _ = strategy.make_round(1, arrays, config, federation.grid, 60)
    again = federation.strategy()
    done, found = again.resume(wire.to_record(MODEL))
    assert done == 1
    assert (found["weight"].numpy() == arrays["weight"].numpy()).all()
    _, answered = federation.start()
    assert answered == [4, 4]
    assert federation.rows("c1") == [1, 2, 3]


def test_a_node_is_who_it_proves_to_be(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A stranger, a key of nobody, and a node that repeats what somebody else signed before are no clients."""
    federation, heard = Federation(tmp_path), list[Message]()
    make_client_key("stranger", federation.keys)
    federation.grid.nodes[5] = "stranger"
    asked = federation.grid.send_and_receive

    def repeating(messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = asked(messages, timeout=timeout)
        for place, reply in enumerate(replies):
            if reply.metadata.src_node_id == 13:
                heard.append(reply)
            if reply.metadata.src_node_id == 6:
                body = heard[0].content[steps.BODY]
                replies[place] = Message(
                    RecordDict({**reply.content, steps.BODY: body}), metadata=reply.metadata
                )
        return replies

    federation.grid.send_and_receive = repeating  # type: ignore[method-assign]
    nodes = Introductions(PLAN, federation.roster, federation.grid, 60)
    with caplog.at_level(logging.CRITICAL):
        assert nodes() == {1: 13, 2: 45, 3: 77, 4: 99}
        federation.grid.nodes[6] = "c2"
        assert nodes() == {1: 13, 2: 45, 3: 77, 4: 99}, "node 6 repeated what client 1 had signed"
    assert len(heard) == 1, "whoever is known is not asked again"
    federation.grid.silent = {45}
    federation.grid.nodes[46] = "c2"
    assert nodes()[2] == 46, "the same client under another of Flower's numbers"


def test_what_is_not_the_next_step_is_refused_by_the_mod(tmp_path: Path) -> None:
    federation = Federation(tmp_path)

    def reason(kind: str, content: RecordDict) -> str:
        message = Message(content, dst_node_id=13, message_type=kind)
        message.metadata.__dict__["_message_id"] = "m"
        where = Context(1, 13, {"nbafl-name": "c1"}, RecordDict(), {})
        return str(federation.app()(message, where).error.reason)

    asked = wire.Instruction(PLAN.digest(), 1, "t", 0)
    assert "only training" in reason(MessageType.EVALUATE, steps.question("train", b"", asked))
    plain = RecordDict({"arrays": wire.to_record(MODEL), "config": ConfigRecord({**asked.to_config()})})
    assert "nbafl-step" in reason(MessageType.TRAIN, plain), "an upload in the plain"
    wrong = wire.Instruction(PLAN.digest(), 1, "t", 1)
    assert "client 1 of the roster, not 2" in reason(MessageType.TRAIN, steps.question("open", b"", wrong))
    other = wire.Instruction("0" * 64, 1, "t", 0)
    assert "not the one this client agreed to" in reason(
        MessageType.TRAIN, steps.question("name", b"", other)
    )


def test_what_the_strategy_cannot_do_is_one_sentence(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    strategy = federation.strategy()
    for call in (strategy.configure_train, strategy.aggregate_train):
        with pytest.raises(UsageError, match="a round has three exchanges"):
            call(1, ArrayRecord(), ConfigRecord(), federation.grid)
    short = Roster.of([read_identity(federation.keys / f"c{n}.pub") for n in (1, 2, 3)], 10)
    with pytest.raises(DataError, match="the roster has 3 clients, the plan 4"):
        SecureNbAFL(PLAN, short, tmp_path / "x")
    with pytest.raises(UsageError, match="key must be this client's key file"):
        private(PLAN, roster=federation.roster)
