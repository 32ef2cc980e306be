"""The page and the pictures of a sweep: accuracy over the epsilon that holds, a line for each setting."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from jinja2 import Environment, PackageLoader, select_autoescape
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nbafl.durable import write_text
from nbafl.sweeps.table import SweepTable

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#666666")
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
SCORES = {
    "test_accuracy": "accuracy (share of records)",
    "test_loss": "loss (mean per record)",
    "train_loss": "training loss (mean per record)",
}
MOST_LINES = 12
MOST_TICKS = 8


def write_page(table: SweepTable) -> Path:
    """index.html with everything in it, and the picture beside it as a file."""
    picture = draw(table)
    write_text(table.path / "accuracy-over-epsilon.svg", picture)
    environment = Environment(loader=PackageLoader("nbafl", "sweeps"), autoescape=select_autoescape())
    environment.filters |= {"number": _number}
    page = environment.get_template("sweep.html").render(
        name=table.path.resolve().name,
        table=table,
        told=table.to_dict(),
        axes=list(table.grid.axes),
        picture=picture[picture.index("<svg") :],
        scored_on=table.scored_on,
    )
    path = table.path / "index.html"
    write_text(path, page)
    return path


def draw(table: SweepTable) -> str:
    """The score over the epsilon that holds against each run's adversary, with bands over the seeds."""
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    lines = lines_of(table)
    for number, (label, entries) in enumerate(list(lines.items())[:MOST_LINES]):
        _line(axes, label, entries, table.score, number)
    epsilons = [
        entry["real_epsilon"] for entries in lines.values() for entry in entries if entry["real_epsilon"]
    ]
    if epsilons and max(epsilons) > 5 * min(epsilons):
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter("")
    if len(set(epsilons)) <= MOST_TICKS:
        axes.set_xticks(sorted(set(epsilons)), [f"{epsilon:.3g}" for epsilon in sorted(set(epsilons))])
    _mark_best(axes, table)
    axes.set_xlabel(_x_label(table))
    axes.set_ylabel(f"{SCORES[table.score]},\n{table.scored_on}")
    axes.set_title("What each setting reaches at the ε that holds")
    axes.grid(alpha=0.3)
    if len(lines) > MOST_LINES:
        axes.plot([], [], " ", label=f"and {len(lines) - MOST_LINES} more in the table")
    axes.legend(fontsize="small")
    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()


def lines_of(table: SweepTable) -> dict[str, list[dict[str, Any]]]:
    """Settings that differ only in epsilon, as one line each, in the order of their epsilons."""
    fields = [field for field in table.grid.axes if field != "epsilon"]
    lines: dict[str, list[dict[str, Any]]] = {}
    for entry in table.settings():
        label = ", ".join(f"{field.replace('_', ' ')} {entry[field]}" for field in fields) or "this plan"
        label += f" ({entry['premise']})" if entry["premise"] else ""
        lines.setdefault(label, []).append(entry)
    for entries in lines.values():
        entries.sort(key=lambda entry: entry["real_epsilon"] or 0.0)
    return lines


def _line(axes: Axes, label: str, entries: Sequence[dict[str, Any]], score: str, number: int) -> None:
    held = [entry for entry in entries if entry["real_epsilon"] and entry[score]["mean"] is not None]
    if not held:
        return
    x = [entry["real_epsilon"] for entry in held]
    mean = [entry[score]["mean"] for entry in held]
    style: dict[str, Any] = {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number // len(COLOURS) % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
    }
    axes.plot(x, mean, label=label, markersize=5, **style)
    if all(entry[score]["deviation"] is not None for entry in held):
        low = [entry[score]["mean"] - entry[score]["deviation"] for entry in held]
        high = [entry[score]["mean"] + entry[score]["deviation"] for entry in held]
        axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)


def _mark_best(axes: Axes, table: SweepTable) -> None:
    best = next((entry for entry in table.settings() if entry["best"] and entry["real_epsilon"]), None)
    if best is not None:
        place = (best["real_epsilon"], best[table.score]["mean"])
        axes.plot(*place, "*", color="black", markersize=13, label="best mean", zorder=5)


def _x_label(table: SweepTable) -> str:
    deltas = sorted({entry["delta"] for entry in table.settings() if entry["delta"] is not None})
    told = ", ".join(f"{delta:g}" for delta in deltas)
    seeds = len(table.grid.seeds)
    band = f"band: one standard deviation over {seeds} seeds" if seeds > 1 else "one seed, no band"
    return f"ε that holds against each run's own adversary, at δ = {told}\n({band})"


def _number(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
