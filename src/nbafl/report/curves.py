"""The pictures of a run, each as an SVG string that can stand inside a page.

Colours are Okabe and Ito's, told apart by colour-blind readers; line styles differ too, so that grey print works.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from html import escape
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#666666"

Lines = Sequence[dict[str, Any]]


def draw_all(metrics: Lines, noise: Sequence[float], of_records: bool) -> dict[str, str]:
    """Every picture that this run has data for, by its title.

    `noise` is the length of all noise in the model after each round; `of_records`: single records' gradients are clipped.
    """
    clipped = ("Gradients of records that were clipped", "share of records")
    if not of_records:
        clipped = ("Uploads that were clipped", "share of uploads")
    pictures = {
        "Loss by round": _curves(metrics, "loss (mean per record)", LOSSES),
        "Accuracy by round": _curves(metrics, "accuracy (share of records)", ACCURACIES),
        "Spread between clients": _client_spread(metrics),
        "Length of the model and of all noise in it": _norms(metrics, noise),
        clipped[0]: _curves(metrics, clipped[1], CLIPPED),
    }
    return {title: svg for title, svg in pictures.items() if svg}


LOSSES = (("train_loss", "training records", BLUE, "-"), ("test_loss", "test records", ORANGE, "--"))
ACCURACIES = (
    ("train_accuracy", "training records", BLUE, "-"),
    ("test_accuracy", "test records", ORANGE, "--"),
)
CLIPPED = (("clipped_fraction", "norm above the bound before clipping", RED, "-"),)


def _curves(metrics: Lines, label: str, series: Sequence[tuple[str, str, str, str]]) -> str | None:
    figure, axes = _canvas(label)
    drawn = [_line(axes, metrics, *each) for each in series]
    return _finished(figure, axes, any(drawn))


def _client_spread(metrics: Lines) -> str | None:
    figure, axes = _canvas("accuracy (share of a client's records)")
    mean = _line(axes, metrics, "mean_client_accuracy", "mean over clients", BLUE, "-")
    worst = _line(axes, metrics, "worst_client_accuracy", "worst client", RED, ":")
    rounds, means = _points(metrics, "mean_client_accuracy")
    _, worsts = _points(metrics, "worst_client_accuracy")
    if len(means) == len(worsts):
        axes.fill_between(rounds, worsts, means, color=BLUE, alpha=0.12, linewidth=0)
    return _finished(figure, axes, mean and worst)


def _norms(metrics: Lines, noise: Sequence[float]) -> str | None:
    figure, axes = _canvas("Euclidean norm")
    drawn = [
        _line(axes, metrics, "broadcast_norm", "broadcast model", BLUE, "-"),
        _line(axes, metrics, "upload_norm", "an upload before noise (mean)", GREEN, "--"),
    ]
    rounds = [line["round"] for line in metrics if line["round"] <= len(noise)]
    if rounds and noise[-1]:
        lengths = [noise[number - 1] for number in rounds]
        axes.plot(
            rounds, lengths, ":", color=RED, label="noise added so far (expected, if none is unlearned)"
        )
    axes.set_ylim(bottom=0)
    return _finished(figure, axes, any(drawn))


def _canvas(label: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(5.6, 3.4))
    axes = figure.subplots()
    axes.set_xlabel("round (aggregation)")
    axes.set_ylabel(label)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure, axes


def _points(metrics: Lines, name: str) -> tuple[list[int], list[float]]:
    found = [(line["round"], line[name]) for line in metrics if line.get(name) is not None]
    return [at for at, _ in found], [value for _, value in found]


def _line(axes: Axes, metrics: Lines, name: str, label: str, colour: str, style: str) -> bool:
    rounds, values = _points(metrics, name)
    if values:
        marker = "o" if len(values) <= 40 else None
        axes.plot(rounds, values, style, color=colour, marker=marker, markersize=3, label=label)
    return bool(values)


def _finished(figure: Figure, axes: Axes, drawn: bool) -> str | None:
    """The picture as SVG, or None where there was nothing to draw."""
    return _as_svg(figure, axes) if drawn else None


def _as_svg(figure: Figure, axes: Axes) -> str:
    axes.legend(frameon=False)
    figure.tight_layout()
    text = io.StringIO()
    with matplotlib.rc_context(
        {"svg.fonttype": "none", "font.family": "sans-serif"}
    ):  # text that can be searched and copied
        figure.savefig(text, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    svg = text.getvalue()
    # One name for those who cannot see it, instead of hundreds of nameless strokes.
    return svg[svg.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{escape(_told(axes))}"', 1)


def _told(axes: Axes) -> str:
    """What is drawn, in words: every line by its first and its last value."""
    said = [
        f"{line.get_label()}: {_ends(np.asarray(line.get_xdata()), np.asarray(line.get_ydata()))}"
        for line in axes.get_lines()
    ]
    return f"{axes.get_ylabel()} by round; " + "; ".join(said)


def _ends(rounds: np.ndarray, values: np.ndarray) -> str:
    first, last = f"{values[0]:.3g}", f"{values[-1]:.3g}"
    return first if first == last else f"{first} in round {rounds[0]:g}, {last} in round {rounds[-1]:g}"
