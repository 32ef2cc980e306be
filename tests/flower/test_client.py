"""nbafl's own client: every rule trains as the protocol says, and the server's messages are only data."""

from __future__ import annotations

import logging
import math
import secrets
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from tests.paper_setting import Plan
from torch import nn

from nbafl.errors import DataError, Refused, UsageError
from nbafl.flower import wire
from nbafl.flower.client import Client, parameters
from nbafl.flower.home import prepare
from nbafl.flower.inspection import NO_ROOM, Facts, model_hash, refused
from nbafl.flower.local_data import client_data, make_schema, read_schema, server_data, write_schema
from nbafl.flower.release import Broadcast, Releaser
from nbafl.flower.wire import Instruction
from nbafl.privacy.ledger import Ledger, Limits
from nbafl.protocol import flatten
from nbafl.rules import upload
from nbafl.simulation.models import build

SHAPE, CLASSES, RECORDS = (6,), 3, 50
RULES = {
    "paper": {"sensitivity": "paper", "clip": 2.0},
    "client": {"sensitivity": "client", "clip": 0.3},
    "gradient": {"sensitivity": "gradient", "record_clip": 0.5, "lr": 0.4},
    "proximal": {
        "sensitivity": "proximal",
        "model": "softmax",
        "feature_norm": 2.0,
        "mu": 0.5,
        "tolerance": 0.01,
    },
}


def records() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(3)
    x = generator.uniform(-0.3, 0.3, (RECORDS, *SHAPE)).astype(np.float32)
    return x, generator.integers(0, CLASSES, RECORDS)


def party(tmp_path: Path, **fields: object) -> Client:
    given = {
        "clients": 2,
        "rounds": 3,
        "samples": RECORDS,
        "model": "softmax",
        "epsilon": 50.0,
        "delta": 0.01,
    }
    plan = Plan(**{**given, **fields})
    ledger = Ledger(tmp_path / "l.sqlite", anchors=tmp_path / "anchors")
    ledger.set_limits(Limits(1e9, 0.01))
    return Client(Releaser(plan, ledger), build("softmax", SHAPE, CLASSES, 0), *records())


def ask(client: Client, round: int = 1, kind: str = MessageType.TRAIN, **config: object) -> Message:
    asked = Instruction(client.releaser.plan.digest(), round, secrets.token_hex(4), 1).to_config()
    arrays = parameters(build("softmax", SHAPE, CLASSES, 0))
    content = RecordDict({"arrays": wire.to_record(arrays), "config": ConfigRecord({**asked, **config})})
    message = Message(content, dst_node_id=7, message_type=kind)
    message.metadata.__dict__["_message_id"] = "m"
    return message


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_trains_as_the_protocol_says_and_is_noised(tmp_path: Path, rule: str) -> None:
    client = party(tmp_path, **RULES[rule])
    reply = client.handle(ask(client))
    assert reply is not None
    assert set(reply.content) == {"arrays", "nbafl"}
    found = client.layout.vector(client.layout.read(reply.content["arrays"]))
    x, y = (torch.from_numpy(part) for part in records())
    model = build("softmax", SHAPE, CLASSES, 0)
    expected = upload(model, x, y, flatten(model), client.training).double().numpy()
    sigma = float(client.releaser.noise.sigma_uplink[1])
    difference = found - expected
    assert 0 < np.abs(difference).max() < 7 * sigma
    assert abs(difference.std() / sigma - 1) < 7 / math.sqrt(2 * difference.size)


def test_record_bounds_hold_below_the_rounding_of_float32(tmp_path: Path) -> None:
    """2 eta G/m = 2e-9 here: training in float32 would move large weights by more when one record changes."""
    client = party(tmp_path, sensitivity="gradient", record_clip=1e-6, lr=0.05)
    start, bound = np.full(client.layout.dimension, 3.3), 2 * 0.05 * 1e-6 / RECORDS
    asked = Broadcast(Instruction("", 1, "", 0), client.layout, start)
    before = client._train(asked)
    client.x[0] *= -1
    client.y[0] = (client.y[0] + 1) % CLASSES
    after = client._train(asked)
    assert 0 < np.linalg.norm(after - before) <= bound * (1 + 1e-6)


