"""The left side of the Plan page: sliders, text fields and choices, all of them views of one Draft.

A control writes to the draft and says that something changed; after that every other control shows what the draft
now holds. The field somebody is typing in is never rewritten under their fingers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nicegui import Client, ui

from nbafl.studio import fields
from nbafl.studio.draft import Draft
from nbafl.studio.fields import Choice, Entry, Scale, Slider, show
from nbafl.studio.frame import markup
from nbafl.studio.latest import Latest

Changed = Callable[[str], None]
COLLUDERS = "colluders"


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
        self._group("The promise", fields.PRIVACY, fields.CHOICES)
        self._group("The federation", fields.FEDERATION, ())
        self._details = ui.expansion("Training and details").classes("more").props("dense")
        with self._details, ui.element("div").classes("pair-grid"):
            for choice in fields.DETAIL_CHOICES:
                self._choice(choice, "pair")
            for entry in fields.DETAILS:
                self._entry(entry)
        self.refresh()

    def refresh(self, typing: str | None = None, sliding: str | None = None) -> None:
        """Show what the draft holds, except in the text or the slider that somebody has in hand."""
        with self._quietly():
            for each in fields.SLIDERS:
                self._show_slider(each, typing, sliding)
            for name, text in self._texts.items():
                if name != typing and name not in self.draft.errors:
                    text.value = self._text_of(name)
            for name, select in self._selects.items():
                self._show_choice(name, select)

    def show_errors(self, errors: dict[str, str]) -> None:
        """A sentence beneath each field that has one."""
        for name, label in self._errors.items():
            label.text = errors.get(name, "")
            if name in self._texts:
                self._texts[name].props(f":error={'true' if name in errors else 'false'}")
        if any(name in errors for name in (entry.name for entry in fields.DETAILS)):
            self._details.value = True

    # --- building ---------------------------------------------------------------------------------------------

    def _group(self, title: str, sliders: tuple[Slider, ...], choices: tuple[Choice, ...]) -> None:
        with ui.element("fieldset"):
            markup(title, tag="legend")
            for slider in sliders:
                self._slide(slider)
            for choice in choices:
                self._choice(choice, "choice")

    def _slide(self, field: Slider) -> None:
        with ui.element("div").classes("slide") as self._rows[field.name]:
            self._text(field.name, field.label, field.symbol, field.about)
            slider = HandSlider(min=0, max=1, step=1, value=0, on_change=lambda: self._slid(field))
            slider.props(
                f'aria-label="{field.label} {field.symbol}" data-slider={field.name} no-thumb-shadow'
            )
            self._sliders[field.name] = slider
            self._error(field.name)

    def _text(self, name: str, label: str, symbol: str, about: str) -> ui.input:
        caption = markup(f"{label}<b>{symbol}</b>", tag="label")
        text = ui.input(on_change=lambda: self._typed(name))
        text.props("dense outlined hide-bottom-space debounce=150 inputmode=decimal autocomplete=off")
        text.props(f'data-field={name} title="{about}"')
        caption.props(f'for="{text.html_id}"')
        self._texts[name] = text
        return text

    def _entry(self, field: Entry) -> None:
        with ui.element("div").classes("pair"):
            self._text(field.name, field.label, field.symbol, field.about)
            self._error(field.name)

    def _choice(self, field: Choice, style: str) -> None:
        with ui.element("div").classes(style):
            caption = markup(field.label, tag="label")
            select = ui.select(dict(field.options), on_change=lambda: self._chose(field.name))
            select.props(f'dense outlined options-dense data-choice={field.name} title="{field.about}"')
            select.props(f'aria-label="{field.label}" popup-content-class=choice-list')
            caption.props(f'for="{select.html_id}"')
            self._selects[field.name] = select
            if field.name == "adversary":
                self._count = ui.input("How many", value="1", on_change=lambda: self._chose("adversary"))
                self._count.props(
                    "dense outlined hide-bottom-space debounce=150 inputmode=numeric data-field=colluders"
                )
            self._error(field.name)

    def _error(self, name: str) -> None:
        self._errors[name] = ui.label("").classes("field-error").props(f'role="alert" data-error={name}')

    # --- what people do ---------------------------------------------------------------------------------------

    def _slid(self, field: Slider) -> None:
        if self._quiet:
            return
        value = self._scale(field).value(self._sliders[field.name].value or 0)
        everyone = field.name == "per_round" and value >= self.draft.value("clients")
        self.draft.put(field.name, "" if everyone else show(value))
        self._tell(field.name, sliding=field.name)

    def _typed(self, name: str) -> None:
        if self._quiet:
            return
        self.draft.put(name, str(self._texts[name].value or ""))
        self._tell(name, typing=name)

    def _chose(self, name: str) -> None:
        if self._quiet:
            return
        value = str(self._selects[name].value)
        if value == COLLUDERS:
            value = f"{COLLUDERS}:{str(self._count.value).strip()}"
        self.draft.put(name, value)
        self._tell(name)

    def _tell(self, name: str, typing: str | None = None, sliding: str | None = None) -> None:
        self._changed(name)
        self.refresh(typing, sliding)
        if sliding:
            self._at_rest.ask(sliding)

    # --- showing the draft ------------------------------------------------------------------------------------

    def _show_slider(self, field: Slider, typing: str | None, sliding: str | None) -> None:
        self._rows[field.name].visible = self.draft.value("sensitivity") in field.models
        if field.name != sliding:
            self._set_slider(field)
        if field.name != typing and field.name not in self.draft.errors:
            self._texts[field.name].value = show(self._number(field.name))

    def _set_slider(self, field: Slider) -> None:
        slider, scale, value = self._sliders[field.name], self._scale(field), self._number(field.name)
        slider.props(f'max={len(scale.stops) - 1} aria-valuetext="{show(value)}"')
        slider.value = scale.position(value)

    def _rested(self, name: str, _: None) -> None:
        """Only now is a slider's own text for screen readers renewed: an update would pull it from the hand."""
        with self._quietly():
            self._set_slider(next(each for each in fields.SLIDERS if each.name == name))

    def _show_choice(self, name: str, select: ui.select) -> None:
        value = str(self.draft.value(name))
        kind, _, count = value.partition(":")
        if name == "adversary" and kind == COLLUDERS:
            value, self._count.value = COLLUDERS, count
        if name == "adversary":
            self._count.visible = kind == COLLUDERS
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
        if (
            name == "local_steps"
            and self.draft.value("sensitivity") == "gradient"
            and "local_steps" not in self.draft.fields
        ):
            value = 1
        return show(value)

    def _scale(self, field: Slider) -> Scale:
        """K reaches to N and L to T, wherever those stand."""
        limit = {"per_round": "clients", "exposures": "rounds"}.get(field.name)
        if limit is None:
            return field.scale
        return Scale(1, max(1, int(self.draft.value(limit))), whole=True, digits=None)

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
