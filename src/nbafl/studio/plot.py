"""A chart's place on a page; the chart itself is there only while it has something to show.

A plotly chart that is merely hidden complains in the browser's console whenever the window changes size.
"""

from __future__ import annotations

from typing import Any

from nicegui import ui


class Plot:
    """Shows a figure, replaces it in place, or takes it away."""

    def __init__(self, props: str) -> None:
        self._props = props
        self._box = ui.element("div")
        self._chart: ui.plotly | None = None

    def show(self, figure: dict[str, Any] | None) -> None:
        """Draw this figure from now on; None takes the chart away."""
        if figure is None:
            self._box.clear()
            self._chart = None
        elif self._chart is None:
            with self._box:
                self._chart = ui.plotly(figure).classes("chart").props(self._props)
        else:
            self._chart.update_figure(figure)
        self._box.visible = figure is not None
