"""Which number of rounds T, or of clients a round K, makes a formula smallest.

Works on whole numbers by looking at every candidate, so it needs no convexity, and it says when the smallest
value sits at the edge of the candidates (then more, or fewer, would be better still) or when the formula has
no value anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from nbafl.theory.assumptions import Evaluation


@dataclass(frozen=True)
class Optimum:
    """The smallest value on a curve over whole numbers, and whether it is a true valley."""

    at: int | None
    value: float | None
    interior: bool
    reason: str | None  # why there is no optimum, or why it is no interior one
    candidates: tuple[int, ...]
    curve: tuple[Evaluation, ...]

    def as_json(self) -> dict[str, object]:
        """The curve and its minimiser as plain lists, for plots and for machines."""
        return {
            "at": self.at,
            "value": self.value,
            "interior": self.interior,
            "reason": self.reason,
            "candidates": list(self.candidates),
            "values": [point.value for point in self.curve],
        }


def whole_numbers(limit: int, dense: int = 25, growth: float = 1.12) -> list[int]:
    """1, 2, ... up to `dense`, then steps of 12% up to `limit`: few enough to evaluate, close enough to draw."""
    numbers = list(range(1, min(limit, dense) + 1))
    while numbers[-1] < limit:
        numbers.append(min(limit, math.ceil(numbers[-1] * growth)))
    return numbers


def minimise(name: str, evaluate: Callable[[int], Evaluation], candidates: Iterable[int]) -> Optimum:
    """The whole number where `evaluate` is smallest; `name` is T or K in the reasons.

    Where candidates leave gaps, the gaps beside the smallest value are filled until it is known to the unit.
    """
    points = {point: evaluate(point) for point in candidates}
    while (missing := _gaps(points)) != []:
        points |= {point: evaluate(point) for point in missing}
    order = tuple(sorted(points))
    curve = tuple(points[point] for point in order)
    known = [index for index, point in enumerate(curve) if point.value is not None]
    if not known:
        reason = curve[0].reason if curve else f"there is no candidate for {name}"
        return Optimum(None, None, False, f"no {name} has a value: {reason}", order, curve)
    best = min(known, key=lambda index: curve[index].value or 0.0)
    interior = known[0] < best < known[-1]
    reason = None if interior else _edge(name, order[best], best == known[0], len(known) == 1)
    return Optimum(order[best], curve[best].value, interior, reason, order, curve)


def _gaps(points: dict[int, Evaluation]) -> list[int]:
    """Up to 8 whole numbers inside each gap next to the smallest value; none when its neighbours are known."""
    known = [point for point in sorted(points) if points[point].value is not None]
    if not known:
        return []
    order = sorted(points)
    place = order.index(min(known, key=lambda point: points[point].value or 0.0))
    missing: set[int] = set()
    for low, high in zip(order[max(0, place - 1) : place + 1], order[place : place + 2], strict=False):
        step = max(1, (high - low) // 9)
        missing |= set(range(low + step, high, step))
    return sorted(missing)


def _edge(name: str, at: int, smallest: bool, alone: bool) -> str:
    """Why the smallest value is not an interior optimum."""
    if alone:
        return f"{name} = {at} is the only candidate with a value"
    if smallest:
        return f"the loss is least at the smallest {name} that has a value, {at}"
    return f"the loss still falls at the largest {name} looked at, {at}"
