"""Who pays what under secure aggregation: the price of a sum with at least M uploads, by who is looking.

M is the fewest uploads a sum may contain and k the accomplices the plan counts on; each of them knows its own part, so
M - k clients' noise hides the target from a lawless server with k accomplices, and M clients' from everybody who works
with none. With more accomplices than k the protocol may open single uploads: the server then pays what one upload
costs. Everything is in mu^2 and epsilon by `integers`; taps on the wire open nothing, so exposures do not matter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr, ndtri

from nbafl.privacy.adversary import Adversary
from nbafl.privacy.gaussian import gdp_delta
from nbafl.privacy.integers import Grid, IntegerSums


@dataclass(frozen=True)
class SecureSums:
    """The sums of a plan: what is in them, on which grid, M and k."""

    sums: IntegerSums
    grid: Grid
    fewest: int
    accomplices: int
    beside: SecureSums | None = None
    """Sums of scores that the same clients release beside these."""

    def honest(self, adversary: Adversary) -> int:
        """How many clients' noise hides the target from this adversary, at least."""
        return noise_left(adversary, self.fewest, self.accomplices)

    def cost(self, adversary: Adversary, rounds: int | None = None) -> float:
        """mu^2 of so many rounds against this adversary, and of all that stands beside them."""
        beside = 0.0 if self.beside is None else self.beside.cost(adversary)
        return beside + self.sums.cost(self.grid, self.honest(adversary), rounds)

    def cost_server(self, rounds: int | None = None) -> float:
        """mu^2 of so many rounds to the server with the k accomplices that were planned for."""
        return self.sums.cost(self.grid, self.fewest - self.accomplices, rounds)

    def protecting(self, sensitivities: np.ndarray) -> SecureSums:
        """The same sums as they protect another unit, or under another premise."""
        return replace(self, sums=replace(self.sums, sensitivities=sensitivities))

    @property
    def cost_upload(self) -> float:
        """mu^2 of one upload that somebody opened: more than k accomplices, or broken cryptography."""
        return self.sums.cost(self.grid, 1, 1)

    def epsilon(self, adversary: Adversary, delta: float, rounds: int | None = None) -> float:
        """epsilon at delta after so many rounds."""
        return self._numbers(rounds).epsilon(self.cost(adversary, rounds), delta)

    def _numbers(self, rounds: int | None = None) -> IntegerSums:
        """All numbers that leave as one round of them: tau and tail of (9.2) depend on how many there are, T d."""
        made = self.sums if rounds is None else replace(self.sums, rounds=rounds)
        if self.beside is None:
            return made
        other = self.beside.sums
        numbers = made.rounds * made.dimension + other.rounds * other.dimension
        return replace(made, dimension=numbers, rounds=1)

    def delta(self, adversary: Adversary, epsilon: float) -> float:
        """delta at epsilon, math.md (9.2), never above 1."""
        cost, numbers = self.cost(adversary), self._numbers()
        tau = numbers.tau
        if math.isinf(cost):
            return 1.0
        ideal = gdp_delta(max(0.0, epsilon - 2 * tau), math.sqrt(cost))
        return min(
            1.0, math.exp(tau) * ideal + numbers.tail(epsilon) + (2 * tau if epsilon < 2 * tau else 0.0)
        )

    def to_dict(self) -> dict[str, float | int]:
        """M, k and the grid, for a statement."""
        return {
            "min_answers": self.fewest,
            "accomplices": self.accomplices,
            "step": self.grid.step,
            "spread": self.grid.spread,
            "bits": self.grid.bits,
            "dimension": self.sums.dimension,
        }

    def attack_power(self, adversary: Adversary, false_positive_rate: float) -> float:
        """The highest true positive rate of any test at that false positive rate, the sampler's error included."""
        cost, numbers = self.cost(adversary), self._numbers()
        tau = numbers.tau
        if math.isinf(cost):
            return 1.0
        at = min(1.0, false_positive_rate * math.exp(tau))
        power = float(ndtr(ndtri(at) + math.sqrt(cost))) * math.exp(tau) + numbers.tail(0.0)
        return min(1.0, power)


def noise_left(adversary: Adversary, fewest: int, accomplices: int) -> int:
    """M less the accomplices' own noise; 1 for a server with more of them than planned, who may see the upload itself."""
    if adversary.uploads == "all" and adversary.accomplices > accomplices:
        return 1
    return max(1, fewest - adversary.accomplices)
