"""Public weights of classes, written as `ill=5, well=1`; a class that is not named weighs 1.

They multiply what a record adds to its client's objective, whose sum is divided by the number of records. Everything that
bounds a record's part grows with the largest weight: G of the `gradient` rule, the constants of a loss under `proximal`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from nbafl.errors import UsageError

_ALLOWED = "like ill=5,well=1: names of classes, each with a positive number"


def parse(text: str) -> dict[str, float]:
    """The weights by class name."""
    found: dict[str, float] = {}
    for part in text.split(",") if text else ():
        name, sign, number = (piece.strip() for piece in part.rpartition("="))
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        if not (sign and name and math.isfinite(weight) and weight > 0) or name in found:
            raise UsageError("class_weights", text, _ALLOWED)
        found[name] = weight
    return found


def written(weights: Mapping[str, float]) -> str:
    """The inverse of `parse`, for weights given from Python."""
    text = ",".join(f"{name}={float(weight):.17g}" for name, weight in weights.items())
    parse(text)
    return text


def largest(weights: Iterable[float]) -> float:
    """What bounds grow by: the largest weight, and at least 1, which classes without a weight have."""
    return max([1.0, *weights])


def in_order(text: str, classes: Sequence[str]) -> tuple[float, ...]:
    """One weight per class, in the order of the classes."""
    named = parse(text)
    strange = [name for name in named if name not in classes]
    if strange:
        known = ", ".join(classes) if classes else "none: the target is a number"
        raise UsageError(
            "class_weights", text, f"for classes of the data ({known}); {strange[0]!r} is not one"
        )
    return tuple(named.get(name, 1.0) for name in classes)
