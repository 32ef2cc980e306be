"""What an engine is: it trains a round's clients and hands back their weighted, clipped average.

Engines differ in how they compute, never in what: each is tested against `protocol.train_locally`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class Aggregate:
    """sum_i p_i clip(w_i) of one round, before any noise."""

    vector: Tensor
    clipped: Tensor
    """Number of clients whose upload was clipped (a scalar on the device)."""
    norm: Tensor | None
    """Mean norm of what was uploaded, after clipping; None when the engine did not need to know it."""


class Engine(Protocol):
    """Trains the clients of one round from the broadcast."""

    name: str

    def round(self, broadcast: Tensor, clients: np.ndarray, weights: np.ndarray, round: int) -> Aggregate:
        """`clients` are the participants, `weights` their p_i (sum 1), `round` the number of the round."""
        ...
