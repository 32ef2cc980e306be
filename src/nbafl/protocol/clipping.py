"""Clipping from a norm alone, for numpy and torch alike: whoever clips takes it from here."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    Numbers = TypeVar("Numbers", np.ndarray, Tensor)

HAIR = 2.0**-30
"""In float64 gradients are clipped so much inside G that the rounding of norms and sums stays within G too."""


def clip_factor(norm: Numbers, bound: float | Numbers) -> Numbers:
    """1 / max(1, |w|/C), Algorithm 1 line 8, from the norm alone."""
    return (bound / norm).clip(max=1.0)
