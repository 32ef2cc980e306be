"""The left side of the Plan page: sliders, text fields and choices, all of them views of one Draft.

A control writes to the draft and says that something changed; after that every other control shows what the draft
now holds. The field somebody is typing in is never rewritten under their fingers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nicegui import Client, ui

from nbafl import rules
from nbafl.field_entries import EVERY, PlanField
from nbafl.privacy import adversary
from nbafl.studio import fields
from nbafl.studio.draft import Draft
from nbafl.studio.fields import Scale, show
from nbafl.studio.latest import Latest
from nbafl.studio.layout import markup
from nbafl.studio.wording import escape

Changed = Callable[[str], None]
COUNTED = frozenset(each.kind for each in adversary.table() if each.takes_count == "must")
"""Adversaries that need the number of their accomplices."""


class HandSlider(ui.slider):
    """A slider that follows the hand at once instead of waiting for the server to agree."""

    LOOPBACK = False


class Controls:
    """All controls of the page, and the errors beneath them."""

    def __init__(self, client: Client, draft: Draft, changed: Changed) -> None:
        self.draft = draft
        self._changed = changed
        self._quiet = False
        self._at_rest: Latest[str, None] = Latest(client, _nothing, self._rested, pause=0.5)
        self._sliders: dict[str, ui.slider] = {}
        self._texts: dict[str, ui.input] = {}
        self._selects: dict[str, ui.select] = {}
        self._errors: dict[str, ui.label] = {}
        self._rows: dict[str, ui.element] = {}

    def build(self) -> None:
        """Put all controls on the page."""
        self._group("The promise", fields.PROMISE, fields.CHOICES)
        self._group("The federation", fields.FEDERATION, ())
        self._folded = {title: self._fold(title, inside) for title, inside in fields.FOLDED.items()}
        self.refresh()

    def _fold(self, title: str, inside: tuple[PlanField, ...]) -> ui.expansion:
        with (
            ui.expansion(title).classes("more").props("dense") as fold,
            ui.element("div").classes("pair-grid"),
        ):
            for each in inside:
                if fields.options(each):
                    self._choice(each, "pair")
                else:
                    self._entry(each)
        return fold

    def refresh(self, typing: str | None = None, sliding: str | None = None) -> None:
        """Show what the draft holds, except in the text or the slider that somebody has in hand."""
        with self._quietly():
            for each in fields.SLIDERS:
                self._show_slider(each, sliding)
            for name, text in self._texts.items():
                if name != typing:
                    text.value = self.draft.refused.get(name, self._text_of(name))
            for name, select in self._selects.items():
                self._show_choice(name, select)

    def show_errors(self, errors: dict[str, str]) -> None:
        """A sentence beneath each field that has one."""
        for name, label in self._errors.items():
            label.text = errors.get(name, "")
            if name in self._texts:
                self._texts[name].props(f":error={'true' if name in errors else 'false'}")
        for title, inside in fields.FOLDED.items():
            if any(each.name in errors for each in inside):
                self._folded[title].value = True

    # --- building ---------------------------------------------------------------------------------------------

    def _group(self, title: str, sliders: tuple[PlanField, ...], choices: tuple[PlanField, ...]) -> None:
        with ui.element("fieldset"):
            markup(title, tag="legend")
            for slider in sliders:
                self._slide(slider)
            for choice in choices:
                self._choice(choice, "choice")

    def _slide(self, field: PlanField) -> None:
        with ui.element("div").classes("slide") as self._rows[field.name]:
            self._text(field)
            slider = HandSlider(min=0, max=1, step=1, value=0, on_change=lambda: self._slid(field))
            slider.props(
                f'aria-label="{field.entry.label} {field.entry.symbol}" data-slider={field.name} no-thumb-shadow'
            )
            slider.on("keydown.home", lambda: self._go_to_end(field, 0))
            slider.on("keydown.end", lambda: self._go_to_end(field, -1))
            self._sliders[field.name] = slider
            self._error(field.name)

    def _text(self, field: PlanField) -> ui.input:
        name = field.name
        caption = markup(f"{field.entry.label}<b>{field.entry.symbol}</b>", tag="label")
        text = ui.input(on_change=lambda: self._typed(name))
        text.props("dense outlined hide-bottom-space debounce=150 inputmode=decimal autocomplete=off")
        text.props(f'data-field={name} title="{escape(field.sentence)}"')
        caption.props(f'for="{text.html_id}"')
        self._texts[name] = text
        return text

    def _entry(self, field: PlanField) -> None:
        with ui.element("div").classes("pair"):
            self._text(field)
            self._error(field.name)

    def _choice(self, field: PlanField, style: str) -> None:
        with ui.element("div").classes(style):
            caption = markup(field.entry.label, tag="label")
            select = ui.select(fields.options(field), on_change=lambda: self._chose(field.name))
            select.props(
                f'dense outlined options-dense data-choice={field.name} title="{escape(field.sentence)}"'
            )
            select.props(f'aria-label="{field.entry.label}" popup-content-class=choice-list')
            caption.props(f'for="{select.html_id}"')
            self._selects[field.name] = select
            if field.name == "adversary":
                self._accomplices()
            self._error(field.name)

    def _accomplices(self) -> None:
        with ui.element("div").classes("accomplices") as self._count_row:
            caption = markup("How many of them", tag="label")
            self._count = ui.input(value="1", on_change=lambda: self._chose("adversary"))
            self._count.props(
                "dense outlined hide-bottom-space debounce=150 inputmode=numeric data-field=colluders"
            )
            caption.props(f'for="{self._count.html_id}"')

    def _error(self, name: str) -> None:
        self._errors[name] = ui.label("").classes("field-error").props(f'role="alert" data-error={name}')

    # --- what people do ---------------------------------------------------------------------------------------

    def _slid(self, field: PlanField) -> None:
        if self._quiet:
            return
        value = self._scale(field).value(self._sliders[field.name].value or 0)
        everyone = field.name == "per_round" and value >= self.draft.value("clients")
        self.draft.put(field.name, "" if everyone else show(value))
        self._tell(field.name, sliding=field.name)

    def _go_to_end(self, field: PlanField, end: int) -> None:
        self._sliders[field.name].value = len(self._scale(field).stops) - 1 if end else 0

    def _typed(self, name: str) -> None:
        if self._quiet:
            return
        self.draft.put(name, str(self._texts[name].value or ""))
        self._tell(name, typing=name)

    def _chose(self, name: str) -> None:
        if self._quiet:
            return
        value = str(self._selects[name].value)
        if name == "adversary" and value in COUNTED:
            value = f"{value}:{str(self._count.value).strip()}"
        self.draft.put(name, value)
        self._tell(name)

    def _tell(self, name: str, typing: str | None = None, sliding: str | None = None) -> None:
        self._changed(name)
        self.refresh(typing, sliding)
        if sliding:
            self._at_rest.ask(sliding)

    # --- showing the draft ------------------------------------------------------------------------------------

    def _show_slider(self, field: PlanField, sliding: str | None) -> None:
        users = rules.using(field.name)
        self._rows[field.name].visible = not users or self.draft.value("sensitivity") in {
            each.name for each in users
        }
        if field.name != sliding:
            self._set_slider(field)

    def _set_slider(self, field: PlanField) -> None:
        slider, scale, value = self._sliders[field.name], self._scale(field), self._number(field.name)
        slider.props(f'max={len(scale.stops) - 1} aria-valuetext="{show(value)}"')
        slider.value = scale.position(value)

    def _rested(self, name: str, _: None) -> None:
        """Only now is a slider's own text for screen readers renewed: an update would pull it from the hand."""
        with self._quietly():
            self._set_slider(next(each for each in fields.SLIDERS if each.name == name))

    def _show_choice(self, name: str, select: ui.select) -> None:
        value = self.draft.refused.get(name, show(self.draft.value(name)))
        kind, _, count = value.partition(":")
        if name == "adversary" and kind in COUNTED:
            value, self._count.value = kind, count
        if name == "adversary":
            self._count_row.visible = kind in COUNTED
        if value not in select.options:
            select.set_options({**dict(select.options), value: value})
        select.value = value

    def _number(self, name: str) -> float:
        """What a slider stands at; K is everyone where it is unset."""
        value = self.draft.value(name)
        return float(self.draft.value("clients")) if value is None else value

    def _text_of(self, name: str) -> str:
        value: Any = self.draft.value(name)
        if value is None and name == "per_round":
            value = self.draft.value("clients")
        return show(value)

    def _scale(self, field: PlanField) -> Scale:
        """K reaches to N and L to T, wherever those stand."""
        limit = {"per_round": "clients", "exposures": "rounds"}.get(field.name)
        if limit is None:
            return Scale.of(field)
        return Scale(1, max(1, int(self.draft.value(limit))), whole=True, digits=EVERY)

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        """While the page writes into its own controls, nobody has changed anything."""
        self._quiet, before = True, self._quiet
        try:
            yield
        finally:
            self._quiet = before


async def _nothing(_: str) -> None:
    """A slider at rest needs no work."""
