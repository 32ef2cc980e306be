"""Engine of the `gradient` rule: a whole round is one forward and backward pass over all participants' records.

All clients step from the same broadcast, so the average of their uploads is the broadcast less eta times one sum over
records, each with the share p_i/|D_i| of its client and the factor that clips its gradient. No client's weights are
ever formed.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from nbafl.protocol import Training, stream_key
from nbafl.protocol.gradient import check_one_step, clipped_gradient
from nbafl.simulation.engine import Aggregate
from nbafl.simulation.records import Records
from nbafl.simulation.vmap import check_trainable


class OneStepEngine:
    """One local step, every record's gradient clipped to norm G."""

    name = "one-step"

    def __init__(self, records: Records, model: nn.Module, training: Training, seed: int) -> None:
        check_trainable(model)
        check_one_step(training)
        self.records, self.model, self.training, self.seed = records, model, training, seed
        self._last: tuple[np.ndarray, Tensor, Tensor] | None = None

    def round(self, broadcast: Tensor, clients: np.ndarray, weights: np.ndarray, round: int) -> Aggregate:
        """The average of the uploads; `clipped` counts clients by the part of their records that was clipped."""
        index, sizes = self._index(clients)
        share = torch.as_tensor(weights, dtype=broadcast.dtype, device=broadcast.device) / sizes
        x, y = self._records(index)
        with torch.random.fork_rng(devices=[broadcast.device] if broadcast.is_cuda else []):
            torch.manual_seed(
                stream_key(self.seed, round, "layers")
            )  # dropout draws from the global generator
            shares = share.repeat_interleave(sizes)
            step, clipped = clipped_gradient(self.model, x, y, broadcast, shares, self.training)
        part = (clipped.double() / sizes.repeat_interleave(sizes)).sum().clamp(max=len(clients))
        return Aggregate(broadcast - self.training.lr * step, part, None)

    def _index(self, clients: np.ndarray) -> tuple[Tensor, Tensor]:
        """Record numbers of the participants, one after the other, and how many each has; kept while they stay."""
        if self._last is None or not np.array_equal(self._last[0], clients):
            rows = self.records.rows(clients)
            self._last = clients, rows.index[rows.real], rows.sizes
        return self._last[1:]

    def _records(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The records themselves; no copy is made where they are all of the storage, in its order."""
        x, y = self.records.x, self.records.y
        if len(index) == len(x) and bool((index == torch.arange(len(x), device=index.device)).all()):
            return x, y
        return x[index], y[index]
