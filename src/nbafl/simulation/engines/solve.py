"""Engine of the `proximal` rule: the local problems of many clients solved side by side."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from nbafl.protocol import Training
from nbafl.protocol.proximal import check_linear, uploads
from nbafl.simulation.cores import Cores
from nbafl.simulation.device_data.records import Records
from nbafl.simulation.engines.base import Aggregate

CHUNK_BYTES = 512 * 2**20


class SolveEngine:
    """A linear model with a proximal term, solved to a tolerance or approached in S plain steps."""

    name, lanes = "solve", False

    def __init__(
        self,
        records: Records,
        model: nn.Module,
        training: Training,
        seed: int,  # noqa: ARG002
        cores: Cores | None = None,  # noqa: ARG002
    ) -> None:
        check_linear(model, training.loss)
        self.records, self.model, self.training = records, model, training

    def round(
        self,
        broadcast: Tensor,
        clients: np.ndarray,
        weights: np.ndarray,
        round: int,  # noqa: ARG002
    ) -> Aggregate:
        shares = torch.as_tensor(weights, dtype=broadcast.dtype, device=broadcast.device)
        total, clipped = torch.zeros_like(broadcast), torch.zeros((), device=broadcast.device)
        norm = torch.zeros((), dtype=broadcast.dtype, device=broadcast.device)
        for part in np.array_split(np.arange(len(clients)), self._chunks(clients)):
            uploaded = self._uploads(broadcast, clients[part])
            length = torch.linalg.vector_norm(uploaded, dim=1)
            total += shares[part] @ uploaded
            clipped += (length >= self.training.clip * (1 - 1e-6)).sum()
            norm += length.sum() / len(clients)
        return Aggregate(total, clipped, norm)

    def _uploads(self, broadcast: Tensor, clients: np.ndarray) -> Tensor:
        rows = self.records.rows(clients)
        x, y = self.records.x[rows.index], self.records.y[rows.index]
        return uploads(self.model, x, y, rows.shares(broadcast.dtype), broadcast, self.training)

    def _chunks(self, clients: np.ndarray) -> int:
        """How many pieces the round is cut into: the records of a piece, in double precision, fit CHUNK_BYTES."""
        rows = int(self.records.sizes[clients].max())
        each = 8 * rows * (self.records.x[0].numel() + 4 * self.records.data.outputs)
        return min(len(clients), -(-len(clients) * each // CHUNK_BYTES))
