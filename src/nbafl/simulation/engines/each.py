"""Clients one after another, each through its rule's own `upload`: the engine of rules that have no faster one."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from nbafl import rules
from nbafl.protocol import Training, client_batches
from nbafl.protocol.independence import Kinds, ready_to_train
from nbafl.protocol.randomness import layer_draws
from nbafl.simulation.cores import Cores
from nbafl.simulation.device_data.records import Records
from nbafl.simulation.engines.base import Aggregate


class EachEngine:
    """What a deployment does, client by client."""

    name, lanes = "each", False

    def __init__(
        self,
        records: Records,
        model: nn.Module,
        training: Training,
        seed: int,
        cores: Cores | None = None,  # noqa: ARG002
    ) -> None:
        self.records, self.training, self.seed = records, training, seed
        self.model = ready_to_train(model, records.data.shape, kinds=Kinds.of(records.x, records.y))
        self._rule = rules.find(training.rule)
        self._reach = self._rule.reach(training)

    def round(self, broadcast: Tensor, clients: np.ndarray, weights: np.ndarray, round: int) -> Aggregate:
        total, clipped, norms = torch.zeros_like(broadcast), 0, 0.0
        with layer_draws(self.seed, round, f"layers {clients[0]}", broadcast.device):
            for client, weight in zip(clients.tolist(), weights.tolist(), strict=True):
                upload = self._upload(broadcast, client, round)
                total += weight * upload
                length = float((upload - broadcast if self._reach.around_broadcast else upload).norm())
                clipped += length >= self._reach.radius * (1 - 1e-6)
                norms += length / len(clients)
        return Aggregate(total, total.new_tensor(clipped), total.new_tensor(norms))

    def _upload(self, broadcast: Tensor, client: int, round: int) -> Tensor:
        index = self.records.rows(np.array([client])).index[0]
        order = client_batches(self.seed, round, client, len(index), self.training)
        x, y = self.records.x[index], self.records.y[index]
        return self._rule.upload(self.model, x, y, broadcast, self.training, order)
