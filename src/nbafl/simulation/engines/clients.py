"""Any nn.Module, client by client: every core trains clients of its own, each a copy of the model that has seen nothing.

A client's training is `protocol.descend`, the reference path itself. Beside a loop that hands every operation to all
cores this saves the waiting of one core for another, which is most of the time where batches are small. Images lie in
memory channel by channel of each pixel where the model takes them so: pooling, above all, is many times faster then.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from nbafl.errors import UsageError
from nbafl.protocol import Training, client_batches, clip_factor, descend, flatten
from nbafl.protocol.aggregation import length
from nbafl.protocol.independence import (
    Kinds,
    draws_numbers,
    ready_to_train,
    told,
    trial_records,
    trial_targets,
)
from nbafl.protocol.randomness import layer_draws
from nbafl.simulation.cores import Cores, lanes
from nbafl.simulation.device_data.records import Records
from nbafl.simulation.engines.base import Aggregate, clips_weights

Sums = tuple[Tensor, Tensor, Tensor]
"""Of some clients: p_i times their uploads, how many were clipped, and the lengths after clipping."""


def _added(one: Sums, other: Sums) -> Sums:
    return one[0].add_(other[0]), one[1] + other[1], one[2] + other[2]


class ClientsEngine:
    """`paper` and `client` for models that are no chain of linear layers."""

    name, lanes = "clients", True

    def __init__(
        self, records: Records, model: nn.Module, training: Training, seed: int, cores: Cores
    ) -> None:
        self.records, self.training, self.seed, self.cores = records, training, seed, cores
        kinds = Kinds.of(records.x, records.y)
        self.model = ready_to_train(model, records.data.shape, kinds=kinds)
        try:
            self._draws = draws_numbers(self.model, records.data.shape, kinds)
            x = trial_records(self.model, records.data.shape, 2, kinds)
            y = trial_targets(2, records.data.outputs, kinds, x.device)
            self._layout = torch.contiguous_format
            trained = self._trial(x, y, self._layout)
            if x.ndim == 4 and x.device.type == "cpu" and self._agrees(x, y, trained):
                self._layout = torch.channels_last
        except Exception as error:  # whatever a user's own layers may raise
            allowed = f"one that trains; a trial step failed: {told(error)}"
            raise UsageError("model", type(model).__name__, allowed) from error

    def _trial(self, x: Tensor, y: Tensor, layout: torch.memory_format) -> Tensor:
        """One step on made-up records."""
        one = replace(self.training, steps=1, batch=None)
        with layer_draws(0, 0, "trial", x.device):
            return descend(self.model, x.to(memory_format=layout), y, flatten(self.model), one)

    def _agrees(self, x: Tensor, y: Tensor, trained: Tensor) -> bool:
        """Whether the model makes the same step of images with their channels last; one that asks for a view may not."""
        try:
            other = self._trial(x, y, torch.channels_last)
        except Exception:  # whatever a user's own layers may raise
            return False
        return torch.allclose(other, trained, rtol=1e-4, atol=1e-5)

    def round(self, broadcast: Tensor, clients: np.ndarray, weights: np.ndarray, round: int) -> Aggregate:
        around, bound = not clips_weights(self.training), self.training.clip

        def lane(numbers: range) -> Sums:
            total = torch.zeros_like(broadcast)
            clipped, lengths = broadcast.new_zeros(()), broadcast.new_zeros(())
            for number in numbers:
                moved = self._train(broadcast, int(clients[number]), round)
                if around:
                    moved.sub_(broadcast)
                far = length(moved)
                total.addcmul_(moved, (clip_factor(far, bound) * float(weights[number])).to(moved.dtype))
                clipped += (far > bound)[0]
                lengths += far.clamp(max=bound)[0]
            return total, clipped, lengths

        total, clipped, lengths = self.cores.sum(lane, lanes(len(clients)), _added)
        return Aggregate(total.add_(broadcast) if around else total, clipped, lengths / len(clients))

    def _train(self, broadcast: Tensor, client: int, round: int) -> Tensor:
        """One client's local steps; what its layers draw is a function of (seed, round, client)."""
        rows, size = self.records.rows(np.array([client])), int(self.records.sizes[client])
        order = client_batches(self.seed, round, client, size, self.training)
        x, y = self.records.x[rows.index[0]], self.records.y[rows.index[0]]
        x = x.to(memory_format=self._layout)
        order = None if order is None else order.to(x.device)
        alone = layer_draws(self.seed, round, f"layers {client}", x.device)
        with alone if self._draws else nullcontext():
            return descend(self.model, x, y, broadcast, self.training, order)
