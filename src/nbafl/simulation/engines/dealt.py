"""Engines that know nothing of lanes and ranks, dealt to them: participants in parts, each part an average of its own.

The average over all participants is the sum over the parts of p(part) times the part's average, p(part) being the sum of
its members' p_i. So any engine can be dealt without a line of its own.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from nbafl.simulation import ranks
from nbafl.simulation.cores import Cores, lane_count, lanes
from nbafl.simulation.engines.base import Aggregate, Engine


class Laned:
    """On CPUs: lanes that are the same for every number of cores and ranks, one thread each."""

    lanes = True

    def __init__(self, engine: Engine, cores: Cores, sizes: np.ndarray) -> None:
        self.name, self._engine, self._cores, self._sizes = engine.name, engine, cores, sizes

    def round(self, broadcast: Tensor, clients: np.ndarray, weights: np.ndarray, round: int) -> Aggregate:
        def lane(numbers: range) -> Aggregate:
            own = np.asarray(numbers)
            return share(self._engine, broadcast, clients[own], weights[own], round, len(clients))

        count = lane_count(int(self._sizes[clients].sum()))
        return self._cores.sum(lane, lanes(len(clients), count), added)


class Shared:
    """On GPUs: every rank trains one share of the participants, and one all-reduce adds the shares."""

    lanes = True

    def __init__(self, engine: Engine) -> None:
        self.name, self._engine = engine.name, engine

    def round(self, broadcast: Tensor, clients: np.ndarray, weights: np.ndarray, round: int) -> Aggregate:
        own = np.arange(ranks.number(), len(clients), ranks.count())
        part = Aggregate(torch.zeros_like(broadcast), broadcast.new_zeros(()), broadcast.new_zeros(()))
        if len(own):
            part = share(self._engine, broadcast, clients[own], weights[own], round, len(clients))
        norm = broadcast.new_zeros(()) if part.norm is None else part.norm
        extra = torch.stack([part.clipped.to(broadcast.dtype), norm.to(broadcast.dtype)])
        total = ranks.add_up(torch.cat([part.vector, extra]))
        return Aggregate(total[:-2], total[-2], None if part.norm is None else total[-1])


def share(
    engine: Engine, broadcast: Tensor, clients: np.ndarray, weights: np.ndarray, round: int, everyone: int
) -> Aggregate:
    """What some of a round's participants add to its sums; `everyone` is the number of all of them."""
    whole = float(weights.sum())
    part = engine.round(broadcast, clients, weights / whole, round)
    norm = None if part.norm is None else part.norm * (len(clients) / everyone)
    return Aggregate(part.vector * whole, part.clipped, norm)


def added(one: Aggregate, other: Aggregate) -> Aggregate:
    """Both parts together, in the memory of the first one's vector."""
    norm = None if one.norm is None or other.norm is None else one.norm + other.norm
    return Aggregate(one.vector.add_(other.vector), one.clipped + other.clipped, norm)
