"""What one client does in one round, as plain numbers.

`rule` says what is clipped and sent: under `paper` the whole weight vector (Algorithm 1), under `client` the
update against the broadcast; `gradient` and `proximal` are rules of proven sensitivity (MATH section 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from nbafl.errors import UsageError

RULES = ("paper", "client", "gradient", "proximal")
LOSSES = ("cross_entropy", "squared")


@dataclass(frozen=True)
class Training:
    """S steps of size eta on F_i(w) + (mu/2)|w - w_broadcast|^2, then clipping."""

    rule: str = "paper"
    steps: int = 5
    lr: float = 0.1
    mu: float = 0.01
    batch: int | None = None
    clip: float = 10.0
    record_clip: float = 1.0
    tolerance: float | None = None
    feature_norm: float | None = None
    """R, the bound of |(x, 1)| that `proximal` holds every record to."""
    loss: str = "cross_entropy"

    def __post_init__(self) -> None:
        _one_of("rule", self.rule, RULES)
        _one_of("loss", self.loss, LOSSES)
        if self.steps < 1:
            raise UsageError("steps", self.steps, "at least 1")
        if self.batch is not None and self.batch < 1:
            raise UsageError("batch", self.batch, "at least 1, or none for the full batch")
        _positive("lr", self.lr)
        _positive("clip", self.clip)
        _positive("record_clip", self.record_clip)
        if not (math.isfinite(self.mu) and self.mu >= 0):
            raise UsageError("mu", self.mu, "zero or a positive number")
        if self.tolerance is not None:
            _positive("tolerance", self.tolerance)
        if self.feature_norm is not None:
            _positive("feature_norm", self.feature_norm)


def _one_of(field: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(field, value, "one of " + ", ".join(allowed))


def _positive(field: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise UsageError(field, value, "a positive number")
