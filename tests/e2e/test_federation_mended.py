"""What the chaos trial of 0.1.0 found, with real processes: a lost client's grace, and broadcasts that go back and forth."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import numpy as np
import pytest
from federation_processes import Federation, Nursery, is_listening, wait_for
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from hostile.server import Said, hostile_server, signs_on_then

from nbafl.flower import certificates, frames, wire
from nbafl.flower.wire import Instruction
from nbafl.plan import Plan
from nbafl.protocol.linear_regression import LinearRegression

pytestmark = pytest.mark.e2e

RULE = ("--samples", 50, "--model", "softmax", "--sensitivity", "gradient", "--features", "raw")
PROMISE = ("--epsilon", 50, "--delta", 1e-5, "--adversary", "curious-server")
FIFTY = ("--outputs", 10, "--epsilon", 1e6)
GRACE = 5.0
"""Seconds that a round waits for whoever is not connected."""


def test_a_lost_client_costs_its_grace_once(tmp_path: Path, nursery: Nursery) -> None:
    """In 0.1.0 every later round waited the whole grace for it: here some do not."""
    federation = Federation(tmp_path, 3, "--rounds", 400, *RULE, *PROMISE)
    server = nursery.start("serve", *federation.serve())
    wait_for(lambda: is_listening(federation.port) or server.code is not None, "the server")
    clients = [
        nursery.start(f"join-{each}", *federation.join(each, *FIFTY, data="hostile.data:fifty"))
        for each in range(3)
    ]
    wait_for(lambda: federation.metrics, "the first round")
    clients[2].kill()

    def alone() -> list[int]:
        return [int(line["number"]) for line in federation.answers if line["answered"] == [0, 1]]  # type: ignore[call-overload]

    wait_for(lambda: len(alone()) > 6 or server.code is not None, "rounds without it")
    waited = {line["round"]: float(line["seconds"]) for line in federation.metrics}  # type: ignore[arg-type]
    later = [waited[number] for number in alone()[1:] if number in waited]
    assert len(later) >= 4
    assert min(later) < GRACE


def question(plan: Plan, shift: float) -> bytes:
    """A broadcast of round 1: the model at zero, moved."""
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 2, 3
    arrays = {
        name: value + np.float32(shift)
        for name, value in LinearRegression((1, 28, 28), 10).parameters().items()
    }
    asked = Instruction(plan.digest(), 1, "7" * 32, 0).to_config()
    content = RecordDict({wire.ARRAYS: wire.to_record(arrays), wire.CONFIG: ConfigRecord({**asked})})
    return frames.encode(Message(content, dst_node_id=1, message_type=MessageType.TRAIN))


def test_broadcasts_that_go_back_and_forth_are_charged_once_each(tmp_path: Path, nursery: Nursery) -> None:
    """A, B, A, B, A of one round: in 0.1.0 the ledger was charged for each, and kept a row for every repetition."""
    federation = Federation(tmp_path, 2, "--rounds", 5, *RULE, *PROMISE)
    plan = Plan.from_toml(federation.home / "plan.toml")
    over = RecordDict({wire.CONFIG: ConfigRecord({wire.END: "finished"})})
    blocks = [question(plan, shift) for shift in (0.0, 0.5, 0.0, 0.5, 0.0)]
    blocks.append(frames.encode(Message(over, dst_node_id=1, message_type=MessageType.QUERY)))
    number = count()
    made = certificates.find_certificates(federation.home / "tls")

    def next_one() -> Said:
        place = next(number)
        return Said(body=blocks[min(place, len(blocks) - 1)], headers={"nbafl-question": str(place)})

    with hostile_server(made, signs_on_then(next_one)) as server:
        federation.port = int(server.address.rpartition(":")[2])
        client = nursery.start("join-0", *federation.join(0, *FIFTY, data="hostile.data:fifty"))
        assert client.finish() == 0, client.output
        assert server.asked.count("/v1/answer") == 5
    rows = [row for row in federation.ledger(0).rows() if row.kind != "limits"]
    assert [(row.kind, row.round) for row in rows if row.kind == "release"] == [
        ("release", 1),
        ("release", 1),
    ]
    assert len(rows) <= 4, "repetitions leave no rows"
