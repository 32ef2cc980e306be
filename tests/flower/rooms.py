"""Flower grids whose clients stand in the same room: messages go from hand to hand. And clients whose answers are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace

import numpy as np
from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid
from tests.paper_setting import Plan

from nbafl.flower import NbAFL, wire
from nbafl.flower.wire import Instruction


class OneRoom(Grid):
    """Hands every message to `reply` and passes on the answers, if there are any."""

    def reply(self, message: Message) -> Message | None:
        """What the client a message is for answers."""
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:  # noqa: ARG002
        replies = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = "m"
            reply = self.reply(message)
            if reply is not None:
                replies.append(reply)
        return replies

    def set_run(self, run: object) -> None: ...
    def create_message(self, *_: object, **__: object) -> Message: ...  # type: ignore[empty-body]
    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]: ...  # type: ignore[empty-body]
    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]: ...  # type: ignore[empty-body]
    @property
    def run(self) -> object: ...  # type: ignore[override]


SIZE = 20_000
MODEL = {"weight": np.zeros((SIZE // 10, 10), dtype=np.float32), "batches": np.array(3)}
Answer = Callable[[Message, Instruction], Message | None]


class Room(OneRoom):
    """A grid whose clients stand in the same room: each answers a message with a function."""

    def __init__(self, answer: Answer, clients: int = 4) -> None:
        self.answer, self.online, self.asked = answer, set(range(100, 100 + clients)), []

    def reply(self, message: Message) -> Message | None:
        instruction = Instruction.read(message.content)
        self.asked.append(instruction)
        return self.answer(message, instruction)

    def get_node_ids(self) -> set[int]:
        return self.online


def hub_of(grid: Grid, clients: int) -> SimpleNamespace:
    """What a Server asks of its hub, with nodes 100, 101, … as clients 0, 1, …"""
    postbox = SimpleNamespace(steady=lambda _: set(grid.get_node_ids()))
    return SimpleNamespace(
        exchange=grid, nodes={100 + each: each for each in range(clients)}, postbox=postbox
    )


def plan_of(**fields: object) -> Plan:
    given = {"clients": 4, "rounds": 3, "sensitivity": "client", "clip": 1.0, "epsilon": 30, "delta": 1e-5}
    return Plan(**{**given, **fields})


def constant(shift: float = 0.0) -> Answer:
    """Client i sends that it moved by (i + 1)/1000 everywhere, without noise."""

    def answer(message: Message, asked: Instruction) -> Message:
        received = wire.read_any(message.content["arrays"])
        moved = np.full_like(received["weight"], (asked.client + 1) / 1000 + shift)
        return wire.answer(asked, {**received, "weight": moved}, message)

    return answer


def start(strategy: NbAFL, room: Room, **options: object) -> np.ndarray:
    result = strategy.start(room, wire.to_record(MODEL), **options)
    assert result.arrays["batches"].numpy() == 3
    return result.arrays["weight"].numpy().astype(np.float64).ravel()


def one_round(strategy: NbAFL, room: Room) -> np.ndarray:
    messages = strategy.configure_train(1, wire.to_record(MODEL), ConfigRecord(), room)
    arrays, _ = strategy.aggregate_train(1, room.send_and_receive(messages))
    assert arrays is not None
    return arrays["weight"].numpy().astype(np.float64).ravel()
