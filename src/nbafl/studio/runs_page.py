"""The Runs page: every run folder in a table, live curves while one is going, and several runs laid over each other.

The page looks at the disk once a second and sends only what changed, so a run started in a terminal shows up here
like one started from the page. What is chosen, searched, filtered and sorted stands in the address of the page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from nicegui import Client, events, ui

from nbafl.studio import layout, run_cards, run_table, tradeoff
from nbafl.studio.launcher import Launcher
from nbafl.studio.plot import Plot
from nbafl.studio.run_details import MOST_COMPARED, RunDetails
from nbafl.studio.run_folders import Entry, RunFolders
from nbafl.studio.run_table import ANY, FILTERS, Group, View
from nbafl.studio.wording import escape

LOOK_EVERY = 1.0
PAGE_LENGTH = 12

CELLS = {
    "name": (
        '<q-td :props="props"><div class="run-name">{{ props.row.label }} '
        '<span class="result">{{ props.row.result }}</span></div>'
        '<div class="run-sub">{{ props.row.about }}</div>'
        '<div class="run-sub" v-if="props.row.note">“{{ props.row.note }}”</div>'
        '<div v-if="props.row.marks" class="marks" v-html="props.row.marks"></div>'
        '<span class="tag" v-for="tag in props.row.tag.split(\' \').filter(t => t)">{{ tag }}</span></q-td>'
    ),
    "state": (
        '<q-td :props="props"><div v-html="props.row.badge"></div>'
        '<div class="run-sub" v-if="props.row.progress">{{ props.row.progress }}</div>'
        '<div class="meter" v-if="props.row.state == \'running\'">'
        "<i :style=\"{width: props.row.share + '%'}\"></i></div></q-td>"
    ),
    "claimed": '<q-td :props="props">{{ props.row.claimed_text }}</q-td>',
    "real": '<q-td :props="props">{{ props.row.real_text }}</q-td>',
    "delta": '<q-td :props="props">{{ props.row.delta_text }}</q-td>',
    "rounds": '<q-td :props="props">{{ props.row.rounds || "" }}</q-td>',
    "result": '<q-td :props="props">{{ props.row.result }}</q-td>',
    "duration": '<q-td :props="props">{{ props.row.duration }}</q-td>',
    "changed": '<q-td :props="props"><span class="run-sub">{{ props.row.when }}</span></q-td>',
}
FIND = (
    "(rows, words) => rows.filter(row => words.toLowerCase().split(/ +/).every(word => "
    "[row.label, row.state, row.about, row.progress, row.result, row.when, row.note, row.tag, row.marks, row.duration, "
    "row.adversary, row.unit, row.audit, row.claimed_text, row.real_text, row.delta_text]"
    ".some(shown => String(shown).toLowerCase().includes(word))))"
)
"""A run is found by every word that its row displays."""
BRING_INTO_VIEW = (
    "if (innerWidth < 1100) document.querySelector('.details').scrollIntoView({behavior: 'smooth'})"
)
"""Where the list stands above the details, a run that was clicked would otherwise appear out of sight."""


class RunsPage:
    """One visitor's Runs page."""

    def __init__(
        self, client: Client, run_folders: RunFolders, launcher: Launcher, selected: Sequence[str], view: View
    ) -> None:
        self.client = client
        self.run_folders = run_folders
        self.launcher = launcher
        self.view = view
        self.selected = list(dict.fromkeys(selected))[:MOST_COMPARED]
        self.rows: list[dict[str, Any]] = []
        self.groups: dict[str, Group] = {}
        self.entries: dict[str, Entry] = {}
        self.details = RunDetails(client, run_folders, launcher, self._changed)
        self.drawn: object = None

    async def build(self) -> None:
        """Lay the page out around the runs there are now."""
        layout.heading("Runs", level=1).classes("visually-hidden")
        with layout.card("empty") as self.empty:
            self._empty_state()
        with ui.element("div").classes("runs") as self.content:
            with ui.element("div").classes("stack"):
                self._list()
                with layout.card("key-chart") as self.key_card:
                    layout.heading("Accuracy against the ε that really holds")
                    self.key_chart = Plot("data-key-chart", "Accuracy against real epsilon")
                    self.key_note = layout.markup("", tag="p").classes("caption")
            self.details.build()
        await self._look()
        ui.timer(LOOK_EVERY, self._look)

    # --- layout -----------------------------------------------------------------------------------------------

    def _empty_state(self) -> None:
        layout.heading("No runs yet")
        layout.markup(
            "<p>A run is a folder with a plan, its curves, its model and its privacy statement. Start one on the "
            '<a href="/">Plan page</a>, or in a terminal:</p><code>nbafl run</code>'
            f"<p>This page looks in <code>{escape(self.run_folders.root)}</code> and shows new runs by itself.</p>"
        )

    def _list(self) -> None:
        pagination = {
            "rowsPerPage": PAGE_LENGTH,
            "sortBy": self.view.sort or None,
            "descending": self.view.descending,
        }
        self.table = ui.table(
            rows=[],
            columns=run_table.COLUMNS,
            row_key="name",
            selection="multiple",
            pagination=pagination,
            on_pagination_change=self._paged,
        )
        self.table.props(
            'flat wrap-cells binary-state-sort data-runs color=primary rows-per-page-label="Runs per page"'
        )
        self.table.props(''':rows-per-page-options="[12, 50, 0]" aria-label="Runs"''')
        self.table.props(""":selected-rows-label="n => n == 1 ? 'One run chosen' : n + ' runs chosen'" """)
        self.table.props(f":filter-method='{FIND}'")
        for name, template in CELLS.items():
            self.table.add_slot(f"body-cell-{name}", template)
        self.table.add_slot("header-selection", _tick("Choose all runs"))
        self.table.add_slot("body-selection", _tick("Choose this run"))
        self.table.on("row-click", self._clicked, [[], ["name"], []])
        self.table.on_select(self._ticked)
        with self.table.add_slot("top"), ui.element("div").classes("table-tools"):
            self._tools()

    def _tools(self) -> None:
        search = ui.input(placeholder="Find a run", value=self.view.find)
        search.props('dense outlined clearable aria-label="Find a run"').classes("find")
        search.bind_value_to(self.table, "filter")
        search.on_value_change(lambda event: self._see(replace(self.view, find=event.value or "")))
        self.filters = {name: self._filter(name, label) for name, label in FILTERS.items()}
        for field, text in (("grouped", "Seeds together"), ("archived", "Archived too")):
            ui.switch(
                text,
                value=getattr(self.view, field),
                on_change=lambda event, field=field: self._see(replace(self.view, **{field: event.value})),
            ).props(f"dense data-switch={field}")

    def _filter(self, name: str, label: str) -> ui.select:
        chosen = self.view.filters.get(name, ANY)
        select = ui.select(
            list(dict.fromkeys((ANY, chosen))),
            value=chosen,
            label=label,
            on_change=lambda event: self._see(self.view.with_filter(name, event.value or ANY)),
        )
        return select.props(f'dense outlined options-dense data-filter={name} aria-label="{label}"').classes(
            "filter"
        )

    # --- looking ----------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Read the disk off the event loop, then show what changed."""
        found = await asyncio.to_thread(self.run_folders.look)
        if self.client.is_deleted:
            return
        self.entries = {entry.name: entry for entry in found}
        await self._show()

    async def _changed(self, names: Sequence[str] | None = None) -> None:
        """Something was done to runs: look again, at these from now on."""
        if names is not None:
            self.selected = list(names)
            self._put_address()
        await self._look()

    async def _show(self) -> None:
        made = run_table.groups(list(self.entries.values()), self.view.grouped)
        self.groups = {group.name: group for group in made}
        rows = [*self._starting(), *(run_table.row(each, self._failure(each.name)) for each in made)]
        self._offer_filters(rows)
        rows = [row for row in rows if self.view.shows(row)]
        if rows != self.rows:
            self.rows = rows
            self.table.rows = rows
        self._mark_selected()
        self._fit()
        nothing = not self.entries and not self._starting()
        self.empty.visible, self.content.visible = nothing, not nothing
        self._show_key_chart()
        await self.details.show(self.selected, self.entries, self.view.grouped)

    def _fit(self) -> None:
        """All columns while no run is chosen; beside a run only those that say which is which."""
        chosen = bool(self.selected)
        self.content.classes(add="beside" if chosen else "", remove="" if chosen else "beside")
        columns = list(run_table.NARROW if chosen else run_table.LABELS)
        if self.table.props.get("visible-columns") != columns:
            self.table.props["visible-columns"] = columns
            self.table.update()

    def _offer_filters(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for name, select in self.filters.items():
            offered = run_table.choices(rows, name)
            offered += [select.value] if select.value not in offered else []
            if select.options != offered:
                select.set_options(offered)
            select.visible = len(offered) > 2 or select.value != ANY

    def _show_key_chart(self) -> None:
        """Of the runs that are chosen, or of all in sight where none is."""
        names = [row["name"] for row in self.rows if not self.selected or row["name"] in self._chosen_rows()]
        found = tradeoff.points(self.groups[name] for name in names if name in self.groups)
        if (state := (found, bool(self.selected))) == self.drawn:
            return
        self.drawn = state
        self.key_card.visible = bool(found)
        self.key_chart.show(tradeoff.figure(found))
        what = "the runs chosen" if self.selected else "all runs in the list"
        self.key_note.content = (
            f"{len(found)} point{'s' if len(found) != 1 else ''} from {what}; colours tell adversary, δ, unit and premise "
            "apart, because an ε says nothing without them. Runs without a finite ε are left out."
        )

    def _chosen_rows(self) -> set[str]:
        """The rows that stand for the runs chosen."""
        return {
            name
            for name, group in self.groups.items()
            if any(entry.name in self.selected for entry in group.entries)
        } | set(self.selected)

    def _mark_selected(self) -> None:
        """Tick the chosen rows; said to the browser only when it does not know yet."""
        names = self._chosen_rows()
        chosen = [row for row in self.rows if row["name"] in names]
        if self.table.selected != chosen:
            self.table.selected = chosen

    def _starting(self) -> list[dict[str, Any]]:
        """Runs started here that have no folder yet: importing torch takes a moment."""
        return [
            run_cards.starting_row(name, "The process is starting.", launch.failure)
            for name, launch in self.launcher.launches.items()
            if name not in self.entries and self.launcher.starting(name)
        ]

    def _failure(self, name: str) -> str | None:
        launch = self.launcher.launches.get(name)
        return launch.failure if launch else None

    # --- what people do ---------------------------------------------------------------------------------------

    async def _clicked(self, event: events.GenericEventArguments) -> None:
        await self._choose([event.args[1]["name"]])
        self.client.run_javascript(BRING_INTO_VIEW)

    async def _ticked(self, event: events.TableSelectionEventArguments) -> None:
        ticked = [row["name"] for row in event.selection]
        await self._choose([name for name in self.selected if name in ticked] + ticked)

    async def _choose(self, names: Sequence[str]) -> None:
        alone = {name: (name,) for name in names}
        members = {name: tuple(entry.name for entry in group.entries) for name, group in self.groups.items()}
        wanted = list(dict.fromkeys(each for name in names for each in (alone | members)[name]))
        if len(wanted) > MOST_COMPARED:
            layout.notify_error(f"At most {MOST_COMPARED} runs can be compared at once.")
        self.selected = wanted[:MOST_COMPARED]
        self._put_address()
        await self._show()

    async def _see(self, view: View) -> None:
        self.view = view
        self._put_address()
        await self._show()

    async def _paged(self, event: events.ValueChangeEventArguments[dict[str, Any]]) -> None:
        sort = event.value.get("sortBy") or ""
        if (sort, event.value.get("descending", False)) != (self.view.sort, self.view.descending):
            self.view = replace(self.view, sort=sort, descending=bool(event.value.get("descending")))
            self._put_address()

    def _put_address(self) -> None:
        query = urlencode([*(("run", name) for name in self.selected), *self.view.query()])
        self.client.run_javascript(
            f"history.replaceState(history.state, '', '/runs{'?' if query else ''}{query}')"
        )


def _tick(label: str) -> str:
    """A box to tick that has a name."""
    return f'<q-checkbox v-model="props.selected" aria-label="{label}" dense />'
