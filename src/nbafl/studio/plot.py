"""A chart's place on a page: hidden while it has nothing to show, never taken away; with what one does to any chart.

A chart that is removed before the browser has loaded plotly is measured all the same and complains in the console; one
that stays, in a place that is hidden, does not. Below each chart: take it along as SVG, PNG or CSV, and a logarithmic
axis. Dragging over the chart zooms in; a double click goes back.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from functools import partial
from typing import Any

from nicegui import ui
from nicegui.element import Element

PICTURE = {"width": 700, "height": 420}


class Plot:
    """Shows a figure, replaces it in place, or hides it."""

    def __init__(self, props: str, name: str) -> None:
        self._props = props
        self._name = name
        self._box = ui.element("div")
        self._chart: ui.plotly | None = None
        self._figure: dict[str, Any] = {}
        self._logarithmic = False

    def show(self, figure: dict[str, Any] | None) -> None:
        """Draw this figure from now on; None hides the chart."""
        self._box.visible = figure is not None
        if figure is None:
            return
        self._figure = figure
        if self._chart is None:
            with self._box:
                self._chart = ui.plotly(self._drawn()).classes("chart").props(self._props)
                self._chart.props(f'role="img" aria-label="{self._name}"')
                self._tools()
        else:
            self._chart.update_figure(self._drawn())

    def _drawn(self) -> dict[str, Any]:
        """The figure, with the axis as it was asked for."""
        if not self._logarithmic:
            return self._figure
        layout = self._figure["layout"]
        yaxis = {key: value for key, value in layout["yaxis"].items() if key not in ("range", "rangemode")}
        return {**self._figure, "layout": {**layout, "yaxis": {**yaxis, "type": "log"}}}

    def _tools(self) -> None:
        with tools(self._name):
            self._switch = tool(self._name, "Log axis", self._turn, "log")
            self._switch.props('aria-pressed="false"')
            for kind in ("svg", "png"):
                tool(self._name, kind.upper(), partial(self._picture, kind), kind)
            tool(self._name, "CSV", self._table, "csv")

    def _turn(self) -> None:
        self._logarithmic = not self._logarithmic
        self._switch.props(f'aria-pressed="{str(self._logarithmic).lower()}"')
        self.show(self._figure)

    def _picture(self, kind: str) -> None:
        assert self._chart is not None
        scale = 3 if kind == "png" else 1
        options = {"format": kind, "filename": self._file, "scale": scale, **PICTURE}
        self._chart.client.run_javascript(f"window.studioPicture({self._chart.id}, {json.dumps(options)})")

    def _table(self) -> None:
        ui.download.content(as_csv(self._figure), f"{self._file}.csv", "text/csv")

    @property
    def _file(self) -> str:
        return self._name.lower().replace(" ", "-")


def tools(name: str) -> Element:
    """The row below a chart that its tools stand in."""
    return ui.element("div").classes("tools").props(f'role="group" aria-label="{name}: tools"')


def tool(name: str, text: str, action: Callable[[], None], kind: str) -> ui.button:
    """One of them, for the chart of that name."""
    button = ui.button(text, on_click=action)
    return button.props(f'flat dense no-caps data-export={kind} title="{name}: {text}"')


def as_csv(figure: dict[str, Any]) -> str:
    """The points of a figure, a row each, with every digit."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    axes = [figure["layout"][axis].get("title", {}).get("text", axis[0]) for axis in ("xaxis", "yaxis")]
    writer.writerow(["series", *axes])
    for line in figure["data"]:
        if line.get("hoverinfo") != "skip":
            writer.writerows([line["name"], x, y] for x, y in zip(line["x"], line["y"], strict=True))
    return text.getvalue()
