"""When a local problem is sure to be solved to its tolerance: on every data set, by public numbers alone.

A client that gives up tells that its data are such that it gave up. So a tolerance that could be missed is refused before
any record is looked at: one that Nesterov's method might not reach in the iterations that are allowed, or one that is below
what arithmetic of finite precision can tell, math.md (2.8) and (2.9).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nbafl.errors import UsageError

MOST_ITERATIONS = 200_000
HALF_UNIT = float(np.finfo(np.float64).eps) / 2
"""Relative error of one operation."""


@dataclass(frozen=True)
class Solve:
    """J(w) = F(w) + (mu/2)|w - start|² for any F with |∇F| ≤ G that is rho-smooth, to be brought to |∇J| ≤ tau."""

    lipschitz: float
    """G."""
    smoothness: float
    """rho."""
    mu: float
    tolerance: float

    @property
    def largest(self) -> float:
        """L, the largest curvature of J."""
        return self.smoothness + self.mu

    @property
    def root(self) -> float:
        """√κ, taken as 2 where it is less: the rate that is promised."""
        return max(math.sqrt(self.largest / self.mu), 2.0)

    @property
    def iterations(self) -> float:
        """Iterations after which |∇J| ≤ tau/2 in exact arithmetic, math.md (2.8)."""
        first = 6 * math.sqrt(2) * self.largest / self.mu * self.lipschitz / self.tolerance
        return 1 + 2 * math.log(max(first, 1.0)) / -math.log1p(-1 / self.root)

    def rounding(
        self, records: int, features: int, feature_norm: float, weight: float, start: float
    ) -> float:
        """By how much a computed ∇J may be off on the way; `start`: the norm of the weights to begin with."""
        farthest = start + 6 * self.lipschitz / self.mu
        outputs = features * weight * feature_norm**2 * farthest
        return HALF_UNIT * (outputs + (records + 8) * self.lipschitz + 2 * self.mu * (farthest + start))

    def check(self, error: float = 0.0) -> None:
        """Refuse a tolerance that is not reached whatever the data; `error`: of computed gradients, where it is known."""
        if self.iterations > MOST_ITERATIONS:
            allowed = (
                f"larger, or mu larger beside feature_norm: to be reached on every data set it may take "
                f"{self.iterations:.3g} iterations, and {MOST_ITERATIONS} are made"
            )
            raise UsageError("tolerance", self.tolerance, allowed)
        least = 80 * self.root * max(error, HALF_UNIT * self.lipschitz)  # math.md (2.9)
        if self.tolerance < least:
            allowed = (
                f"at least {least:.2g}: float64 cannot be sure of less with these features, weights and mu"
            )
            raise UsageError("tolerance", self.tolerance, allowed)
