"""A client without torch says what one with torch would, and counts persons where these are protected."""

from __future__ import annotations

import math
import secrets
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from nbafl.flower import wire
from nbafl.flower.client import Client, parameters
from nbafl.flower.party import Party
from nbafl.flower.release import Broadcast, Releaser
from nbafl.flower.small_client import SmallClient, suits
from nbafl.flower.wire import Instruction
from nbafl.plan import Plan
from nbafl.privacy.ledger import Ledger, Limits
from nbafl.protocol.linear_regression import LinearRegression
from nbafl.simulation.models import build

SHAPE, CLASSES, RECORDS = (6,), 3, 50


def releaser(folder: Path, **fields: object) -> Releaser:
    rule = {"sensitivity": "gradient", "record_clip": 0.5, "lr": 0.4, "features": "raw", "model": "softmax"}
    plan = Plan(
        **{"clients": 2, "rounds": 3, "samples": RECORDS, "epsilon": 50.0, "delta": 0.01, **rule, **fields}
    )
    ledger = Ledger(folder / "l.sqlite", anchors=folder / "anchors")
    ledger.set_limits(Limits(1e9, 0.01))
    return Releaser(plan, ledger)


def records() -> tuple[np.ndarray, np.ndarray]:
    source = np.random.default_rng(3)
    return source.normal(size=(RECORDS, *SHAPE)).astype(np.float32), source.integers(0, CLASSES, RECORDS)


def ask(client: Party, number: int = 1) -> Message:
    plan = client.releaser.plan
    arrays = {name: value + np.float32(0.1) for name, value in parameters(model()).items()}
    asked = Instruction(plan.digest(), 1, secrets.token_hex(4), number).to_config()
    content = RecordDict({"arrays": wire.to_record(arrays), "config": ConfigRecord(asked)})
    message = Message(content, dst_node_id=7, message_type=MessageType.TRAIN)
    message.metadata.__dict__["_message_id"] = "m"
    return message


def model() -> object:
    return build("softmax", SHAPE, CLASSES, 0)


def small(folder: Path) -> SmallClient:
    return SmallClient(releaser(folder), LinearRegression(SHAPE, CLASSES), *records())


def test_both_clients_have_one_layout_and_train_alike(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    ours, theirs = small(tmp_path), Client(releaser(tmp_path / "a"), model(), *records())  # type: ignore[arg-type]
    assert ours.layout == theirs.layout
    start = np.random.default_rng(0).normal(size=ours.layout.dimension)
    asked = Broadcast(Instruction("", 1, "", 0), ours.layout, start)
    np.testing.assert_allclose(ours._train(asked), theirs._train(asked), rtol=1e-12)
    x = records()[0]
    np.testing.assert_allclose(ours._answers(start, x), theirs._answers(start, x), rtol=1e-5, atol=1e-6)


def test_its_upload_is_noised_and_on_the_ledger(tmp_path: Path) -> None:
    client = small(tmp_path)
    reply = client.handle(ask(client))
    assert reply is not None
    found = client.layout.vector(client.layout.read(reply.content["arrays"]))
    start = np.full(client.layout.dimension, np.float32(0.1), dtype=np.float64)
    expected = client._train(Broadcast(Instruction("", 1, "", 1), client.layout, start)) - start
    sigma, difference = float(client.releaser.noise.sigma_uplink[1]), found - expected
    assert 0 < np.abs(difference).max() < 7 * sigma
    assert abs(difference.std() / sigma - 1) < 7 / math.sqrt(2 * difference.size)
    assert [row.round for row in client.releaser.ledger.rows() if row.kind == "release"] == [1]


def test_it_is_for_plans_it_can_compute() -> None:
    rule = {
        "clients": 2,
        "rounds": 1,
        "samples": 50,
        "sensitivity": "gradient",
        "features": "raw",
        "delta": 0.01,
    }
    assert suits(Plan(model="softmax", **rule))
    assert not suits(Plan(model="mlp", **rule))
    assert not suits(Plan(model="softmax", **{**rule, "sensitivity": "paper"}))


def test_noise_made_for_many_persons_is_too_little_for_few_with_many_rows(tmp_path: Path) -> None:
    """Sizes count persons: a client of 5 persons with 10 rows each is none of 50."""
    given = releaser(tmp_path, person="name", dataset="tables", target="y")
    client = Client(given, model(), *records(), persons=np.full(5, RECORDS // 5))  # type: ignore[arg-type]
    reply = client.handle(ask(client))
    assert reply is not None
    assert reply.has_error()
    assert "fewer than the 50 persons" in reply.error.reason
