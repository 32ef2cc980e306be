"""Engine of the `gradient` rule: a whole round is one forward and backward pass over all participants' records.

All clients step from the same broadcast, so the average of their uploads is the broadcast less eta times one sum over
records, each with the share p_i/|D_i| of its client and the factor that clips its gradient. No client's weights are
ever formed. On a CPU every core takes its own part of the records; on a GPU the kernels of a pass are recorded once and
replayed, since launching them one by one takes as long as running them.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from nbafl.protocol import Training
from nbafl.protocol.chain import squared_norms
from nbafl.protocol.gradient import check_one_step, clipped_sum
from nbafl.protocol.independence import Kinds, ready_to_train
from nbafl.protocol.losses import weighted
from nbafl.protocol.persons import clipped_by_person
from nbafl.protocol.randomness import layer_draws
from nbafl.protocol.record_gradients import RecordGradients
from nbafl.simulation.cores import Cores, lane_count
from nbafl.simulation.device_data.records import Records
from nbafl.simulation.engines.base import Aggregate
from nbafl.simulation.engines.graphed import Recorded


@dataclass(frozen=True)
class RoundData:
    """The participants' records, one client after the other."""

    clients: np.ndarray
    index: Tensor | None
    """Numbers of the records; None where they are the whole storage in its order, so that no copy is made."""
    sizes: Tensor
    squares: Tensor | None
    """|x|² of every record, for chains of linear layers."""


def _added(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return one[0].add_(other[0]), torch.cat([one[1], other[1]])


class OneStepEngine:
    """One local step, every record's gradient clipped to norm G."""

    name = "one-step"

    def __init__(
        self, records: Records, model: nn.Module, training: Training, seed: int, cores: Cores | None = None
    ) -> None:
        check_one_step(training)
        self.records, self.training, self.seed = records, training, seed
        shape, kinds = records.data.shape, Kinds.of(records.x, records.y)
        ready = ready_to_train(model, shape, kinds=kinds)
        self.gradients = RecordGradients(ready, shape, training.loss, kinds)
        # Layers that draw random numbers take turns with one generator, and a person's rows stay together.
        self.lanes = not self.gradients.draws and records.persons is None
        self.cores = cores if self.lanes and records.x.device.type == "cpu" else None
        self._last: RoundData | None = None
        self._recorded: Recorded | None = None

    def round(self, broadcast: Tensor, clients: np.ndarray, weights: np.ndarray, round: int) -> Aggregate:
        """The average of the uploads; `clipped` counts clients by the part of their records that was clipped."""
        now = self._gathered(clients)
        if self.records.persons is not None:
            return self._round_of_persons(now, broadcast, weights, round)
        share = torch.as_tensor(weights, dtype=broadcast.dtype, device=broadcast.device) / now.sizes
        shares = share.repeat_interleave(now.sizes)
        targets = self.records.y if now.index is None else self.records.y[now.index]
        shares = weighted(shares, targets, self.training.class_weights)
        alone = layer_draws(self.seed, round, f"layers {clients[0]}", broadcast.device)
        with alone if self.gradients.draws else nullcontext():
            step, clipped = self._step(now, broadcast, shares)
        part = (clipped.double() / now.sizes.repeat_interleave(now.sizes)).sum().clamp(max=len(clients))
        return Aggregate(broadcast - self.training.lr * step, part, None)

    def _round_of_persons(
        self, now: RoundData, broadcast: Tensor, weights: np.ndarray, round: int
    ) -> Aggregate:
        """The same with the rows of a person averaged before they are clipped, each person counting once."""
        assert self.records.persons is not None
        each = [self.records.persons[client] for client in now.clients]
        counts = torch.as_tensor([len(rows) for rows in each], device=broadcast.device)
        share = torch.as_tensor(weights, dtype=broadcast.dtype, device=broadcast.device) / counts
        chosen = slice(None) if now.index is None else now.index
        alone = layer_draws(self.seed, round, f"layers {now.clients[0]}", broadcast.device)
        with alone if self.gradients.draws else nullcontext():
            step, clipped = clipped_by_person(
                self.gradients, self.records.x[chosen], self.records.y[chosen], broadcast,
                share.repeat_interleave(counts), self.training, np.concatenate(each),
            )  # fmt: skip
        part = (clipped.double() / counts.repeat_interleave(counts)).sum().clamp(max=len(now.clients))
        return Aggregate(broadcast - self.training.lr * step, part, None)

    def _step(self, now: RoundData, broadcast: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted sum of clipped gradients, and which records were clipped."""

        def lane(rows: slice) -> tuple[Tensor, Tensor]:
            chosen = rows if now.index is None else now.index[rows]
            x, y = self.records.x[chosen], self.records.y[chosen]
            squares = None if now.squares is None else now.squares[rows]
            return clipped_sum(self.gradients, x, y, broadcast, shares[rows], self.training, squares)

        count = len(shares)
        if self.cores is None:
            return self._replayed(now, broadcast, shares) if self._records() else lane(slice(0, count))
        ends = np.linspace(0, count, min(count, lane_count(count)) + 1).astype(int)
        return self.cores.sum(lane, [slice(a, b) for a, b in pairwise(ends.tolist())], _added)

    def _records(self) -> bool:
        """Whether passes can be recorded: on a GPU, in products alone."""
        return self.records.x.is_cuda and self.gradients.way == "taps" and not self.gradients.draws

    def _replayed(self, now: RoundData, broadcast: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        """The same pass, recorded; other participants, unless as many records, need another recording."""

        def work(point: Tensor, parts: Tensor, *index: Tensor) -> tuple[Tensor, Tensor]:
            chosen = index[0] if index else slice(None)
            x, y = self.records.x[chosen], self.records.y[chosen]
            return clipped_sum(self.gradients, x, y, point, parts, self.training)

        inputs = (broadcast, shares, *([] if now.index is None else [now.index]))
        if self._recorded is None or not self._recorded.fits(inputs):
            self._recorded = Recorded(work)
        step, clipped = self._recorded(*inputs)
        return step, clipped.clone()

    def _gathered(self, clients: np.ndarray) -> RoundData:
        """Who takes part with which records; kept while the participants stay the same."""
        if self._last is None or not np.array_equal(self._last.clients, clients):
            rows, x = self.records.rows(clients), self.records.x
            index = rows.index[rows.real]
            whole = len(index) == len(x) and bool((index == torch.arange(len(x), device=x.device)).all())
            plain = self.gradients.way == "chain"
            squares = squared_norms(x if whole else x[index]) if plain else None
            self._last = RoundData(clients, None if whole else index, rows.sizes, squares)
        return self._last