class RunningMean(nn.Module):
    """Keeps a running mean as a plain attribute: a record would enter the gradients of all that follow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.mean = nn.Linear(*SHAPE, CLASSES), torch.zeros(SHAPE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean.to(x.dtype) + 0.1 * x.detach().mean(0)
        return self.layer(x - self.mean)


def test_a_model_that_remembers_is_refused_and_would_forget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = party(tmp_path, sensitivity="gradient", record_clip=0.5, lr=0.4)
    with pytest.raises(UsageError, match="a model that remembers nothing"):
        Client(client.releaser, RunningMean(), *records())
    # Were it to slip past the question, every chunk would still train a copy that has seen nothing.
    monkeypatch.setattr("nbafl.protocol.record_gradients.CHUNK_BYTES", 1)
    client.model = RunningMean().double().train()
    start, bound = np.full(client.layout.dimension, 0.1), 2 * 0.4 * 0.5 / RECORDS
    asked = Broadcast(Instruction("", 1, "", 0), client.layout, start)
    before = [client._train(asked) for _ in range(2)]
    client.model, client.x[0] = RunningMean().double().train(), 1e4
    after = [client._train(asked) for _ in range(2)]
    moved = [float(np.linalg.norm(a - b)) for a, b in zip(after, before, strict=True)]
    assert 0 < max(moved) <= bound * (1 + 1e-9)


def test_the_end_is_a_message_too(tmp_path: Path) -> None:
    client = party(tmp_path)
    assert client.handle(ask(client, kind=MessageType.QUERY, **{wire.END: "finished"})) is None
    assert client.ended == "finished"
    client.handle(ask(client, kind=MessageType.QUERY, **{wire.END: "\x1b[2J" + "x" * 10**6}))
    assert client.ended == " [2J" + "x" * 296, "what a server says reaches a terminal"


@pytest.mark.parametrize(
    ("config", "kind", "complaint"),
    [
        ({"nbafl-plan": "f" * 64}, "train", "not the one this client agreed to"),
        ({"nbafl-client": 9}, "train", "number 10 is not one of the plan's 2 clients"),
        ({"nbafl-round": "1"}, "train", "must be int"),
        ({"nbafl-round": 0}, "train", "round 0 is not one of the plan's 3 rounds"),
        ({"nbafl-round": 4}, "train", "round 4 is not one of the plan's 3 rounds"),
        ({}, "evaluate", "not agreed to an evaluation"),
        ({}, "query", "only training is answered"),
    ],
)
def test_what_was_not_agreed_is_refused(
    tmp_path: Path, config: dict[str, object], kind: str, complaint: str
) -> None:
    client = party(tmp_path)
    reply = client.handle(ask(client, kind=kind, **config))
    assert reply is not None
    assert complaint in reply.error.reason
    assert client.releaser.ledger.spent().releases == 0


def facts_of(client: Client) -> Facts:
    return Facts(client.releaser.plan.digest(), "", model_hash(client.layout), "", time.time(), 4e9, 0)


def checked(client: Client, facts: Facts) -> Message:
    """What a client answers before the first round."""
    message = ask(client, kind=MessageType.QUERY)
    message.content["config"] = facts.to_config(1)
    reply = client.handle(message)
    assert reply is not None
    return reply


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"epsilon": 5000.0}, "too large for noise of finite precision"),
        (
            {"sensitivity": "gradient", "local_steps": 1, "samples": 10**9},
            "uploads would not hide each other",
        ),
    ],
)
def test_noise_that_cannot_be_made_is_found_before_the_first_round(
    tmp_path: Path, fields: dict[str, object], why: str
) -> None:
    client = party(tmp_path, **fields)
    client.units = 10**9
    assert why in str(refused(checked(client, facts_of(client))))
    if why.startswith("uploads"):
        with pytest.raises(Refused, match=why):
            prepare(tmp_path / "home", client.releaser.plan, [])
        assert not (tmp_path / "home").exists()


def test_a_server_killed_in_the_last_round_may_ask_for_what_was_paid(tmp_path: Path) -> None:
    """No limit leaves room for another answer then, and none is needed: the last one is sent again."""
    client = party(tmp_path)
    for round in (1, 2, 3):
        answered = client.handle(ask(client, round))
    assert answered is not None
    two, three = (replace(facts_of(client), rounds_done=done) for done in (2, 3))
    assert refused(checked(client, two)) is None
    again = client.handle(ask(client, 3))
    assert again is not None
    assert again.content["arrays"]["1.weight"].data == answered.content["arrays"]["1.weight"].data
    assert refused(checked(client, three)) == NO_ROOM


def test_another_version_of_nbafl_is_found_before_the_first_round(tmp_path: Path) -> None:
    """On either side: weights taken for offsets, or the other way round, would pass every other check."""
    client = party(tmp_path)
    facts = facts_of(client)
    assert refused(checked(client, facts)) is None
    assert "server runs another version" in str(refused(checked(client, replace(facts, protocol=1))))
    for said in ({wire.CHECK: 1}, {}):
        older = Message(RecordDict({wire.ANSWER: ConfigRecord({**said})}), reply_to=ask(client))
        assert "client runs another version" in str(refused(older))
    nameless = {name: value for name, value in asdict(facts).items() if name != "protocol"}
    assert Facts.from_json(nameless).protocol == 1


def test_another_model_than_ones_own_is_refused(tmp_path: Path) -> None:
    client = party(tmp_path)
    message = ask(client)
    message.content["arrays"] = wire.to_record({"evil": np.zeros(3, dtype=np.float32)})
    reply = client.handle(message)
    assert reply is not None
    assert reply.error.reason == "the broadcast does not fit this client's model; its own log says why."
    assert client.releaser.ledger.spent().releases == 0


def test_a_failure_quotes_no_data(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    client = party(tmp_path)
    client.y = torch.full((RECORDS,), 99)  # no such class: torch complains and names the value
    with caplog.at_level(logging.CRITICAL):
        reply = client.handle(ask(client))
    assert reply is not None
    assert reply.error.reason == "training failed on the client; its own log says why."


def test_an_exact_record_count_never_leaves(tmp_path: Path) -> None:
    """A server that calls this client by the number of a larger one hears no, but not how many records there are."""
    client = party(tmp_path, sizes=(40, 9000))
    reply = client.handle(ask(client))
    assert reply is not None
    assert "fewer than the 9000 records" in reply.error.reason
    assert str(RECORDS) not in reply.error.reason


def test_once_the_budget_is_spent_the_client_knows(tmp_path: Path) -> None:
    client = party(tmp_path)
    client.releaser.ledger.set_limits(Limits(1e9, 0.01, releases=1))
    client.handle(ask(client, 1))
    assert client.spent is None
    client.handle(ask(client, 2))
    assert client.spent is not None
    assert "1 releases of at most 1" in client.spent


# --- the data a party brings -------------------------------------------------------------------------------


def test_mnist_shares_are_those_of_the_simulation() -> None:
    plan = Plan(clients=4, samples=30)
    shares = [client_data(f"mnist:{client}/4", plan) for client in range(4)]
    assert all(share.x.shape == (30, 1, 28, 28) for share in shares)
    assert len({share.x.tobytes() for share in shares}) == 4
    for wrong in ("mnist:4/4", "mnist:0/5", "mnist:x/4", "mnist:"):
        with pytest.raises(UsageError, match="data must be mnist:INDEX/4"):
            client_data(wrong, plan)
    assert server_data(plan).x.shape == (10_000, 1, 28, 28)


def test_csv_files_are_read_by_the_agreed_schema(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text("age,sex,outcome\n50,f,yes\n20,m,no\n")
    (tmp_path / "ranges.toml").write_text("age = [0, 100]\n")
    plan = Plan(dataset="csv", target="outcome", test=str(tmp_path / "test.csv"))
    write_schema(make_schema(plan), tmp_path / "schema.toml")
    schema = read_schema(tmp_path / "schema.toml")
    assert schema == make_schema(plan)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a.csv").write_text("outcome,sex,age\nno,m,25\n")
    (tmp_path / "own" / "b.csv").write_text("outcome,sex,age\nyes,f,75\n")
    own = client_data(str(tmp_path / "own"), plan, schema)
    np.testing.assert_allclose(own.x, [[-0.5, 0, 1], [0.5, 1, 0]])
    assert own.y.tolist() == [0, 1]
    assert (server_data(plan).outputs, own.outputs, own.classes) == (1, 1, ("no", "yes"))
    with pytest.raises(UsageError, match="schema must be the schema file"):
        client_data(str(tmp_path / "own"), plan)
    (tmp_path / "own" / "c.csv").write_text("outcome,sex\nno,m\n")
    with pytest.raises(DataError, match="lacks the column 'age'"):
        client_data(str(tmp_path / "own"), plan, schema)
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(DataError, match="is of the first release: run `nbafl serve --prepare` again"):
        read_schema(tmp_path / "bad.json")


@pytest.mark.parametrize("test", [None, "nowhere.csv"])
def test_a_federation_without_a_test_set_is_not_even_prepared(tmp_path: Path, test: str | None) -> None:
    plan = Plan(dataset="csv", target="outcome", test=test)
    with pytest.raises(UsageError, match="test must be a CSV file that is there"):
        prepare(tmp_path / "home", plan, [])
    assert not (tmp_path / "home").exists()
    with pytest.raises(UsageError, match="test must be a CSV file that is there"):
        server_data(plan)


def test_a_function_brings_its_own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_records.py").write_text(
        "import numpy as np\ndef load():\n    return np.zeros((4, 2), dtype=np.float32), np.array([0, 1, 2, 0])\n"
    )
    monkeypatch.chdir(tmp_path)
    found = client_data("my_own_records:load", Plan())
    assert (found.shape, found.outputs, found.task) == ((2,), 3, "classification")
    assert client_data("my_own_records:load", Plan(), outputs=5).outputs == 5
    for wrong in ("my_own_records:missing", "no_such_module:load", "nothing"):
        with pytest.raises(UsageError, match="data must be"):
            client_data(wrong, Plan())
