"""The Plan page: move a slider, and read beside it at once what the plan needs and what it is worth."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

from nicegui import Client, ui

from nbafl.errors import NbaflError, UsageError
from nbafl.plan import Plan
from nbafl.presets import PRESETS
from nbafl.studio import bars, cards, frame, meaning
from nbafl.studio.answer import Answer, answer
from nbafl.studio.controls import Controls
from nbafl.studio.draft import Draft, Unfit
from nbafl.studio.latest import Latest
from nbafl.studio.launcher import Launcher
from nbafl.studio.outlook_card import OutlookCard
from nbafl.studio.wording import escape

PRESET_LABELS = {"paper": "The paper’s setting", "private": "A private setting"}


class PlanPage:
    """One visitor's Plan page."""

    def __init__(self, client: Client, draft: Draft, launcher: Launcher, outlook: OutlookCard) -> None:
        self.client = client
        self.draft = draft
        self.launcher = launcher
        self.outlook = outlook
        self.plan: Plan | None = None
        self.controls = Controls(client, draft, self._changed)
        self.answering: Latest[Plan, Answer | str] = Latest(client, _answered, self._show)

    def build(self) -> None:
        """Lay the page out and answer for the draft as it is."""
        frame.heading("Plan a federation", level=1).classes("visually-hidden")
        with ui.element("div").classes("plan-page"):
            with frame.card("controls"):
                with ui.element("div").classes("fields"):
                    self._presets()
                    self.note = ui.label("").classes("notice note").props('role="status"')
                    self.note.visible = False
                    self.controls.build()
                    self.carried = frame.markup("").classes("soft")
                self._actions()
            with ui.element("div").classes("answers") as self.answers:
                self._answer_cards()
        self.compact = frame.markup("").classes("compact").props('aria-hidden="true"')
        self._changed(None)

    # --- layout -----------------------------------------------------------------------------------------------

    def _presets(self) -> None:
        with ui.element("div").classes("presets").props('role="group" aria-label="Start from"'):
            ui.button("Defaults", on_click=lambda: self._start_from({})).props("outline dense no-caps")
            for name, fields in PRESETS.items():
                label = PRESET_LABELS.get(name, name)
                ui.button(label, on_click=lambda fields=fields: self._start_from(fields)).props(
                    "outline dense no-caps"
                )

    def _actions(self) -> None:
        with ui.element("div").classes("actions"):
            self.start = ui.button("Start this as a run", icon="play_arrow", on_click=self._ask_to_start)
            self.start.classes("primary").props("unelevated no-caps data-action=start")
            ui.button("Plan as TOML", icon="download", on_click=self._download).props(
                "outline no-caps data-action=toml"
            )
            ui.button("Copy command", icon="content_copy", on_click=self._copy).props(
                "outline no-caps data-action=copy"
            )

    def _answer_cards(self) -> None:
        self.error = ui.label("").classes("notice error wide").props('role="alert" data-error=plan')
        self.error.visible = False
        with frame.card("wide"):
            self.headline = frame.markup("").classes("head").props('role="status"')
            self.scales = frame.markup("")
            self.scales_caption = frame.markup("", tag="p").classes("caption")
        with frame.card("wide"):
            frame.heading("What each adversary could learn")
            self.bars = frame.markup("")
            self.bars_caption = frame.markup("", tag="p").classes("caption")
        with frame.card("meaning"):
            frame.heading("What it means for one record")
            self.meaning = frame.markup("")
        with ui.element("div").classes("stack"):
            with frame.card():
                frame.heading("Beware")
                self.notices = frame.markup("")
            with frame.card("assume"):
                frame.heading("What every ε here rests on")
                self.assumptions = frame.markup("").classes("soft")
        self.outlook.build()
        with frame.card("wide"):
            frame.heading("The same as a command")
            self.command = frame.markup("", tag="code").classes("command").props("data-command tabindex=0")

    # --- answering --------------------------------------------------------------------------------------------

    def _changed(self, name: str | None) -> None:
        """Something in the draft moved: answer, or say why there is no answer."""
        if name == "sensitivity":
            self._tell(self.draft.settle())
        elif name is not None:
            self._tell(None)
        try:
            self.plan = self.draft.plan()
        except (UsageError, Unfit) as error:
            self._refuse(str(error), error.field)
            return
        self.controls.show_errors({})
        self.answering.ask(self.plan)
        self.outlook.ask(self.plan)

    def _refuse(self, sentence: str, field: str) -> None:
        self.plan = None
        self.controls.show_errors({field: sentence, **self.draft.errors})
        self.error.text = f"{sentence} The numbers below belong to the last plan that can be."
        self.error.visible = True
        self.compact.content = f"<b>✕</b> <span>{escape(sentence)}</span>"
        self.answers.classes("stale")
        self.start.disable()

    def _show(self, plan: Plan, reply: Answer | str) -> None:
        if plan is not self.plan:
            return
        if isinstance(reply, str):
            self._refuse(reply, "")
            return
        self.error.visible = False
        self.answers.classes(remove="stale")
        self.start.enable()
        self._fill(reply)

    def _fill(self, reply: Answer) -> None:
        self.headline.content = cards.headline(reply)
        self.compact.content = cards.compact(reply)
        self.scales.content = cards.scales(reply)
        self.scales_caption.content = cards.scales_caption(reply)
        self.meaning.content = meaning.draw(reply)
        self.bars.content = bars.draw(reply)
        self.bars_caption.content = cards.bars_caption(reply)
        self.notices.content = cards.notices(reply)
        self.assumptions.content = cards.assumptions(reply)
        self.command.content = escape(self.draft.command())
        self._show_carried()
        self.client.run_javascript(f"history.replaceState(history.state, '', '?{self.draft.query()}')")

    def _show_carried(self) -> None:
        carried = ", ".join(f"{name} = {value}" for name, value in self.draft.carried().items())
        self.carried.content = f"Also set: {escape(carried)}" if carried else ""

    def _tell(self, sentence: str | None) -> None:
        self.note.text = sentence or ""
        self.note.visible = bool(sentence)

    # --- what people do ---------------------------------------------------------------------------------------

    def _start_from(self, fields: dict[str, object]) -> None:
        """Forget the draft and begin from a named setting."""
        fresh = Draft.from_plan(Plan(**fields))
        self.draft.fields, self.draft.errors = fresh.fields, {}
        self._changed(None)
        self.controls.refresh()

    def _download(self) -> None:
        if self.plan is None:
            frame.notify_error("There is nothing to download until the plan can be.")
            return
        ui.download.content(self.plan.to_toml(), "plan.toml", "application/toml")

    def _copy(self) -> None:
        if self.plan is None:
            frame.notify_error("There is nothing to copy until the plan can be.")
            return
        ui.clipboard.write(self.draft.command())
        ui.notify("The command is on the clipboard.")

    def _ask_to_start(self) -> None:
        if self.plan is None:
            return
        plan = self.plan
        with ui.dialog(value=True) as dialog, ui.card().classes("start-dialog"):
            frame.heading("Start this run")
            ui.label("It trains on this machine as a process of its own; you may close the page.").classes(
                "soft"
            )
            name = ui.input("Name of the run", value=self.launcher.suggest(plan)).props(
                "outlined dense data-field=run-name"
            )
            problem = ui.label("").classes("field-error").props('role="alert" data-error=run-name')
            with ui.row():
                ui.button("Start", on_click=lambda: self._start(plan, str(name.value), problem)).props(
                    "unelevated no-caps data-action=confirm-start"
                )
                ui.button("Cancel", on_click=dialog.close).props("flat no-caps")

    async def _start(self, plan: Plan, name: str, problem: ui.label) -> None:
        try:
            await asyncio.to_thread(self.launcher.start, plan, name.strip())
        except NbaflError as error:
            problem.text = str(error)
        except OSError as error:
            problem.text = f"The run could not be started: {error.strerror}."
        else:
            ui.navigate.to(f"/runs?run={quote(name.strip())}")


async def _answered(plan: Plan) -> Answer | str:
    """The answer, computed off the event loop, or the sentence why there is none."""
    try:
        return await asyncio.to_thread(answer, plan)
    except NbaflError as error:
        return str(error)
