"""The card of the Plan page that looks ahead: loss over T and over K, with the best of each marked."""

from __future__ import annotations

from typing import Any

from nicegui import Client, ui

from nbafl.errors import NbaflError
from nbafl.plan import Plan
from nbafl.studio import frame, outlook
from nbafl.studio.latest import Latest
from nbafl.studio.outlook import FORMS, Source
from nbafl.studio.plot import Plot
from nbafl.studio.wording import escape
from nbafl.studio.workshop import Workshop

SETTLED = 0.35
"""Seconds without a change before the curves are computed anew."""
Question = tuple[Plan, Source]


class OutlookCard:
    """Curves that follow the plan a moment after the sliders have come to rest."""

    def __init__(self, client: Client, workshop: Workshop, source: Source) -> None:
        self.client = client
        self.workshop = workshop
        self.source = source
        self.form = "empirical"
        self.plan: Plan | None = None
        self.found: dict[str, Any] | None = None
        self.looking: Latest[Question, dict[str, Any] | str | None] = Latest(
            client, self._look, self._deliver, pause=SETTLED
        )

    def build(self) -> None:
        """Lay the card out."""
        with frame.card("wide").props("data-outlook"):
            with ui.element("div").classes("run-head"):
                frame.heading("How far training gets")
                self.status = ui.label("").classes("badge live")
            self.toggle = ui.toggle(FORMS, value=self.form, on_change=lambda event: self._choose(event.value))
            self.toggle.props('no-caps unelevated toggle-color=primary aria-label="Which form"').classes(
                "forms"
            )
            self.summary = frame.markup("", tag="p").props("data-outlook-summary")
            with ui.element("div").classes("twin"):
                self.plots = {over: Plot(f"data-curve={over}") for over in ("rounds", "per_round")}
            self.reason = ui.label("").classes("notice")
            self.caption = frame.markup("", tag="p").classes("caption")
            self.measure = ui.button("Measure for this plan", icon="speed", on_click=self._measure)
            self.measure.props("outline no-caps dense data-action=measure").classes("q-mt-sm")
        self.reason.visible = False

    def ask(self, plan: Plan) -> None:
        """The plan on the page is now this one."""
        self.plan = plan
        self._busy("updating")
        self.looking.ask((plan, self.source))

    async def _look(self, question: Question) -> dict[str, Any] | str | None:
        plan, source = question
        try:
            return await self.workshop.make(
                outlook.look_ahead, plan.model_dump(), source.knowledge, wanted=lambda: self.looking.wanted
            )
        except NbaflError as error:
            return str(error)

    def _deliver(self, question: Question, reply: dict[str, Any] | str | None) -> None:
        if reply is None or question[0] is not self.plan:
            return
        self._busy("")
        self.found = None if isinstance(reply, str) else reply
        self._show("" if self.found else str(reply))

    def _show(self, problem: str = "") -> None:
        """Draw what is known for the form that is chosen."""
        plan, found = self.plan, self.found
        if plan is None:
            return
        for over, now in (("rounds", plan.rounds), ("per_round", plan.drawn)):
            self.plots[over].show(outlook.curve(found, self.form, over, now) if found else None)
        self.summary.content = f"<b>{FORMS[self.form]}</b>: {outlook.here(found, self.form)}" if found else ""
        self.reason.text = problem or (outlook.reason(found, self.form) if found else "")
        self.reason.visible = bool(self.reason.text)
        moves = outlook.moves(found, plan, self.form) if found else ""
        self.caption.content = f"{moves} {outlook.caption(self.source, plan)}"
        self.measure.visible = bool(self.source.differs(plan))

    def _choose(self, form: str) -> None:
        self.form = form
        self._show()

    async def _measure(self) -> None:
        """A pilot for the plan on the page; takes some seconds, in the workshop."""
        plan = self.plan
        if plan is None:
            return
        self.measure.disable()
        self._busy("measuring, this takes a moment")
        try:
            knowledge = await self.workshop.make(outlook.measure, plan.model_dump())
            assert knowledge is not None
        except NbaflError as error:
            if self.client.is_deleted:
                return
            frame.notify_error(str(error))
            self._busy("")
        else:
            self.source = Source(
                knowledge, plan, f"a pilot of this plan’s own training on {escape(plan.dataset)}"
            )
            self.ask(self.plan or plan)
        self.measure.enable()

    def _busy(self, text: str) -> None:
        self.status.text = text
        self.status.visible = bool(text)
