"""The card of the Plan page that looks ahead: loss over T and over K, with the best of each marked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nicegui import Client, ui

from nbafl.errors import NbaflError
from nbafl.plan import Plan
from nbafl.studio import layout, predictions
from nbafl.studio.background import Background
from nbafl.studio.latest import Latest
from nbafl.studio.plot import Plot
from nbafl.studio.predictions import FORMS, Source, nearest
from nbafl.studio.wording import escape

SETTLED = 0.35
"""Seconds without a change before the curves are computed anew."""
LOOKED_WITHIN = 60.0
"""Seconds that the curves of one plan may take."""
Question = tuple[Plan, Source]


class PredictionsCard:
    """Curves that follow the plan a moment after the sliders have come to rest."""

    def __init__(self, client: Client, background: Background, sources: tuple[Source, ...]) -> None:
        self.client = client
        self.background = background
        self.sources = sources
        self.source = sources[0]
        self.form = "empirical"
        self.plan: Plan | None = None
        self.found: dict[str, Any] | None = None
        self.start: Callable[[dict[str, Any]], None] = lambda _: None
        """Begin from other fields; the page says how."""
        self.looking: Latest[Question, dict[str, Any] | str | None] = Latest(
            client, self._look, self._deliver, pause=SETTLED
        )

    def build(self) -> None:
        """Lay the card out."""
        with layout.card("wide").props("data-outlook"):
            with ui.element("div").classes("run-head"):
                layout.heading("How far training gets")
                self.status = ui.label("").classes("badge live")
            self.toggle = ui.toggle(FORMS, value=self.form, on_change=lambda event: self._choose(event.value))
            self.toggle.props('no-caps unelevated toggle-color=primary aria-label="Which form"').classes(
                "forms"
            )
            self.summary = layout.markup("", tag="p").props("data-outlook-summary")
            with ui.element("div").classes("twin"):
                self.plots = {
                    "rounds": Plot("data-curve=rounds", "Predictions over rounds"),
                    "per_round": Plot("data-curve=per_round", "Predictions over clients drawn"),
                }
            self.reason = ui.label("").classes("notice")
            self.caption = layout.markup("", tag="p").classes("caption")
            self.offer = ui.button("Try a training that has one", icon="science")
            self.offer.on_click(lambda: self.start({**self.asked_for(), **predictions.TRY}))
            self.offer.props("outline no-caps dense data-action=offer").classes("q-mt-sm").visible = False
            self.measure = ui.button("Measure for this plan", icon="speed", on_click=self._measure)
            self.measure.props("outline no-caps dense data-action=measure").classes("q-mt-sm")
        self.reason.visible = False

    def asked_for(self) -> dict[str, Any]:
        """What of the plan stays when another training is tried."""
        kept = (
            "clients",
            "per_round",
            "rounds",
            "samples",
            "epsilon",
            "delta",
            "calibration",
            "adversary",
            "exposures",
        )
        return {name: getattr(self.plan, name) for name in kept}

    def ask(self, plan: Plan) -> None:
        """The plan on the page is now this one."""
        self.plan, self.source = plan, nearest(self.sources, plan)
        self._busy("updating")
        self.looking.ask((plan, self.source))

    async def _look(self, question: Question) -> dict[str, Any] | str | None:
        plan, source = question
        try:
            return await self.background.make(
                predictions.look_ahead,
                plan.model_dump(),
                source.knowledge,
                wanted=lambda: self.looking.wanted,
                limit=LOOKED_WITHIN,
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
        borrowed = bool(self.source.differs(plan))
        for over, now in (("rounds", plan.rounds), ("per_round", plan.drawn)):
            self.plots[over].show(predictions.curve(found, self.form, over, now, borrowed) if found else None)
        self.summary.content = (
            f"<b>{FORMS[self.form]}</b>: {predictions.here(found, self.form)}" if found else ""
        )
        self.reason.text = problem or (predictions.reason(found, self.form) if found else "")
        self.reason.visible = bool(self.reason.text)
        moves = predictions.moves(found, plan, self.form) if found else ""
        self.caption.content = f"{moves} {predictions.caption(self.source, plan)}"
        self.measure.visible = borrowed
        self.offer.visible = (
            found is not None and self.form != "empirical" and predictions.missing(found, self.form)
        )

    def _choose(self, form: str) -> None:
        self.form = form
        self._show()

    async def _measure(self) -> None:
        """A pilot for the plan on the page; takes some seconds, in the background."""
        plan = self.plan
        if plan is None:
            return
        self.measure.disable()
        self._busy("measuring, this takes a moment")
        try:
            knowledge = await self.background.make(predictions.measure, plan.model_dump())
            assert knowledge is not None
        except NbaflError as error:
            if self.client.is_deleted:
                return
            layout.notify_error(str(error))
            self._busy("")
        else:
            about = f"a pilot of this plan’s own training on {escape(plan.dataset)}"
            self.sources = (Source(knowledge, plan, about), *self.sources)
            self.ask(self.plan or plan)
        self.measure.enable()

    def _busy(self, text: str) -> None:
        self.status.text = text
        self.status.visible = bool(text)
