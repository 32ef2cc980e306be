"""Curves as plotly describes them: plain dictionaries, drawn by the plotly that the studio serves itself.

Lines differ in colour (Okabe and Ito's) and in dash, so that neither colour-blind readers nor grey print lose one.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from nbafl.studio.run_folders import Line

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#14202e", "#7b8794")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
INK, SOFT, LINE = "#14202e", "#556273", "#e6eaef"

METRICS = {
    "test_accuracy": "Test accuracy",
    "train_accuracy": "Training accuracy",
    "worst_client_accuracy": "Accuracy of the worst client",
    "train_loss": "Training loss",
    "test_loss": "Test loss",
    "clipped_fraction": "Share of uploads clipped",
    "upload_norm": "Norm of an upload before noise",
    "broadcast_norm": "Norm of the broadcast model",
}
SHARES = ("test_accuracy", "train_accuracy", "worst_client_accuracy", "clipped_fraction")

SHARE = "~%"
"""A share on an axis: as many decimals as its ticks need, so that no two of them read the same."""
CONFIG = {"displayModeBar": False, "showTips": False}


def colour(index: int) -> str:
    """The colour of the n-th line."""
    return COLOURS[index % len(COLOURS)]


def dash(index: int) -> str:
    """The dash of the n-th line."""
    return DASHES[index % len(DASHES)]


def figure(data: list[dict[str, Any]], layout: dict[str, Any]) -> dict[str, Any]:
    """A chart with the studio's look."""
    base: dict[str, Any] = {
        "margin": {"l": 52, "r": 14, "t": 10, "b": 42},
        "font": {"family": "Roboto, system-ui, sans-serif", "size": 12, "color": SOFT},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hovermode": "x unified",
        "showlegend": False,
        "uirevision": "keep",
        "hoverlabel": {"font": {"color": INK}, "bordercolor": "#dce2e9", "namelength": 40},
    }
    axis = {"gridcolor": LINE, "zeroline": False, "linecolor": "#b9c3ce", "automargin": True}
    for name in ("xaxis", "yaxis"):
        layout = {**layout, name: {**axis, **layout.get(name, {})}}
    return {"data": data, "layout": {**base, **layout}, "config": CONFIG}


def run_curves(
    runs: Sequence[tuple[str, list[list[Line]]]], metric: str, rounds: int | None = None
) -> dict[str, Any]:
    """One metric of several runs, overlaid; one run alone is seen against all the rounds it has to go.

    Each entry holds the seeds of one plan: several are drawn as their mean, with a band from the least to the greatest.
    """
    data = [
        trace for index, (name, seeds) in enumerate(runs) for trace in _traces(index, name, seeds, metric)
    ]
    yaxis: dict[str, Any] = {"title": {"text": METRICS[metric]}, "rangemode": "normal"}
    if metric in SHARES:
        yaxis["tickformat"] = SHARE
    xaxis: dict[str, Any] = {"title": {"text": "round"}, "rangemode": "tozero"}
    if rounds and len(runs) == 1:
        xaxis["range"] = [0, rounds * 1.02]
    return figure(data, {"xaxis": xaxis, "yaxis": yaxis})


def _traces(index: int, name: str, seeds: list[list[Line]], metric: str) -> list[dict[str, Any]]:
    if len(seeds) == 1:
        return [_trace(index, name, seeds[0], metric)]
    values: dict[int, list[float]] = {}
    for line in (line for lines in seeds for line in lines if line.get(metric) is not None):
        values.setdefault(line["round"], []).append(line[metric])
    shared = sorted(at for at, found in values.items() if len(found) == len(seeds))
    means = [{"round": at, metric: fmean(values[at])} for at in shared]
    edges = ([max(values[at]) for at in shared], [min(values[at]) for at in shared])
    return [*_band(index, name, shared, *edges), _trace(index, f"{name}, mean", means, metric)]


def _band(index: int, name: str, at: list[int], high: list[float], low: list[float]) -> list[dict[str, Any]]:
    base = {"type": "scatter", "mode": "lines", "line": {"width": 0}, "x": at, "hoverinfo": "skip"}
    shade = {"fill": "tonexty", "fillcolor": f"{colour(index)}33"}
    return [
        {**base, "name": f"{name}, most", "y": high},
        {**base, "name": f"{name}, least", "y": low, **shade},
    ]


def _trace(index: int, name: str, lines: list[Line], metric: str) -> dict[str, Any]:
    points = [(line["round"], line[metric]) for line in lines if line.get(metric) is not None]
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(points) <= 60 else "lines",
        "name": name,
        "x": [round for round, _ in points],
        "y": [value for _, value in points],
        "line": {"color": colour(index), "dash": dash(index), "width": 2},
        "marker": {"size": 5, "symbol": index % 8},
        "hovertemplate": "%{y:.1%}" if metric in SHARES else "%{y:.4f}",
    }
