"""What an engine is: it trains a round's clients and hands back their weighted, clipped average.

Engines differ in how they compute, never in what: each is tested against `protocol`'s one-client path.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from nbafl import rules
from nbafl.protocol import Training
from nbafl.simulation.device_data.features import Features
from nbafl.simulation.engines.network import Network


@dataclass(frozen=True)
class Aggregate:
    """sum_i p_i clip(w_i) of one round, before any noise."""

    vector: Tensor
    clipped: Tensor
    """Number of clients whose upload was clipped (a scalar on the device)."""
    norm: Tensor | None
    """Mean length of what the rule clips (weights or update), after clipping; None when nobody needed to know it."""


def clips_weights(training: Training) -> bool:
    """Whether the rule clips the weights themselves; else it clips the update against the broadcast."""
    return not rules.find(training.rule).reach(training).around_broadcast


class Engine(Protocol):
    """Trains the clients of one round from the broadcast."""

    name: str
    lanes: bool
    """Whether it deals its work to lanes itself; else `dealt.Laned` does, participant by participant."""

    def round(self, broadcast: Tensor, clients: np.ndarray, weights: np.ndarray, round: int) -> Aggregate:
        """`clients` are the participants, `weights` their p_i (sum 1), `round` the number of the round."""
        ...


@dataclass
class Start:
    """A network's broadcast, taken apart for the fast engines."""

    vector: Tensor
    table: Tensor
    """The first layer, as far as the features reach it."""
    later: Tensor
    square: Tensor
    """|W|^2 of the whole first layer."""

    @cached_property
    def outside(self) -> Tensor:
        """The part of it in inputs that are zero for every record: no client moves these."""
        return self.square - self.table.square().sum()

    @classmethod
    def of(cls, vector: Tensor, network: Network, features: Features) -> Start:
        full, later = network.split(vector)
        return cls(vector, features.narrow(full), later, full.square().sum())


@dataclass(frozen=True)
class Part:
    """What some clients add to the round's sums: updates times p_i times clipping factors, and those products."""

    table: Tensor
    later: Tensor
    factor: Tensor
    clipped: Tensor
    norm: Tensor | None

    def absorb(self, other: Part) -> Part:
        """The sum of both, in the memory of this part's table: this part must not be used again."""
        norm = None if self.norm is None or other.norm is None else self.norm + other.norm
        return Part(
            self.table.add_(other.table),
            self.later + other.later,
            self.factor + other.factor,
            self.clipped + other.clipped,
            norm,
        )


def combine(
    total: Part, start: Start, network: Network, features: Features, weights_clipped: bool, clients: int
) -> Aggregate:
    """sum_i p_i clip(w_i): the broadcast, kept by sum_i p_i factor_i where the weights are clipped, plus the updates."""
    update = network.join(features.widen(total.table), total.later)
    kept = total.factor if weights_clipped else torch.ones_like(total.factor)
    norm = None if total.norm is None else total.norm / clients
    return Aggregate(torch.addcmul(update, start.vector, kept), total.clipped, norm)
