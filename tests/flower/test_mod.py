"""The mod around somebody else's training code: what leaves is private, everything else stays at home."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity
from tests.paper_setting import Plan

from nbafl.errors import DataError, UsageError
from nbafl.flower import Limits, private, wire
from nbafl.flower.wire import Instruction

PLAN = Plan(clients=3, rounds=4, sensitivity="client", clip=1.0, epsilon=20, delta=1e-5)
SIZE = 30_000
MODEL = {
    "layer.weight": np.full((100, 300), 0.25, dtype=np.float32),
    "norm.batches": np.array(5),
    "layer.bias": np.zeros(4, dtype=np.float64),
}
Training = Callable[[Message, Context], Message]


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBAFL_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("NBAFL_ANCHORS", str(tmp_path / "anchors"))
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 2, 3


def message(round: int = 1, kind: str = MessageType.TRAIN, model: object = None, **config: object) -> Message:
    asked = Instruction(PLAN.digest(), round, secrets.token_hex(4), 1).to_config()
    content = RecordDict(
        {
            "arrays": wire.to_record(MODEL) if model is None else model,
            "config": ConfigRecord({"lr": 0.1, **asked, **config}),
        }
    )
    made = Message(content, dst_node_id=7, message_type=kind)
    made.metadata.__dict__["_message_id"] = "a"
    return made


def context(**node_config: object) -> Context:
    return Context(1, 7, node_config or {"partition-id": 0}, RecordDict(), {})


def training(change: float = 50.0) -> Training:
    def train(received: Message, _: Context) -> Message:
        assert received.content["config"]["lr"] == 0.1
        model = {name: array.numpy().copy() for name, array in received.content["arrays"].items()}
        model["layer.weight"][0, 0] += change
        model["norm.batches"] += 1
        metrics = MetricRecord({"num-examples": 123, "train_loss": 0.25})
        return Message(RecordDict({"arrays": wire.to_record(model), "metrics": metrics}), reply_to=received)

    return train


def call(train: Training, asked: Message, where: Context | None = None, **options: object) -> Message:
    app = ClientApp(mods=[private(PLAN, **options)])
    app.train()(train)
    app.evaluate()(train)
    app.query()(train)
    return app(asked, where or context())


def test_only_the_clipped_and_noised_model_leaves() -> None:
    asked = message()
    reply = call(training(), asked)
    assert set(reply.content) == {"arrays", "nbafl"}
    assert dict(reply.content["nbafl"]) == {
        name: asked.content["config"][name]
        for name in ("nbafl-plan", "nbafl-round", "nbafl-ticket", "nbafl-protocol")
    }
    arrays = {name: array.numpy() for name, array in reply.content["arrays"].items()}
    assert arrays["norm.batches"] == 5, "whole numbers go back as they came"
    assert arrays["layer.weight"].dtype == np.float32
    assert arrays["layer.bias"].dtype == np.float64
    sigma = float(PLAN.noise_scales().sigma_uplink[1])
    change = (arrays["layer.weight"].astype(np.float64) - 0.25).ravel()
    assert abs(change[1:].std() / sigma - 1) < 6 / math.sqrt(2 * SIZE)
    assert abs(change[0] - 1.0) < 6.5 * sigma  # 50 clipped to C = 1


def test_noise_hides_a_client_that_did_nothing_as_well() -> None:
    arrays = call(training(0.0), message()).content["arrays"]
    assert np.abs(arrays["layer.weight"].numpy() - 0.25).max() > 0


def test_the_same_question_gets_the_same_bytes_and_the_budget_ends() -> None:
    first = [call(training(), message(round)).content["arrays"].object_id for round in range(1, 5)]
    again = call(training(), message(4)).content["arrays"].object_id
    assert again == first[-1]
    assert len(set(first)) == 4
    refused = call(training(), message(5))
    assert "round 5 is not one of the plan's 4 rounds" in refused.error.reason
    other = wire.to_record({**MODEL, "layer.bias": np.ones(4)})
    assert (
        "every round of this plan was already answered"
        in call(training(), message(4, model=other)).error.reason
    )


def test_an_owner_may_be_stricter_than_the_plan() -> None:
    reply = call(training(), message(), limits=Limits(0.01, 1e-6))
    assert "would pass one of this client's own limits" in reply.error.reason


@pytest.mark.parametrize("kind", [MessageType.EVALUATE, MessageType.QUERY])
def test_metrics_and_queries_are_refused(kind: str) -> None:
    assert "only training is answered" in call(training(), message(kind=kind)).error.reason


def test_another_plan_is_refused() -> None:
    reply = call(training(), message(**{"nbafl-plan": "0" * 64}))
    assert "not the one this client agreed to" in reply.error.reason


@pytest.mark.parametrize(
    "config", [{"nbafl-plan": 1}, {"nbafl-round": "one"}, {"nbafl-client": 99}, {"nbafl-client": -1}]
)
def test_malformed_instructions_are_refused(config: dict[str, object]) -> None:
    assert call(training(), message(**config)).has_error()


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e9])
def test_a_broken_broadcast_is_not_trained_on(value: float) -> None:
    model = wire.to_record({**MODEL, "layer.bias": np.full(4, value)})
    assert "broadcast model holds" in call(training(), message(model=model)).error.reason


@pytest.mark.parametrize("kind", [ValueError, DataError, wire.Malformed])
def test_an_exception_says_nothing_about_the_data(
    caplog: pytest.LogCaptureFixture, kind: type[Exception]
) -> None:
    def train(_: Message, __: Context) -> Message:
        raise kind("record of Mr Smith is odd")

    with caplog.at_level(logging.CRITICAL):
        reply = call(train, message())
    assert reply.error.reason == "training failed on the client; its own log says why."


@pytest.mark.parametrize(
    "content",
    [
        RecordDict({}),
        RecordDict({"arrays": ArrayRecord({"other": Array(np.zeros(3))})}),
        RecordDict({"arrays": wire.to_record(MODEL), "more": wire.to_record(MODEL)}),
        RecordDict({"arrays": wire.to_record({**MODEL, "layer.bias": np.zeros(5)})}),
    ],
)
def test_what_cannot_be_clipped_does_not_leave(content: RecordDict) -> None:
    for answer in (content, Error(1, "the mean age is 61.5")):
        reply = call(lambda received, _: Message(answer, reply_to=received), message())  # noqa: B023
        assert reply.error.reason == "training failed on the client; its own log says why."


def test_a_node_without_a_name_has_no_ledger_and_no_answer() -> None:
    assert "has no name" in call(training(), message(), context(other=1)).error.reason
    assert call(training(), message(), context(**{"nbafl-name": "north"})).has_content()
    assert call(training(), message(), context(**{"nbafl-name": "../x"})).has_error()


def test_where_the_ledger_lies_and_what_is_wrong_with_it_stays_at_home(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "ledger-0.sqlite").write_bytes(b"garbage" * 1000)
    reply = call(training(), message())
    assert reply.error.reason == "this client cannot answer; its own log says why."


def test_two_clients_have_two_ledgers(tmp_path: Path) -> None:
    call(training(), message(), context(**{"partition-id": 0}))
    call(training(), message(), context(**{"partition-id": 1}))
    assert sorted(path.name for path in (tmp_path / "state").glob("*.sqlite")) == [
        "ledger-0.sqlite",
        "ledger-1.sqlite",
    ]


def test_units_that_need_nbafls_own_training_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="sensitivity must be client around training code"):
        private(Plan(sensitivity="paper"))
    (tmp_path / "plan.toml").write_text(PLAN.to_toml())
    assert callable(private(tmp_path / "plan.toml"))
