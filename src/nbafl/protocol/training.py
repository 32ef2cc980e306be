"""What one client does in one round, as plain numbers.

`rule` names what is clipped and sent: one of `nbafl.rules`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbafl.class_weights import largest
from nbafl.errors import UsageError

if TYPE_CHECKING:
    from nbafl.protocol.losses import Loss


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
    loss: Loss = "cross_entropy"
    class_weights: tuple[float, ...] | None = None
    """Public weights of the classes, in the order of the classes."""

    @property
    def largest_weight(self) -> float:
        """What G and the constants of a loss are multiplied by."""
        return largest(self.class_weights or ())

    def __post_init__(self) -> None:
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


def _positive(field: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise UsageError(field, value, "a positive number")
