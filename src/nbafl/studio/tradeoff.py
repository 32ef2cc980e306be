"""Accuracy against the ε that really holds, over runs and sweeps: what privacy costs, in one chart.

An ε says something only with its adversary, δ and unit, so runs that differ in one of them are series of their own.
Seeds of one plan are one point where they are grouped, with the deviation as a bar.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from nbafl.studio import charts
from nbafl.studio.run_folders import Entry
from nbafl.studio.run_table import Group
from nbafl.studio.wording import short

MOST_DENSE = 2000.0
"""The largest over the least ε up to which ticks stand at 1, 2 and 5, and not at powers of ten alone."""


@dataclass(frozen=True)
class Point:
    """One setting that was trained."""

    name: str
    epsilon: float
    accuracy: float
    deviation: float | None
    about: str
    """Against whom, at which δ, for what unit, on which premise."""


def points(groups: Iterable[Group]) -> list[Point]:
    """What finished runs and sweeps found; runs without a finite ε or without a test accuracy have no place here."""
    found: list[Point] = []
    for group in groups:
        entry = group.entries[0]
        found += _of_sweep(entry) if entry.state == "sweep" else _of_runs(group)
    return found


def _of_runs(group: Group) -> list[Point]:
    entry = group.entries[0]
    values = [
        e.last["test_accuracy"] for e in group.entries if e.last and e.last.get("test_accuracy") is not None
    ]
    if entry.state != "finished" or entry.plan is None or entry.epsilon is None or not values:
        return []
    premise = f",{entry.plan.rule.if_it_holds}" if entry.plan.rule.conditional else ""
    about = f"{entry.plan.adversary}, δ {short(entry.plan.delta)}, one {entry.unit}{premise}"
    return [Point(group.label, entry.epsilon, fmean(values), _deviation(values), about)]


def _deviation(values: Sequence[float]) -> float | None:
    return stdev(values) if len(values) > 1 else None


def _of_sweep(entry: Entry) -> list[Point]:
    """The settings of a sweep, as its own table tells them."""
    found = []
    for number, setting in enumerate((entry.made or {}).get("settings") or []):
        epsilon, score = setting.get("real_epsilon"), setting.get("test_accuracy") or {}
        if isinstance(epsilon, int | float) and isinstance(score.get("mean"), int | float):
            about = f"{setting.get('against')}, δ {short(setting.get('delta'))}, one {setting.get('unit')}"
            name = f"{entry.name} #{number + 1}"
            found.append(Point(name, epsilon, score["mean"], score.get("deviation"), about))
    return found


def figure(found: Sequence[Point]) -> dict[str, Any] | None:
    """The chart; None where there is nothing to draw."""
    if not found:
        return None
    kinds = list(dict.fromkeys(point.about for point in found))
    data = [
        _series(i, kind, [point for point in found if point.about == kind]) for i, kind in enumerate(kinds)
    ]
    layout = {
        "xaxis": {"title": {"text": "ε that really holds"}, **_logarithmic(found)},
        "yaxis": {"title": {"text": "Test accuracy"}, "tickformat": charts.SHARE, "range": _range(found)},
        "hovermode": "closest",
        "showlegend": True,
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    }
    return charts.figure(data, layout)


def _range(found: Sequence[Point]) -> list[float]:
    """Accuracies with their deviations and some room, and nothing far beyond 0% and 100%."""
    low = min(point.accuracy - (point.deviation or 0) for point in found)
    high = max(point.accuracy + (point.deviation or 0) for point in found)
    room, edge = max(0.05, 0.1 * (high - low)), 0.01 + 0.05 * (high - low)
    return [max(-edge, low - room), min(1 + edge, high + room)]


def _logarithmic(found: Sequence[Point]) -> dict[str, Any]:
    """An axis from one of 1, 2, 5, 10, … to another, with its ticks written out: a lone 5 could be 50."""
    axis: dict[str, Any] = {"type": "log", "tickformat": ",~r"}
    epsilons = [point.epsilon for point in found if point.epsilon > 0]
    if not epsilons:
        return axis
    low = max(tick for tick in _ticks(min(epsilons)) if tick < min(epsilons))
    high = min(tick for tick in _ticks(max(epsilons)) if tick > max(epsilons))
    dense = high <= MOST_DENSE * low
    return {**axis, "range": [math.log10(low), math.log10(high)], "dtick": "D2" if dense else 1}


def _ticks(value: float) -> list[float]:
    """1, 2, 5, 10, … around a value."""
    decade = math.floor(math.log10(value))
    return [digit * 10.0**power for power in range(decade - 1, decade + 2) for digit in (1, 2, 5)]


def _series(index: int, kind: str, members: Sequence[Point]) -> dict[str, Any]:
    ordered = sorted(members, key=lambda point: point.epsilon)
    return {
        "type": "scatter",
        "mode": "markers",
        "name": kind,
        "x": [point.epsilon for point in ordered],
        "y": [point.accuracy for point in ordered],
        "text": [point.name for point in ordered],
        "marker": {
            "size": 10,
            "symbol": index % 8,
            "color": charts.colour(index),
            "line": {"width": 1, "color": "#fff"},
        },
        "error_y": {
            "type": "data",
            "array": [point.deviation or 0 for point in ordered],
            "visible": any(point.deviation for point in ordered),
            "color": charts.colour(index),
        },
        "hovertemplate": "%{text}<br>ε %{x:.4g}, accuracy %{y:.1%}",
    }
