"""The buttons below a run: its report, its plan, stop and resume, audit; and a menu to write on it, rename or remove it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from urllib.parse import quote

from nicegui import ui

from nbafl.errors import NbaflError
from nbafl.studio import layout, shelf
from nbafl.studio.draft import Draft
from nbafl.studio.launcher import Launcher
from nbafl.studio.run_folders import Entry
from nbafl.studio.wording import escape

Changed = Callable[[Sequence[str] | None], Awaitable[None]]


class RunActions:
    """What can be done with the runs that are chosen."""

    def __init__(self, launcher: Launcher, root: Path, changed: Changed) -> None:
        self.launcher = launcher
        self.root = root
        self.changed = changed
        self.offered: object = None

    def build(self) -> None:
        self.row = ui.element("div").classes("run-actions")

    def offer(self, entry: Entry) -> None:
        """What can be done with one run."""
        stoppable, auditing = (
            self.launcher.can_stop(entry.name),
            self.launcher.auditing(entry.name) is not None,
        )
        offered = (
            entry.name,
            entry.has_report,
            entry.state,
            entry.has_audit,
            entry.label,
            stoppable,
            auditing,
        )
        if offered == self.offered:
            return
        self.offered = offered
        self.row.clear()
        with self.row:
            self._files(entry)
            if entry.plan is not None:
                _link("Use this plan", "tune", f"/?{Draft.from_plan(entry.plan).query()}", "use-plan")
            if entry.state == "running" and stoppable:
                self._button("Stop", "stop", lambda: self.launcher.stop(entry.name))
            elif entry.state == "stopped":
                self._button("Resume", "play_arrow", lambda: self.launcher.resume(entry.name))
            if entry.plan is not None and entry.plan.noise and entry.state != "running" and not auditing:
                self._button("Audit", "policy", lambda: self.launcher.audit(entry.name))
            self._menu([entry])

    def offer_several(self, entries: Sequence[Entry]) -> None:
        """What can be done with several at once."""
        offered = tuple((entry.name, entry.state, entry.label) for entry in entries)
        if offered == self.offered:
            return
        self.offered = offered
        self.row.clear()
        with self.row:
            self._menu(entries)

    def _files(self, entry: Entry) -> None:
        address = f"/files/runs/{quote(entry.name)}"
        if entry.has_report:
            _link("Open report", "open_in_new", f"{address}/report", "report")
            _link("Download report", "download", f"{address}/report?download=1", "download-report")
        if entry.state == "sweep":
            _link("Open sweep", "open_in_new", f"{address}/sweep", "report")

    def _menu(self, entries: Sequence[Entry]) -> None:
        away = all(entry.label.archived for entry in entries)
        if len(entries) == 1:
            self._small("Note and tags", "edit_note", "label", lambda: self._write_on(entries[0]))
            if entries[0].state not in shelf.KEPT:
                self._small("Rename", "drive_file_rename_outline", "rename", lambda: self._rename(entries[0]))
        self._small(
            "Take out" if away else "Archive", "archive", "archive", lambda: self._archive(entries, not away)
        )
        if all(entry.state not in shelf.KEPT for entry in entries):
            self._small("Delete", "delete", "delete", lambda: self._delete(entries))

    def _small(self, text: str, icon: str, action: str, act: Callable[[], object]) -> None:
        ui.button(text, icon=icon, on_click=act).props(f"flat no-caps dense data-action={action}")

    # --- dialogs ----------------------------------------------------------------------------------------------

    def _write_on(self, entry: Entry) -> None:
        with (
            ui.dialog(value=True).props('aria-label="Note and tags"') as dialog,
            ui.card().classes("start-dialog"),
        ):
            layout.heading(f"Note and tags of {escape(entry.name)}")
            note = ui.textarea("Note", value=entry.label.note).props("outlined data-field=note")
            tags = ui.input("Tags, separated by commas", value=", ".join(entry.label.tags))
            tags.props("outlined dense data-field=tags")
            self._decide(
                dialog, "Save", lambda: shelf.relabel(entry, str(note.value or ""), str(tags.value or ""))
            )

    def _rename(self, entry: Entry) -> None:
        with (
            ui.dialog(value=True).props('aria-label="Rename this run"') as dialog,
            ui.card().classes("start-dialog"),
        ):
            layout.heading("Rename this run")
            name = ui.input("Name", value=entry.path.name).props("outlined dense data-field=new-name")
            self._decide(
                dialog, "Rename", lambda: [shelf.rename(entry, str(name.value or "").strip(), self.root)]
            )

    def _delete(self, entries: Sequence[Entry]) -> None:
        what = f"the run {entries[0].name}" if len(entries) == 1 else f"{len(entries)} runs"
        with ui.dialog(value=True).props('aria-label="Delete"') as dialog, ui.card().classes("start-dialog"):
            layout.heading(f"Delete {escape(what)}?")
            ui.label(
                "The folder is removed from the disk with its model and its privacy statement. There is no way back."
            )

            def remove() -> list[str]:
                for entry in entries:
                    shelf.delete(entry)
                return []

            self._decide(dialog, "Delete", remove)

    def _decide(self, dialog: ui.dialog, text: str, act: Callable[[], list[str] | None]) -> None:
        """The buttons of a dialog; `act` may say which runs are chosen afterwards."""
        problem = ui.label("").classes("field-error").props('role="alert" data-error=dialog')

        async def go() -> None:
            try:
                names = await asyncio.to_thread(act)
            except (NbaflError, OSError) as error:
                problem.text = str(error)
                return
            dialog.close()
            await self._done(names)

        with ui.row():
            ui.button(text, on_click=go).props("unelevated no-caps data-action=confirm")
            ui.button("Cancel", on_click=dialog.close).props("flat no-caps")

    # --- at once ----------------------------------------------------------------------------------------------

    async def _archive(self, entries: Sequence[Entry], away: bool) -> None:
        try:
            for entry in entries:
                await asyncio.to_thread(shelf.archive, entry, away)
        except (NbaflError, OSError) as error:
            layout.notify_error(str(error))
        await self._done([] if away else None)

    def _button(self, text: str, icon: str, action: Callable[[], object]) -> None:
        async def act() -> None:
            try:
                await asyncio.to_thread(action)
            except (NbaflError, OSError) as error:
                layout.notify_error(str(error))
            await self._done(None)

        ui.button(text, icon=icon, on_click=act).props(f"outline no-caps data-action={text.lower()}")

    async def _done(self, names: Sequence[str] | None) -> None:
        self.offered = None
        await self.changed(names)


def _link(text: str, icon: str, address: str, action: str) -> None:
    button = ui.button(text, icon=icon).props(f'outline no-caps tag=a href="{address}" data-action={action}')
    if action == "report":
        button.props("target=_blank rel=noopener")
