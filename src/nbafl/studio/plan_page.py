"""The Plan page: move a slider, and read beside it at once what the plan needs and what it is worth."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

from nicegui import Client, ui

from nbafl.errors import NbaflError, UsageError
from nbafl.plan import Plan
from nbafl.presets import PRESETS
from nbafl.studio import bars, cards, goals, layout, meaning
from nbafl.studio.answer import Answer, answer
from nbafl.studio.background import Background, Declined
from nbafl.studio.bars_export import BarsExport
from nbafl.studio.controls import Controls
from nbafl.studio.draft import Draft, Unfit
from nbafl.studio.fields import show
from nbafl.studio.latest import Latest
from nbafl.studio.launcher import Launcher
from nbafl.studio.own_data import OwnData
from nbafl.studio.predictions_card import PredictionsCard
from nbafl.studio.wording import escape

PRESET_LABELS = {"paper": "The paper’s setting", "private": "A private setting"}

ANSWERED_WITHIN = 20.0
"""Seconds that the answer for one plan may take."""


class PlanPage:
    """One visitor's Plan page."""

    def __init__(
        self,
        client: Client,
        draft: Draft,
        launcher: Launcher,
        background: Background,
        outlook: PredictionsCard,
    ) -> None:
        self.client = client
        self.draft = draft
        self.launcher = launcher
        self.background = background
        self.predictions = outlook
        outlook.start = self._start_from
        self.plan: Plan | None = None
        self.answered = False
        self.taking = BarsExport(client)
        self.controls = Controls(client, draft, self._changed)
        self.answering: Latest[Plan, Answer | Declined | None] = Latest(client, self._answer, self._show)

    def build(self) -> None:
        """Lay the page out and answer for the draft as it is."""
        layout.heading("Plan a federation", level=1).classes("visually-hidden")
        goals.build(self._start_from, OwnData(self.background, self._start_from).ask)
        with ui.element("div").classes("plan-page"):
            with layout.card("controls"):
                with ui.element("div").classes("fields"):
                    self._presets()
                    self.note = ui.label("").classes("notice note").props('role="status"')
                    self.note.visible = False
                    self.controls.build()
                self._actions()
            with ui.element("div").classes("answers blank") as self.answers:
                self._answer_cards()
        self.compact = layout.markup("").classes("compact").props('aria-hidden="true"')
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
        with layout.card("wide"):
            self.headline = layout.markup("").classes("head").props('role="status"')
            self.scales = layout.markup("")
            self.scales_caption = layout.markup("", tag="p").classes("caption")
        with layout.card("wide", "adversaries"):
            layout.heading("What each adversary could learn")
            self.taking.build()
            self.bars = layout.markup("")
            self.bars_caption = layout.markup("", tag="p").classes("caption")
            self.prices = layout.markup("").classes("prices")
        with layout.card("meaning"):
            self.meaning_heading = layout.heading("What it means")
            self.meaning = layout.markup("")
        with ui.element("div").classes("stack"):
            with layout.card("beware"):
                layout.heading("Beware")
                self.notices = layout.markup("")
            with layout.card("assume"):
                layout.heading("What every ε here rests on")
                self.assumptions = layout.markup("").classes("soft")
        self.predictions.build()
        with layout.card("wide"):
            layout.heading("The same as a command")
            self.command = layout.markup("", tag="code").classes("command").props("data-command tabindex=0")

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
        self.answers.classes("pending")
        self.answering.ask(self.plan)
        self.predictions.ask(self.plan)

    def _refuse(self, sentence: str, field: str) -> None:
        self.plan = None
        self.controls.show_errors({field: sentence, **self.draft.errors})
        below = " The numbers below are those of the last valid plan." if self.answered else ""
        self.error.text = sentence + below
        self.error.visible = True
        self.compact.content = f"<b>✕</b> <span>{escape(sentence)}</span>"
        self.answers.classes("stale", remove="pending")
        self.start.disable()

    async def _answer(self, plan: Plan) -> Answer | Declined | None:
        """The answer, the reason why there is none, or None where nobody waits for it any more."""
        try:
            return await self.background.make(
                answer, plan, wanted=lambda: self.answering.wanted, limit=ANSWERED_WITHIN
            )
        except Declined as error:
            return error

    def _show(self, plan: Plan, reply: Answer | Declined | None) -> None:
        if plan is not self.plan or reply is None:
            return
        if isinstance(reply, Declined):
            self._refuse(str(reply), reply.field)
            return
        self.error.visible = False
        self.answered = True
        self.answers.classes(remove="stale pending blank")
        self.start.enable()
        self._fill(reply)

    def _fill(self, reply: Answer) -> None:
        self.headline.content = cards.headline(reply)
        self.compact.content = cards.compact(reply)
        self.scales.content = cards.scales(reply)
        self.scales_caption.content = cards.scales_caption(reply)
        self.meaning_heading.content = meaning.heading(reply)
        self.meaning.content = meaning.draw(reply)
        self.bars.content = bars.draw(reply)
        self.taking.answer = reply
        self.bars_caption.content = cards.bars_caption(reply)
        self.prices.content = cards.prices(reply)
        self.notices.content = cards.notices(reply)
        self.assumptions.content = cards.assumptions(reply)
        self.command.content = escape(self.draft.command())
        self.client.run_javascript(f"history.replaceState(history.state, '', '?{self.draft.query()}')")

    def _tell(self, sentence: str | None) -> None:
        self.note.text = sentence or ""
        self.note.visible = bool(sentence)

    # --- what people do ---------------------------------------------------------------------------------------

    def _start_from(self, fields: dict[str, object]) -> None:
        """Forget the draft and begin from these fields."""
        fresh = Draft()
        for name, value in fields.items():
            fresh.put(name, show(value))
        self.draft.fields, self.draft.errors, self.draft.refused = fresh.fields, fresh.errors, fresh.refused
        self._changed(None)
        self.controls.refresh()

    def _download(self) -> None:
        if self.plan is None:
            layout.notify_error("The plan is invalid: there is nothing to download.")
            return
        ui.download.content(self.plan.to_toml(), "plan.toml", "application/toml")

    def _copy(self) -> None:
        if self.plan is None:
            layout.notify_error("The plan is invalid: there is nothing to copy.")
            return
        ui.clipboard.write(self.draft.command())
        ui.notify("The command is on the clipboard.")

    def _ask_to_start(self) -> None:
        if self.plan is None:
            return
        plan = self.plan
        with (
            ui.dialog(value=True).props('aria-label="Start this run"') as dialog,
            ui.card().classes("start-dialog"),
        ):
            layout.heading("Start this run")
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
