"""The server of a real federation as something that makes rounds, like the simulator does.

`run.train` drives it and keeps the run folder: a round is finished once its checkpoint is in place, and the next
broadcast leaves only after that. Beside the metrics, `answers.jsonl` says who was drawn, who answered, why the others
did not, and how much noise the server added.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from torch import Tensor, nn
from torch.func import functional_call

from nbafl.data.checks import Arrays
from nbafl.durable import write_text
from nbafl.flower import wire
from nbafl.flower.client import parameters
from nbafl.flower.link import Link
from nbafl.flower.strategy import NbAFL
from nbafl.flower.wire import Layout
from nbafl.plan import Plan
from nbafl.protocol import flatten, load, record_losses, unflatten
from nbafl.simulation.metrics import RoundMetrics

log = logging.getLogger("nbafl")


class Server:
    """Rounds with clients on the other end of a Link; see run.Trainer."""

    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        link: Link,
        *,
        test: Arrays | None = None,
        task: str = "classification",
        timeout: float = 600.0,
        wait: float = 600.0,
        min_answers: int | None = None,
        answers: Path | None = None,
    ) -> None:
        """`timeout`: seconds a round may take; `wait`: until clients connect; `answers`: file for who answered."""
        self.plan, self.link, self.timeout, self.answers = plan, link, timeout, answers
        self.strategy = NbAFL(plan, clients=link.nodes, own_clients=True, wait=wait, min_answers=min_answers)
        self.round, self.vector = 0, flatten(model)
        self._model, self._loss = model.eval(), plan.training(task).loss
        self._layout = Layout.of(parameters(model))
        self._test = None if test is None else tuple(torch.from_numpy(np.array(part)) for part in test)

    def step(self) -> RoundMetrics:
        """One round with whoever is there; `Refused` when too few answer."""
        started, number = time.perf_counter(), self.round + 1
        broadcast = wire.to_record(self._layout.arrays(self.vector.numpy(), {}))
        messages = self.strategy.configure_train(number, broadcast, ConfigRecord(), self.link.grid)
        replies = self.link.grid.send_and_receive(messages, timeout=self.timeout)
        following, _ = self.strategy.aggregate_train(number, replies)
        happened = self.strategy.last
        assert happened is not None
        self.vector = torch.from_numpy(self._layout.vector(self._layout.read(following))).float()
        self.round = number
        if self.answers is not None:
            with open(self.answers, "a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(happened)) + "\n")
        return RoundMetrics(
            round=number,
            participants=len(happened.answered),
            upload_norm=happened.upload_norm,
            broadcast_norm=float(self.vector.norm()),
            seconds=time.perf_counter() - started,
            **self._evaluate(number),
        )

    def module(self) -> nn.Module:
        """The broadcast model."""
        return load(self.vector, self._model)

    def state(self) -> dict[str, Tensor]:
        """Everything a later process needs: broadcast, velocity, rounds done, and the secret seed of the draw."""
        state = {
            "vector": self.vector,
            "round": torch.tensor(self.round),
            "draw_seed": torch.tensor(self.strategy.draw_seed),
        }
        if self.strategy.velocity is not None:
            state["velocity"] = torch.from_numpy(self.strategy.velocity)
        return state

    def restore(self, state: dict[str, Tensor]) -> None:
        self.vector, self.round = state["vector"], int(state["round"])
        self.strategy.draw_seed = int(state["draw_seed"])
        self.strategy.velocity = state["velocity"].numpy() if "velocity" in state else None
        self._drop_unfinished_answers()

    def say_goodbye(self, outcome: str, patience: float = 10.0) -> None:
        """Tell every connected client that the federation is over, and wait until they have hung up."""
        config = ConfigRecord({wire.END: outcome})
        self.link.grid.push_messages(
            Message(RecordDict({wire.CONFIG: config}), dst_node_id=node, message_type=MessageType.QUERY)
            for node in self.link.grid.get_node_ids()
        )
        deadline = time.monotonic() + patience
        while list(self.link.grid.get_node_ids()) and time.monotonic() < deadline:
            time.sleep(0.05)

    def _drop_unfinished_answers(self) -> None:
        """Rounds beyond the checkpoint are made again; a line that was being written is no line."""
        if self.answers is None or not self.answers.is_file():
            return
        lines = self.answers.read_text(encoding="utf-8").splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]
        write_text(self.answers, "".join(line for line in whole if json.loads(line)["number"] <= self.round))

    def _evaluate(self, number: int) -> dict[str, float]:
        if self._test is None or not self.plan.job().evaluated(number):
            return {}
        with torch.no_grad():
            x, y = self._test
            output = functional_call(self._model, unflatten(self.vector, self._model), (x,))
            measured = {"test_loss": float(record_losses(output, y, self._loss).double().mean())}
            if self._loss == "cross_entropy":
                measured["test_accuracy"] = float((output.argmax(-1) == y).double().mean())
        return measured
