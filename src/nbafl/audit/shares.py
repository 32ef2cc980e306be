"""One overall error for a whole audit, split over everything it looks at.

At confidence 95% an audit may refute a sound mechanism one time in twenty. It is designed to do so five times more rarely,
one time in a hundred, and that hundredth is split: 40% go to the claim itself, 20% to all other attacks and patterns of
signs, 40% to the looks at the noise. By the union bound all statements of an audit hold together with probability
99%. The number of trials is fixed beforehand and everything is looked at once, at the end, so that nothing is gained
by stopping early.
"""

from __future__ import annotations

from dataclasses import dataclass

DESIGNED = 0.2
"""Part of the overall error that is spent."""
CLAIM, OTHERS, NOISE = 0.4, 0.2, 0.4
BOUNDS = 2
"""A proof is the larger of two bounds: the Gaussian and the distribution-free one."""


@dataclass(frozen=True)
class Shares:
    """The error of each bound."""

    overall: float
    claim: float
    """Of each bound of the plan's own adversary."""
    other: float
    """Of each bound of every other attack, and of every attack under one pattern of signs."""
    noise: float
    """Of all looks at one sample of noise."""

    @classmethod
    def of(cls, confidence: float, others: int, samples: int) -> Shares:
        """`others`: proofs beside that of the claim; `samples`: samples of noise that are looked at."""
        designed = DESIGNED * (1 - confidence)
        return cls(
            1 - confidence,
            CLAIM * designed / BOUNDS,
            OTHERS * designed / (BOUNDS * max(1, others)),
            NOISE * designed / samples,
        )

    @property
    def designed(self) -> float:
        return DESIGNED * self.overall

    def to_dict(self) -> dict[str, float]:
        return {
            "overall": self.overall,
            "designed": self.designed,
            "claim": CLAIM * self.designed,
            "other_attacks": OTHERS * self.designed,
            "noise": NOISE * self.designed,
        }
