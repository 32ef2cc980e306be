"""A round of Flower's own SecAgg+ in one process: what `secure_cost.py` measures beside this project's protocol.

The stock workflow asks, the stock mod answers, and a grid in this process carries the messages and counts their bytes.
Nothing of nbafl is in it but the training that both have in common; SecAgg+ adds no noise and keeps no ledger.
"""

from __future__ import annotations

import copy
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import FitIns, FitRes, Parameters, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.typing import Code, Status
from flwr.compat.common import recorddict_compat as compat
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.flower.rooms import OneRoom

Model = list[np.ndarray]
Train = Callable[[Model], Model]


@dataclass
class Proxy:
    """All that the workflow asks of a client proxy."""

    node_id: int


class Average:
    """The part of a strategy that the workflow uses; every result already holds the average."""

    def __init__(self, nodes: list[int]) -> None:
        self.nodes = nodes

    def configure_fit(self, _: int, parameters: Parameters, __: object) -> list[tuple[Proxy, FitIns]]:
        return [(Proxy(node), FitIns(parameters, {})) for node in self.nodes]

    def aggregate_fit(
        self, _: int, results: list[tuple[Proxy, FitRes]], failures: list[Exception]
    ) -> tuple[Parameters, dict[str, Any]]:
        assert not failures, failures
        return results[0][1].parameters, {}


class Everybody:
    """The part of a client manager that the workflow uses."""

    def __init__(self, clients: int) -> None:
        self.clients = clients

    def num_available(self) -> int:
        return self.clients


class Room(OneRoom):
    """Clients in this process behind the stock mod; counts the bytes of every message both ways."""

    def __init__(self, nodes: list[int], train: Train, size: Callable[[Message], int]) -> None:
        self.contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in nodes}
        self.train, self.size, self.bytes = train, size, 0

    def reply(self, message: Message) -> Message:
        message = copy.deepcopy(message)  # one content goes to all, and the mod takes it apart
        self.bytes += self.size(message)
        reply = secaggplus_mod(message, self.contexts[message.metadata.dst_node_id], self._trained)
        reply.metadata.__dict__["_src_node_id"] = message.metadata.dst_node_id
        self.bytes += self.size(reply)
        return reply

    def _trained(self, message: Message, _: Context) -> Message:
        received = compat.recorddict_to_fitins(message.content, keep_input=True)
        model = self.train(parameters_to_ndarrays(received.parameters))
        result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters(model), 100, {})
        return Message(compat.fitres_to_recorddict(result, keep_input=False), reply_to=message)

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)


def rounds(
    clients: int, model: Model, train: Train, size: Callable[[Message], int], count: int
) -> list[tuple[float, float]]:
    """(seconds of this process, bytes) of each round, with shares for everybody and a threshold of two thirds."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    nodes = list(range(100, 100 + clients))
    room, made = Room(nodes, train, size), []
    workflow = SecAggPlusWorkflow(num_shares=1.0, reconstruction_threshold=2 / 3)
    context = LegacyContext(
        Context(1, 0, {}, RecordDict(), {}), strategy=Average(nodes), client_manager=Everybody(clients)
    )
    record = compat.parameters_to_arrayrecord(ndarrays_to_parameters(model), keep_input=True)
    for number in range(1, count + 1):
        context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: number})
        context.state.array_records[MAIN_PARAMS_RECORD] = record
        started, before = time.process_time(), room.bytes
        workflow(room, context)
        made.append((time.process_time() - started, float(room.bytes - before)))
        _check(context, model, train)
    return made


def _check(context: LegacyContext, model: Model, train: Train) -> None:
    """The average is what every client trained, to within the quantisation: the protocol really ran."""
    found = compat.arrayrecord_to_parameters(context.state.array_records[MAIN_PARAMS_RECORD], keep_input=True)
    for average, trained in zip(parameters_to_ndarrays(found), train(model), strict=True):
        np.testing.assert_allclose(average, trained, atol=1e-3)
