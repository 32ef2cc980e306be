"""nbafl's own client app: the server's instructions are data, the code that runs is installed here.

A message says which round it is and what the model looks like now; everything else (the plan, the model's code, the
data, the limits) the client has from its owner. Training is `protocol.rules.upload`, tested against the simulation.
"""

from __future__ import annotations

import copy
import logging
import secrets
from collections.abc import Callable

import numpy as np
import torch
from flwr.app import ConfigRecord, Message
from torch import nn

from nbafl.flower import wire
from nbafl.flower.mod import refusal
from nbafl.flower.release import Releaser, check_instruction
from nbafl.flower.wire import Instruction, Layout, Malformed
from nbafl.privacy.ledger import BudgetSpent, Declined, Request
from nbafl.protocol import client_batches
from nbafl.protocol.rules import upload as trained_upload

log = logging.getLogger("nbafl")


def parameters(model: nn.Module) -> dict[str, np.ndarray]:
    """A model's parameters as named arrays, in the order of `protocol.flatten`."""
    return {name: value.detach().cpu().numpy() for name, value in model.named_parameters()}


class Client:
    """One party: its data, its model code, and the only way out (`Releaser`)."""

    def __init__(
        self,
        releaser: Releaser,
        model: nn.Module,
        x: np.ndarray,
        y: np.ndarray,
        task: str = "classification",
        on_answer: Callable[[int], None] | None = None,
    ) -> None:
        self.releaser, self.on_answer = releaser, on_answer
        self.training = releaser.plan.training(task)
        self.layout = Layout.of(parameters(model))
        # Record bounds such as 2 eta G/m are as small as float32's rounding of the weights: these rules need float64.
        self._kind = torch.float64 if self.training.rule in ("gradient", "proximal") else torch.float32
        self.model = copy.deepcopy(model).to(self._kind)
        self.x = torch.from_numpy(np.array(x)).to(self._kind)
        self.y = torch.from_numpy(np.array(y))
        self.ended: str | None = None
        """How the federation ended, once the server said so."""
        self.spent: str | None = None
        """Why nothing more can be released, once the budget is spent."""

    def handle(self, message: Message) -> Message | None:
        """The reply to a message; None when the server says that the federation is over."""
        config = message.content.get(wire.CONFIG) if message.has_content() else None
        if isinstance(config, ConfigRecord) and isinstance(config.get(wire.END), str):
            self.ended = wire.printable(str(config[wire.END]))
            return None
        try:
            return self._answer(message)
        except Exception as error:
            if isinstance(error, BudgetSpent):
                self.spent = str(error)
            return refusal(error, message)

    def _answer(self, message: Message) -> Message:
        if message.metadata.message_type != "train":
            raise Declined("only training is answered.")
        instruction = Instruction.read(message.content)
        check_instruction(self.releaser.plan, instruction, len(self.y))
        received = self._broadcast(message)
        start = self.layout.vector(received)
        wire.check_broadcast(start)
        request = Request(instruction.plan, instruction.round, wire.digest(received))
        upload = self.releaser.answer(
            request, instruction.client, start, lambda: self._train(instruction, start)
        )
        reply = wire.answer(instruction, self.layout.arrays(upload, received), message)
        if self.on_answer:
            self.on_answer(instruction.round)
        return reply

    def _broadcast(self, message: Message) -> dict[str, np.ndarray]:
        """The arrays received; what this client's own model looks like (its classes, its columns) is not told."""
        try:
            return self.layout.read(message.content.get(wire.ARRAYS))
        except Malformed as error:
            log.warning("the broadcast does not fit this client's model: %s", error)
            raise Declined("the broadcast does not fit this client's model; its own log says why.") from None

    def _train(self, instruction: Instruction, start: np.ndarray) -> np.ndarray:
        seed = secrets.randbits(62)  # the order of minibatches is nobody's business
        order = client_batches(seed, instruction.round, instruction.client, len(self.y), self.training)
        begin = torch.from_numpy(start).to(self._kind)
        trained = trained_upload(self.model, self.x, self.y, begin, self.training, order)
        return trained.numpy().astype(np.float64)
