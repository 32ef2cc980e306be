"""What a figure is before it is drawn, and how all of them are drawn: the same colours, dashes and markers.

Colours are Okabe and Ito's, which the colour-blind tell apart; each also has its own dash and marker, so that a grey
print reads the same. A band is one standard deviation over the seeds to either side of the mean.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nbafl.durable import write_bytes, write_text
from nbafl.folders.reproductions import picture_name

COLUMN = 3.5
"""Inches: one column of a journal."""
PRINTED: dict[Any, Any] = {"svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "nbafl"}
"""Text stays text, and the same picture is the same file."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00")
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES = ("-", "--", "-.", (0, (5, 1, 1, 1, 1, 1)), ":", (0, (1, 1)))


@dataclass(frozen=True)
class Series:
    """One line of a figure: a value for every x and every seed."""

    label: str
    x: tuple[float, ...]
    values: np.ndarray  # (seeds, len(x)); one row for a computed curve
    rank: int  # which colour, dash and marker
    measure: str = ""  # what the values are, in the CSV file
    dotted: bool = False  # a companion line: dotted, without markers or band
    hidden: bool = False  # in the CSV file only
    best: bool = False  # mark the smallest value

    @property
    def mean(self) -> np.ndarray:
        return self.values.mean(axis=0)

    @property
    def spread(self) -> np.ndarray:
        return self.values.std(axis=0, ddof=1) if len(self.values) > 1 else np.zeros(len(self.x))


@dataclass(frozen=True)
class Panel:
    """One set of axes."""

    series: tuple[Series, ...]
    xlabel: str
    ylabel: str
    title: str = ""
    log_y: bool = False
    log_x: bool = False
    limits: tuple[float, float] | None = None
    empty: str = ""  # written across axes that have nothing to show


@dataclass(frozen=True)
class Picture:
    """A figure of the paper under one calibration."""

    number: int
    calibration: str
    title: str
    panels: tuple[Panel, ...]
    note: str = ""

    @property
    def name(self) -> str:
        return picture_name(self.number, self.calibration)

    @property
    def banded(self) -> bool:
        """Whether some line has a spread over the seeds."""
        return any(len(series.values) > 1 for panel in self.panels for series in panel.series)


@dataclass(frozen=True)
class Files:
    """Where a picture was written."""

    png: Path
    svg: Path
    csv: Path = field()


def write(picture: Picture, folder: Path) -> Files:
    """PNG, SVG and CSV of a picture, and a PDF of it for a journal's column; text stays text in SVG and PDF."""
    files = Files(*(folder / f"{picture.name}.{kind}" for kind in ("png", "svg", "csv")))
    figure = draw(picture)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once, for both files
    for path in (files.png, files.svg):
        buffer = io.BytesIO()
        plain = {"Date": None} if path.suffix == ".svg" else None  # the same picture is the same file
        with rc_context(PRINTED):
            figure.savefig(buffer, format=path.suffix[1:], dpi=130, metadata=plain)
        write_bytes(path, buffer.getvalue())
    write_bytes(folder / f"{picture.name}.pdf", _for_a_column(picture))
    write_text(files.csv, as_csv(picture))
    return files


def _for_a_column(picture: Picture) -> bytes:
    """One column wide, panels below each other, without the title that a caption has."""
    buffer = io.BytesIO()
    with rc_context(
        {**PRINTED, "font.size": 7, "legend.fontsize": 6, "lines.linewidth": 1, "lines.markersize": 3}
    ):
        figure = Figure(figsize=(COLUMN, 0.75 * COLUMN * len(picture.panels)), layout="constrained")
        for axes, panel in zip(
            figure.subplots(len(picture.panels), 1, squeeze=False)[:, 0], picture.panels, strict=True
        ):
            _draw_panel(axes, panel)
        figure.savefig(buffer, format="pdf", metadata={"CreationDate": None})
    return buffer.getvalue()


def draw(picture: Picture) -> Figure:
    """The picture as a matplotlib figure."""
    figure = Figure(figsize=(6.4 * len(picture.panels), 4.8), layout="constrained")
    all_axes = figure.subplots(1, len(picture.panels), squeeze=False)[0]
    for axes, panel in zip(all_axes, picture.panels, strict=True):
        _draw_panel(axes, panel)
    figure.suptitle(
        f"Fig. {picture.number} ({picture.calibration} calibration): {picture.title}", fontsize=11
    )
    if picture.note:
        figure.supxlabel(picture.note, fontsize=7.5)
    return figure


def _draw_panel(axes: Axes, panel: Panel) -> None:
    for series in panel.series:
        if not series.hidden:
            _draw_series(axes, series)
    axes.set_xlabel(panel.xlabel)
    axes.set_ylabel(panel.ylabel)
    axes.set_title(panel.title, fontsize=9)
    axes.grid(True, linewidth=0.4, alpha=0.5)
    if panel.log_y:
        axes.set_yscale("log")
    if panel.log_x:
        axes.set_xscale("log")
    if panel.limits:
        axes.set_ylim(*panel.limits)
    if panel.series:
        axes.legend(fontsize=8)
    else:
        axes.text(0.5, 0.5, panel.empty, ha="center", va="center", wrap=True, transform=axes.transAxes)


def _draw_series(axes: Axes, series: Series) -> None:
    rank = series.rank % len(COLOURS)
    if series.dotted:
        axes.plot(
            series.x, series.mean, linestyle=":", linewidth=1.5, color=COLOURS[rank], label=series.label
        )
    else:
        axes.plot(
            series.x,
            series.mean,
            linestyle=DASHES[rank],
            linewidth=1.6,
            color=COLOURS[rank],
            marker=MARKERS[rank],
            markersize=4.5,
            markevery=1 if len(series.values) > 1 or len(series.x) <= 25 else 0.06,
            label=series.label,
        )
        if len(series.values) > 1:
            low, high = series.mean - series.spread, series.mean + series.spread
            axes.fill_between(series.x, low, high, color=COLOURS[rank], alpha=0.15, linewidth=0)
    if series.best:
        lowest = int(np.argmin(series.mean))
        axes.plot(
            series.x[lowest],
            series.mean[lowest],
            marker="*",
            markersize=13,
            color=COLOURS[rank],
            markeredgecolor="black",
        )


def as_csv(picture: Picture) -> str:
    """One row for each line, x and seed."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["figure", "calibration", "line", "measure", "x", "seed", "value"])
    for panel in picture.panels:
        for series in panel.series:
            for seed, row in enumerate(series.values):
                for x, value in zip(series.x, row, strict=True):
                    label = [
                        picture.number,
                        picture.calibration,
                        series.label,
                        series.measure or panel.ylabel,
                    ]
                    writer.writerow([*label, f"{x:g}", seed, repr(float(value))])
    return out.getvalue()


def same_limits(pictures: Sequence[Picture]) -> tuple[float, float]:
    """One y-range for the pictures that stand side by side."""
    values = [
        bound
        for picture in pictures
        for panel in picture.panels
        for series in panel.series
        if not series.hidden
        for bound in (np.min(series.mean - series.spread), np.max(series.mean + series.spread))
    ]
    low, high = float(min(values)), float(max(values))
    margin = 0.04 * (high - low)
    return low - margin, high + margin
