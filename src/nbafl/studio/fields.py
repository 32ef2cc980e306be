"""The controls of the Plan page: which fields get a slider, where it stops, and how text becomes a value.

Which fields there are, and what is said of them, stands in the table of fields. A slider moves evenly in what matters,
which for most fields is the logarithm; the text field beside it takes any number at all. What a value may be is not
decided here: the Plan decides, and says so in a sentence.
"""

from __future__ import annotations

import bisect
import math
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nbafl.errors import UsageError
from nbafl.field_entries import EVERY, PlanField
from nbafl.fields import PRIVACY, WHO, PlanFields, table


@dataclass(frozen=True)
class Scale:
    """The values a slider stops at, from `low` to `high`: round numbers in every decade, or every whole number."""

    low: float
    high: float
    whole: bool
    digits: tuple[float, ...]

    @classmethod
    def of(cls, field: PlanField) -> Scale:
        """The scale of a field that has a slider."""
        assert field.entry.slider is not None
        slider = field.entry.slider
        return cls(slider.low, slider.high, field.kind == "int", slider.digits)

    @cached_property
    def stops(self) -> Sequence[float]:
        """All values, ascending."""
        if self.digits == EVERY:
            return range(int(self.low), int(self.high) + 1)
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        found = [float(f"{digit}e{power}") for power in range(first, last + 1) for digit in self.digits]
        if self.whole:
            found = [float(value) for value in dict.fromkeys(int(value) for value in found)]
        return [int(value) if self.whole else value for value in found if self.low <= value <= self.high]

    def value(self, position: float) -> float:
        """The value at a position, 0 to the number of stops less one."""
        return self.stops[max(0, min(len(self.stops) - 1, round(position)))]

    def position(self, value: float) -> int:
        """The stop nearest to a value; beyond an end it is that end."""
        after = bisect.bisect_left(self.stops, value)
        if after == 0 or after == len(self.stops):
            return max(0, min(after, len(self.stops) - 1))
        return after if self.stops[after] - value <= value - self.stops[after - 1] else after - 1


def _in(shown: str) -> tuple[PlanField, ...]:
    return tuple(each for each in table().values() if each.entry.shown == shown)


def options(field: PlanField) -> dict[str, str]:
    """The values that a field may take where they are few, each with its label; empty for all other fields."""
    if field.entry.choices:
        return field.entry.choices()
    if field.kind == "bool":
        return {"true": "On", "false": "Off"}
    annotation = PlanFields.model_fields[field.name].annotation
    parts = [annotation, *typing.get_args(annotation)]
    named = next((typing.get_args(part) for part in parts if typing.get_origin(part) is typing.Literal), ())
    unset = {"": field.entry.unset or "not given"} if named and field.default is None else {}
    return unset | {str(value): str(value).capitalize() for value in named}


SLIDERS = tuple(each for each in _in("front") if each.entry.slider)
PROMISE = tuple(each for each in SLIDERS if each.entry.group == PRIVACY)
FEDERATION = tuple(each for each in SLIDERS if each.entry.group != PRIVACY)
CHOICES = tuple(each for each in _in("front") if each.entry.choices)
FOLDED = {
    "Training and details": _in("details"),
    "Data": tuple(each for each in _in("never") if each.entry.group == WHO),
    "Everything else": tuple(each for each in _in("never") if each.entry.group != WHO),
}
"""Fields that wait behind a heading: every field of a plan has its place on the page."""


def parse(name: str, text: str) -> Any:
    """The value a person typed for a plan's field; None when the field was emptied."""
    text = text.strip()
    if not text:
        return None
    match table()[name].kind:
        case "list":
            return tuple(_number(name, part, whole=True) for part in text.split(","))
        case "int" | "float" as kind:
            return _number(name, text, whole=kind == "int")
        case "bool" if text in ("true", "false"):
            return text == "true"
        case "bool":
            raise UsageError(name, text, "true or false")
        case _:
            return text


def _number(name: str, text: str, whole: bool) -> float | int:
    allowed = "a whole number" if whole else "a number"
    try:
        number = float(text.replace(" ", ""))
    except ValueError:
        raise UsageError(name, text, allowed) from None
    if not math.isfinite(number):
        raise UsageError(name, text, "a finite number")
    if whole and number != int(number):
        raise UsageError(name, text, allowed)
    return int(number) if whole else number


def show(value: Any) -> str:
    """A value as a field shows it, in the form `parse` reads; every digit that matters and no more."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(str(each) for each in value)
    return repr(value).removesuffix(".0").replace("e-0", "e-") if isinstance(value, float) else str(value)
