"""The paper's Assumption 1 as numbers, and the setting its theorems speak about.

`Constants` holds what the loss functions are assumed to satisfy; `TheoremSetting` holds what the federation does.
Both are plain records without torch, so that the bounds can be evaluated anywhere.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from nbafl.errors import UsageError


@dataclass(frozen=True)
class Constants:
    """Assumption 1: what is granted about the local losses F_i and their mean F."""

    rho: float  # 5) every F_i is rho-smooth
    beta: float  # 4) every F_i is beta-Lipschitz (`printed` only)
    polyak: float  # 2) l: F(w) - F(w*) <= |grad F(w)|^2 / (2 l)
    dissimilarity: float  # Lemma 2's B >= 1 (`printed` only)
    divergence: float  # 6) root mean square over clients of epsilon_i (`repaired` only)
    initial_gap: float  # 3) Theta = F(w0) - F(w*)

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            low = 1.0 if name == "dissimilarity" else 0.0
            if not (math.isfinite(value) and value >= low):
                raise UsageError(name, value, f"a finite number of at least {low:g}")
        for name in ("rho", "polyak"):
            if getattr(self, name) == 0:
                raise UsageError(name, 0.0, "positive")


@dataclass(frozen=True)
class TheoremSetting:
    """What the theorems know of a federation: N, K, T, L, m, epsilon, delta and mu."""

    clients: int
    per_round: int
    rounds: int
    exposures: int
    samples: int  # m, the smallest number of records a client holds
    epsilon: float
    delta: float
    mu: float  # weight of the proximal term

    def __post_init__(self) -> None:
        if self.clients < 1 or self.samples < 1 or self.exposures < 1 or self.rounds < 1:
            raise UsageError("clients, samples, exposures, rounds", self, "at least 1 each")
        if not 1 <= self.per_round <= self.clients:
            raise UsageError("per_round", self.per_round, f"between 1 and {self.clients} clients")
        if not self.epsilon > 0:
            raise UsageError("epsilon", self.epsilon, "positive")
        if not 0 < self.delta < 1:
            raise UsageError("delta", self.delta, "between 0 and 1")
        if not self.mu >= 0:
            raise UsageError("mu", self.mu, "at least 0")


@dataclass(frozen=True)
class Evaluation:
    """A number, or the reason why there is none. Never both."""

    value: float | None
    reason: str | None = None

    @staticmethod
    def refused(reason: str) -> Evaluation:
        """No value: a premise of the formula fails, and `reason` names it with its numbers."""
        return Evaluation(None, reason)

    def as_json(self) -> float | dict[str, str | None]:
        """The number itself, or `{"value": null, "reason": ...}`."""
        return self.value if self.value is not None else {"value": None, "reason": self.reason}
