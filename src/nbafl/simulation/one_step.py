"""Engine of the `gradient` rule: a whole round is one forward and backward pass over all participants' records.

All clients step from the same broadcast, so the average of their uploads is the broadcast less eta times one sum over
records, each with the share p_i/|D_i| of its client and the factor that clips its gradient. No client's weights are
ever formed. On a CPU every core takes its own part of the records.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from nbafl.protocol import Training, stream_key
from nbafl.protocol.gradient import check_one_step, clipped_gradient, linear_chain, squared_norms
from nbafl.simulation.crew import LANES, Crew
from nbafl.simulation.engine import Aggregate
from nbafl.simulation.records import Records
from nbafl.simulation.vmap import in_training


@dataclass(frozen=True)
class Round:
    """The participants' records, one client after the other."""

    clients: np.ndarray
    index: Tensor | None
    """Numbers of the records; None where they are the whole storage in its order, so that no copy is made."""
    sizes: Tensor
    squares: Tensor
    """|x|² of every record."""


class OneStepEngine:
    """One local step, every record's gradient clipped to norm G."""

    name = "one-step"

    def __init__(
        self, records: Records, model: nn.Module, training: Training, seed: int, crew: Crew | None = None
    ) -> None:
        check_one_step(training)
        self.records, self.training, self.seed = records, training, seed
        self.model = in_training(model, records)
        # Layers that draw random numbers take turns with one generator, so only plain chains are split over cores.
        splits = records.x.device.type == "cpu" and linear_chain(model, records.x) is not None
        self.crew = crew if splits else None
        self._last: Round | None = None

    def round(self, broadcast: Tensor, clients: np.ndarray, weights: np.ndarray, round: int) -> Aggregate:
        """The average of the uploads; `clipped` counts clients by the part of their records that was clipped."""
        now = self._gathered(clients)
        share = torch.as_tensor(weights, dtype=broadcast.dtype, device=broadcast.device) / now.sizes
        shares = share.repeat_interleave(now.sizes)
        with torch.random.fork_rng(devices=[broadcast.device] if broadcast.is_cuda else []):
            torch.manual_seed(
                stream_key(self.seed, round, "layers")
            )  # dropout draws from the global generator
            step, clipped = self._step(now, broadcast, shares)
        part = (clipped.double() / now.sizes.repeat_interleave(now.sizes)).sum().clamp(max=len(clients))
        return Aggregate(broadcast - self.training.lr * step, part, None)

    def _step(self, now: Round, broadcast: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted sum of clipped gradients, and which records were clipped."""

        def lane(rows: slice) -> tuple[Tensor, Tensor]:
            chosen = rows if now.index is None else now.index[rows]
            x, y = self.records.x[chosen], self.records.y[chosen]
            return clipped_gradient(
                self.model, x, y, broadcast, shares[rows], self.training, now.squares[rows]
            )

        count = len(shares)
        if self.crew is None:
            return lane(slice(0, count))
        ends = np.linspace(0, count, min(count, LANES) + 1).astype(int)
        parts = self.crew.map(lane, [slice(a, b) for a, b in pairwise(ends.tolist())])
        return torch.stack([step for step, _ in parts]).sum(0), torch.cat([clipped for _, clipped in parts])

    def _gathered(self, clients: np.ndarray) -> Round:
        """Who takes part with which records; kept while the participants stay the same."""
        if self._last is None or not np.array_equal(self._last.clients, clients):
            rows, x = self.records.rows(clients), self.records.x
            index = rows.index[rows.real]
            whole = len(index) == len(x) and bool((index == torch.arange(len(x), device=x.device)).all())
            squares = squared_norms(x if whole else x[index])
            self._last = Round(clients, None if whole else index, rows.sizes, squares)
        return self._last
