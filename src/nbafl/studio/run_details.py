"""The right side of the Runs page: curves, facts, statement and audit of the runs that are chosen, and what can be done.

Everything here is rebuilt only when something in it changed; buttons only when others are needed, because one that is
renewed every second can be neither clicked nor focused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from nicegui import Client, ui

from nbafl.errors import NbaflError
from nbafl.studio import charts, federation_card, layout, run_cards, run_table, sweep_card
from nbafl.studio.launcher import Launcher
from nbafl.studio.plot import Plot
from nbafl.studio.run_actions import RunActions
from nbafl.studio.run_folders import Entry, Line, RunFolders
from nbafl.studio.wording import escape

MOST_COMPARED = 8
Changed = Callable[[Sequence[str] | None], Awaitable[None]]


class RunDetails:
    """What is known of the runs that are chosen."""

    def __init__(self, client: Client, run_folders: RunFolders, launcher: Launcher, changed: Changed) -> None:
        self.client = client
        self.run_folders = run_folders
        self.launcher = launcher
        self.changed = changed
        self.metrics = ["test_accuracy", "train_loss"]
        self.asked: tuple[Sequence[str], Mapping[str, Entry], bool] = ((), {}, False)
        self.shown: object = None

    def build(self) -> None:
        """Lay out the cards, all of them hidden until a run is chosen."""
        with ui.element("div").classes("stack details"):
            with layout.card() as self.chart_card:
                with ui.element("div").classes("twin"):
                    self.plots = [self._plot(index) for index in range(2)]
                self.legend = layout.markup("").classes("caption")
            with layout.card() as self.detail_card:
                self.head = layout.markup("").classes("run-head")
                self.detail = layout.markup("")
                self.actions = RunActions(self.launcher, self.run_folders.root, self.changed)
                self.actions.build()
            with layout.card() as self.statement_card:
                layout.heading("Privacy statement")
                self.statement = layout.markup("")
            with layout.card() as self.audit_card:
                layout.heading("Audit")
                self.audit = layout.markup("")
            with layout.card("empty") as self.hint:
                self.hint_text = layout.markup("")

    def _plot(self, index: int) -> Plot:
        with ui.element("div"):
            choose = ui.select(
                charts.METRICS,
                value=self.metrics[index],
                on_change=lambda event: self._measure(index, event.value),
            )
            choose.props(f'dense borderless options-dense aria-label="Metric of chart {index + 1}"')
            return Plot(f"data-chart={index}", f"Chart {index + 1} of the runs")

    async def _measure(self, index: int, metric: str) -> None:
        self.metrics[index] = metric
        await self.show(*self.asked)

    async def show(self, selected: Sequence[str], entries: Mapping[str, Entry], grouped: bool) -> None:
        """These runs from now on."""
        self.asked = (selected, entries, grouped)
        chosen = [entries[name] for name in selected if name in entries]
        lines = {entry.name: await asyncio.to_thread(self.run_folders.curve, entry.name) for entry in chosen}
        if self.client.is_deleted or selected is not self.asked[0]:
            return  # others were chosen while the disk was read: whoever chose them shows them
        state = (
            chosen,
            [len(each) for each in lines.values()],
            tuple(self.metrics),
            grouped,
            [(self._failure(each.name), self.launcher.auditing(each.name)) for each in chosen],
            self._live(chosen),
            None if chosen else self._hint(selected, entries),
        )
        if state == self.shown:
            return
        self.shown = state
        self._show_curves(chosen, lines, grouped)
        for card in (self.detail_card, self.statement_card, self.audit_card):
            card.visible = bool(chosen)
        self.hint.visible = bool(selected) and not chosen
        self.hint_text.content = self._hint(selected, entries)
        if len(chosen) == 1:
            self._show_one(chosen[0])
        elif chosen:
            self._show_several(chosen)

    def _live(self, chosen: Sequence[Entry]) -> str:
        """What is not in a run folder and changes all the same: a federation's state."""
        return federation_card.draw(chosen[0].path) if [e.state for e in chosen] == ["federation"] else ""

    def _show_curves(self, chosen: Sequence[Entry], lines: Mapping[str, list[Line]], grouped: bool) -> None:
        curves = [
            (group.label, [lines[entry.name] for entry in group.entries])
            for group in run_table.groups(chosen, grouped)
            if group.entries[0].state != "sweep"
        ]
        self.chart_card.visible = any(each for _, members in curves for each in members)
        rounds = max((entry.plan.rounds for entry in chosen if entry.plan), default=0)
        for plot, metric in zip(self.plots, self.metrics, strict=True):
            plot.show(charts.run_curves(curves, metric, rounds) if self.chart_card.visible else None)
        self.legend.content = run_cards.legend([name for name, _ in curves])

    def _show_one(self, entry: Entry) -> None:
        marks = run_cards.marks(entry)
        self.head.content = f"<h2>{escape(entry.name)}</h2>{run_cards.badge(entry.state)}{marks}"
        problem = entry.problem or self._failure(entry.name)
        notice = f'<p class="notice error">{escape(problem)}</p>' if problem else ""
        self.detail.content = notice + run_cards.written(entry) + self._content(entry)
        self.statement.content = self._readable(
            lambda: run_cards.statement(self.run_folders.privacy(entry.name), entry)
        )
        self.audit.content = self._audit(entry)
        self.audit_card.visible = entry.plan is not None
        self.statement_card.visible = entry.plan is not None and entry.state != "audit"
        self.actions.offer(entry)

    def _content(self, entry: Entry) -> str:
        if entry.state == "sweep":
            return sweep_card.draw(entry)
        if entry.state == "federation":
            return self._live([entry])
        return run_cards.facts(entry) if entry.plan else ""

    def _audit(self, entry: Entry) -> str:
        going = self.launcher.auditing(entry.name)
        if going is not None:
            return f'<p role="status"><span class="badge live">{escape(going)}</span></p>'
        failed = self.launcher.audit_failure(entry.name)
        if failed is not None:
            return f'<p class="notice error">{escape(failed)}</p>'
        return self._readable(lambda: run_cards.audit(self.run_folders.audit(entry.name), entry))

    def _show_several(self, chosen: Sequence[Entry]) -> None:
        self.head.content = f"<h2>{len(chosen)} runs side by side</h2>"
        self.detail.content = run_cards.compare(chosen)
        self.statement.content = "".join(self._folded_statement(entry) for entry in chosen)
        self.audit_card.visible = False
        self.actions.offer_several(chosen)

    def _folded_statement(self, entry: Entry) -> str:
        said = self._readable(lambda: run_cards.statement(self.run_folders.privacy(entry.name), entry))
        return f"<details><summary>{escape(entry.name)}</summary>{said}</details>"

    def _hint(self, selected: Sequence[str], entries: Mapping[str, Entry]) -> str:
        """What is said where a run was asked for that is not there."""
        starting = [name for name in selected if name not in entries and self.launcher.starting(name)]
        if starting:
            failed = self._failure(starting[0])
            text = failed or "Its process is starting; curves appear with the first rounds."
            return f"<h2>{escape(starting[0])}</h2><p>{escape(text)}</p>"
        if not selected:
            return ""
        return (
            f"<h2>{escape(selected[0])} is not here</h2><p>There is no such run in this folder: it was deleted or renamed, "
            "or the link is from somewhere else. Choose another one from the list.</p>"
        )

    def _failure(self, name: str) -> str | None:
        launch = self.launcher.launches.get(name)
        return launch.failure if launch else None

    def _readable(self, make: Callable[[], Any]) -> str:
        """What `make` says, or the sentence why a file of the run cannot be read."""
        try:
            return str(make())
        except NbaflError as error:
            return f'<p class="notice error">{escape(error)}</p>'
