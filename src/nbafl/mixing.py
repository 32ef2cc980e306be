"""The output function of SplitMix64 (Steele, Lea, Flood 2014): a counter in, 64 well-mixed bits out.

It works on signed 64-bit integers of numpy and of torch alike, so that a draw on any device is the same draw.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    Integers = TypeVar("Integers", np.ndarray, Tensor)

GOLDEN = -7046029254386353131
"""2^64 / golden ratio as a signed integer: the increment of SplitMix64."""
MULTIPLIERS = (-4658895280553007687, -7723592293110705685)


def mixed(value: Integers) -> Integers:
    """Mix int64 values; masks make the arithmetic shifts logical."""
    value = (value ^ ((value >> 30) & ((1 << 34) - 1))) * MULTIPLIERS[0]
    value = (value ^ ((value >> 27) & ((1 << 37) - 1))) * MULTIPLIERS[1]
    return value ^ ((value >> 31) & ((1 << 33) - 1))
