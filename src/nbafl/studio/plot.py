"""A chart's place on a page: hidden while it has nothing to show, never taken away.

A chart that is removed before the browser has loaded plotly is measured all the same and complains in the console; one
that stays, in a place that is hidden, does not.
"""

from __future__ import annotations

from typing import Any

from nicegui import ui


class Plot:
    """Shows a figure, replaces it in place, or hides it."""

    def __init__(self, props: str) -> None:
        self._props = props
        self._box = ui.element("div")
        self._chart: ui.plotly | None = None

    def show(self, figure: dict[str, Any] | None) -> None:
        """Draw this figure from now on; None hides the chart."""
        self._box.visible = figure is not None
        if figure is None:
            return
        if self._chart is None:
            with self._box:
                self._chart = ui.plotly(figure).classes("chart").props(self._props)
        else:
            self._chart.update_figure(figure)
