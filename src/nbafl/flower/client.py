"""A party that trains any model with torch: `rules.upload`, tested against the simulation."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from nbafl import rules
from nbafl.flower.inspection import Own
from nbafl.flower.party import Party
from nbafl.flower.release import Broadcast, Releaser
from nbafl.flower.secure_member import SecureMember
from nbafl.flower.wire import Layout
from nbafl.protocol import client_batches, unflatten
from nbafl.protocol.independence import Kinds, answers_alone, ready_to_train
from nbafl.protocol.losses import BUILT_IN, check_loss
from nbafl.protocol.vector import trainable, wide


def parameters(model: nn.Module) -> dict[str, np.ndarray]:
    """A model's trainable parameters as named arrays, in the order of `protocol.flatten`; frozen ones never travel."""
    return {name: wide(value).cpu().numpy() for name, value in trainable(model)}


class Client(Party):
    """One party with a model of torch."""

    def __init__(
        self,
        releaser: Releaser,
        model: nn.Module,
        x: np.ndarray,
        y: np.ndarray,
        task: str = "classification",
        on_answer: Callable[[int], None] | None = None,
        own: Own | None = None,
        persons: np.ndarray | None = None,
        secure: SecureMember | None = None,
        classes: Sequence[str] = (),
    ) -> None:
        """`persons`: how many rows each person has, where a person is protected; their rows lie one after another.

        `classes`: their names, where they have some.
        """
        units = len(y) if persons is None else len(persons)
        layout, shape = Layout.of(parameters(model)), tuple(x.shape[1:])
        super().__init__(releaser, layout, shape, units, task, on_answer, own, secure, classes)
        self._kind = torch.float64 if releaser.plan.rule.float64 else torch.float32
        self.x, self.y = torch.from_numpy(np.array(x)), torch.from_numpy(np.array(y))
        kinds = Kinds.of(self.x, self.y)
        self.x = self.x if kinds.tokens else self.x.to(self._kind)
        self.model = ready_to_train(copy.deepcopy(model).to(self._kind), tuple(x.shape[1:]), kinds=kinds)
        if self.training.loss not in BUILT_IN:
            with torch.no_grad():
                outputs = self.model(self.x[:1]).shape[-1]
            check_loss(self.training.loss, outputs, task)
        self.persons = persons

    def _train(self, asked: Broadcast) -> np.ndarray:
        seed = secrets.randbits(62)  # the order of minibatches is nobody's business
        order = client_batches(
            seed, asked.instruction.round, asked.instruction.client, len(self.y), self.training
        )
        begin = torch.from_numpy(asked.start).to(self._kind)
        trained = rules.upload(self.model, self.x, self.y, begin, self.training, order, self.persons)
        return trained.numpy().astype(np.float64)

    def _answers(self, point: np.ndarray, x: np.ndarray) -> np.ndarray:
        weights = unflatten(torch.from_numpy(point).to(self._kind), self.model)
        records = torch.from_numpy(np.array(x))
        records = records.to(self._kind) if records.is_floating_point() else records  # tokens
        return answers_alone(self.model, weights, records).numpy()
