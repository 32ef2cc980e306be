"""Accuracy against the ε that really holds, over runs and sweeps: what privacy costs, in one chart.

An ε says something only with its adversary, δ and unit, so runs that differ in one of them are series of their own.
Seeds of one plan are one point where they are grouped, with the deviation as a bar.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from nbafl.studio import charts
from nbafl.studio.run_folders import Entry
from nbafl.studio.run_table import Group
from nbafl.studio.wording import short


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
        "xaxis": {"title": {"text": "ε that really holds"}, "type": "log"},
        "yaxis": {"title": {"text": "Test accuracy"}, "tickformat": ".0%"},
        "hovermode": "closest",
        "showlegend": True,
        "legend": {"orientation": "h", "y": 1.14, "x": 0},
        "margin": {"l": 52, "r": 14, "t": 34, "b": 42},
    }
    return charts.figure(data, layout)


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
