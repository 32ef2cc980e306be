"""The Runs page: every run folder, live curves while one is going, and several runs laid over each other.

The page looks at the disk once a second and sends only what changed, so a run started in a terminal shows up here
like one started from the page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode

from nicegui import Client, events, ui

from nbafl.errors import NbaflError
from nbafl.studio import charts, frame, run_cards
from nbafl.studio.draft import Draft
from nbafl.studio.launcher import Launcher
from nbafl.studio.plot import Plot
from nbafl.studio.shelf import Entry, Line, Shelf
from nbafl.studio.wording import escape

LOOK_EVERY = 1.0
PAGE_LENGTH = 12
MOST_COMPARED = 8

COLUMNS = [
    {"name": "name", "label": "Run", "field": "name", "align": "left", "sortable": True},
    {"name": "state", "label": "State", "field": "state", "align": "left", "sortable": True},
    {"name": "result", "label": "Result", "field": "accuracy", "align": "right", "sortable": True},
    {"name": "changed", "label": "Changed", "field": "changed", "align": "right", "sortable": True},
]
NAME_CELL = (
    '<q-td :props="props"><div class="run-name">{{ props.row.name }} '
    '<span class="result">{{ props.row.result }}</span></div>'
    '<div class="run-sub">{{ props.row.about }}</div></q-td>'
)
STATE_CELL = (
    '<q-td :props="props"><div v-html="props.row.badge"></div>'
    '<div class="run-sub" v-if="props.row.progress">{{ props.row.progress }}</div>'
    '<div class="meter" v-if="props.row.state == \'running\'"><i :style="{width: props.row.share + \'%\'}"></i></div></q-td>'
)
RESULT_CELL = '<q-td :props="props">{{ props.row.result }}</q-td>'
CHANGED_CELL = '<q-td :props="props"><span class="run-sub">{{ props.row.when }}</span></q-td>'


BRING_INTO_VIEW = (
    "if (innerWidth < 1100) document.querySelector('.details').scrollIntoView({behavior: 'smooth'})"
)
"""Where the list stands above the details, a run that was clicked would otherwise appear out of sight."""


class RunsPage:
    """One visitor's Runs page."""

    def __init__(self, client: Client, shelf: Shelf, launcher: Launcher, selected: Sequence[str]) -> None:
        self.client = client
        self.shelf = shelf
        self.launcher = launcher
        self.selected = list(dict.fromkeys(selected))[:MOST_COMPARED]
        self.metrics = ["test_accuracy", "train_loss"]
        self.rows: list[dict[str, Any]] = []
        self.entries: dict[str, Entry] = {}
        self.shown: object = None
        self.offered: object = None

    async def build(self) -> None:
        """Lay the page out around the runs there are now."""
        frame.heading("Runs", level=1).classes("visually-hidden")
        with frame.card("empty") as self.empty:
            self._empty_state()
        with ui.element("div").classes("runs") as self.content:
            with ui.element("div").classes("stack"):
                self._list()
            with ui.element("div").classes("stack details"):
                self._details()
        await self._look()
        ui.timer(LOOK_EVERY, self._look)

    # --- layout -----------------------------------------------------------------------------------------------

    def _empty_state(self) -> None:
        frame.heading("No runs yet")
        frame.markup(
            "<p>A run is a folder with a plan, its curves, its model and its privacy statement. Start one on the "
            '<a href="/">Plan page</a>, or in a terminal:</p><code>nbafl run</code>'
            f"<p>This page looks in <code>{escape(self.shelf.root)}</code> and shows new runs by itself.</p>"
        )

    def _list(self) -> None:
        self.table = ui.table(
            rows=[], columns=COLUMNS, row_key="name", selection="multiple", pagination=PAGE_LENGTH
        )
        self.table.props(
            'flat wrap-cells binary-state-sort data-runs color=primary rows-per-page-label="Runs per page"'
        )
        self.table.props(':rows-per-page-options="[12, 50, 0]"')
        self.table.props(""":selected-rows-label="n => n == 1 ? 'One run chosen' : n + ' runs chosen'" """)
        cells = {"name": NAME_CELL, "state": STATE_CELL, "result": RESULT_CELL, "changed": CHANGED_CELL}
        for name, template in cells.items():
            self.table.add_slot(f"body-cell-{name}", template)
        self.table.on("row-click", self._clicked, [[], ["name"], []])
        self.table.on_select(self._ticked)
        with self.table.add_slot("top"):
            search = ui.input(placeholder="Find a run").props(
                'dense outlined clearable aria-label="Find a run"'
            )
            search.bind_value_to(self.table, "filter")

    def _details(self) -> None:
        with frame.card() as self.chart_card:
            with ui.element("div").classes("twin"):
                self.plots = [self._plot(index) for index in range(2)]
            self.legend = frame.markup("").classes("caption")
        with frame.card() as self.detail_card:
            self.detail_head = frame.markup("").classes("run-head")
            self.detail = frame.markup("")
            self.actions = ui.element("div").classes("run-actions")
        with frame.card() as self.statement_card:
            frame.heading("Privacy statement")
            self.statement = frame.markup("")
        with frame.card() as self.audit_card:
            frame.heading("Audit")
            self.audit = frame.markup("")
        with frame.card("empty") as self.hint:
            frame.markup(
                "<h2>Choose a run</h2><p>Click a run to see its curves and its privacy statement; tick several to lay "
                "their curves over each other.</p>"
            )

    def _plot(self, index: int) -> Plot:
        with ui.element("div"):
            choose = ui.select(
                charts.METRICS,
                value=self.metrics[index],
                on_change=lambda event: self._measure(index, event.value),
            )
            choose.props(f'dense borderless options-dense aria-label="Metric of chart {index + 1}"')
            return Plot(f"data-chart={index}")

    # --- looking ----------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Read the disk off the event loop, then show what changed."""
        found = await asyncio.to_thread(self.shelf.look)
        if self.client.is_deleted:
            return
        self.entries = {entry.name: entry for entry in found}
        rows = [*self._starting(), *(run_cards.row(entry, self._failure(entry.name)) for entry in found)]
        if rows != self.rows:
            self.rows = rows
            self.table.rows = rows
        self._mark_selected()
        self.empty.visible, self.content.visible = not rows, bool(rows)
        await self._show()

    def _mark_selected(self) -> None:
        """Tick the chosen rows; said to the browser only when it does not know yet."""
        chosen = [row for row in self.rows if row["name"] in self.selected]
        if self.table.selected != chosen:
            self.table.selected = chosen

    def _starting(self) -> list[dict[str, Any]]:
        """Runs started here that have no folder yet: importing torch takes a moment."""
        return [
            run_cards.starting_row(name, "The process is starting.", launch.failure)
            for name, launch in self.launcher.launches.items()
            if name not in self.entries and (launch.alive or launch.failure)
        ]

    def _failure(self, name: str) -> str | None:
        launch = self.launcher.launches.get(name)
        return launch.failure if launch else None

    async def _show(self) -> None:
        """The right side, rebuilt only when something in it changed."""
        selected = self.selected
        chosen = [self.entries[name] for name in selected if name in self.entries]
        curves = [(entry.name, await asyncio.to_thread(self.shelf.curve, entry.name)) for entry in chosen]
        if self.client.is_deleted or selected is not self.selected:
            return  # others were chosen while the disk was read: whoever chose them shows them
        state = (
            chosen,
            [len(lines) for _, lines in curves],
            tuple(self.metrics),
            [self._failure(e.name) for e in chosen],
        )
        if state == self.shown:
            return
        self.shown = state
        self._show_curves(chosen, curves)
        for card in (self.detail_card, self.statement_card, self.audit_card):
            card.visible = bool(chosen)
        self.hint.visible = not chosen
        if len(chosen) == 1:
            self._show_one(chosen[0])
        elif chosen:
            self._show_several(chosen)

    def _show_curves(self, chosen: Sequence[Entry], curves: Sequence[tuple[str, list[Line]]]) -> None:
        self.chart_card.visible = any(lines for _, lines in curves)
        rounds = max((entry.plan.rounds for entry in chosen if entry.plan), default=0)
        for plot, metric in zip(self.plots, self.metrics, strict=True):
            plot.show(charts.run_curves(curves, metric, rounds) if self.chart_card.visible else None)
        self.legend.content = run_cards.legend([name for name, _ in curves])

    def _show_one(self, entry: Entry) -> None:
        self.detail_head.content = f"<h2>{escape(entry.name)}</h2>{run_cards.badge(entry.state)}"
        problem = entry.problem or self._failure(entry.name)
        notice = f'<p class="notice error">{escape(problem)}</p>' if problem else ""
        self.detail.content = notice + (run_cards.facts(entry) if entry.plan else "")
        self.statement.content = self._readable(
            lambda: run_cards.statement(self.shelf.privacy(entry.name), entry)
        )
        self.audit.content = self._readable(lambda: run_cards.audit(self.shelf.audit(entry.name), entry))
        self.audit_card.visible = entry.plan is not None
        self.statement_card.visible = entry.plan is not None and entry.state != "audit"
        self._show_actions(entry)

    def _show_several(self, chosen: Sequence[Entry]) -> None:
        self.detail_head.content = f"<h2>{len(chosen)} runs side by side</h2>"
        self.detail.content = run_cards.compare(chosen)
        self.statement.content = "".join(
            f"<h3>{escape(entry.name)}</h3>"
            + self._readable(lambda entry=entry: run_cards.statement(self.shelf.privacy(entry.name), entry))
            for entry in chosen
        )
        self.audit_card.visible = False
        self.actions.clear()
        self.offered = None

    def _show_actions(self, entry: Entry) -> None:
        """Buttons, rebuilt only when others are needed: one that is renewed every second cannot be clicked or focused."""
        offered = (entry.name, entry.has_report, entry.state, self.launcher.started_here(entry.name))
        if offered == self.offered:
            return
        self.offered = offered
        self.actions.clear()
        with self.actions:
            if entry.has_report:
                address = f"/files/runs/{quote(entry.name)}/report"
                _link("Open report", "open_in_new", address, "report")
                _link("Download report", "download", f"{address}?download=1", "download-report")
            if entry.plan is not None:
                _link("Use this plan", "tune", f"/?{Draft.from_plan(entry.plan).query()}", "use-plan")
            if self.launcher.started_here(entry.name):
                self._button("Stop", "stop", lambda: self.launcher.stop(entry.name))
            elif entry.state == "stopped":
                self._button("Resume", "play_arrow", lambda: self.launcher.resume(entry.name))

    def _button(self, text: str, icon: str, action: Any) -> None:
        async def act() -> None:
            try:
                await asyncio.to_thread(action)
            except (NbaflError, OSError) as error:
                frame.notify_error(str(error))
            self.shown = None
            await self._look()

        ui.button(text, icon=icon, on_click=act).props(f"outline no-caps data-action={text.lower()}")

    def _readable(self, make: Any) -> str:
        """What `make` says, or the sentence why a file of the run cannot be read."""
        try:
            return str(make())
        except NbaflError as error:
            return f'<p class="notice error">{escape(error)}</p>'

    # --- what people do ---------------------------------------------------------------------------------------

    async def _clicked(self, event: events.GenericEventArguments) -> None:
        await self._choose([event.args[1]["name"]])
        self.client.run_javascript(BRING_INTO_VIEW)

    async def _ticked(self, event: events.TableSelectionEventArguments) -> None:
        ticked = [row["name"] for row in event.selection]
        kept = [name for name in self.selected if name in ticked]
        await self._choose(kept + [name for name in ticked if name not in kept])

    async def _choose(self, names: Sequence[str]) -> None:
        if len(names) > MOST_COMPARED:
            frame.notify_error(f"At most {MOST_COMPARED} runs can be compared at once.")
        self.selected = list(names[:MOST_COMPARED])
        self._mark_selected()
        query = urlencode([("run", name) for name in self.selected])
        self.client.run_javascript(f"history.replaceState(history.state, '', '/runs?{query}')")
        await self._show()

    async def _measure(self, index: int, metric: str) -> None:
        self.metrics[index] = metric
        await self._show()


def _link(text: str, icon: str, address: str, action: str) -> None:
    button = ui.button(text, icon=icon).props(f'outline no-caps tag=a href="{address}" data-action={action}')
    if action == "report":
        button.props("target=_blank rel=noopener")
