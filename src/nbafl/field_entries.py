"""What a row of the table of fields says beside type and limits: label, group, symbol, slider, and how it reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nbafl import rules

FINE = (1, 1.1, 1.2, 1.3, 1.5, 1.6, 1.8, 2, 2.2, 2.5, 2.7, 3, 3.5, 4, 4.5, 5, 5.5, 6, 7, 8, 9)
COARSE = (1, 2, 5)
"""Leading digits a logarithmic slider stops at, in every decade."""
EVERY = ()
"""A slider that stops at every whole number."""


@dataclass(frozen=True)
class Slider:
    """From where to where a slider reaches, and the leading digits it stops at."""

    low: float
    high: float
    digits: tuple[float, ...] = FINE


@dataclass(frozen=True)
class Entry:
    """What the table says of a field beside its name, type, default and limits."""

    label: str
    group: str
    symbol: str = ""
    unset: str = ""
    """What it means that the field is not given, where it has no default."""
    metavar: str | None = None
    commas: bool = False
    """Whether a single value may hold commas; a sweep then separates alternatives by semicolons."""
    slider: Slider | None = None
    choices: Callable[[], dict[str, str]] | None = None
    """The values it may take, each with its label."""
    shown: str = "never"  # where the studio has a control for it: front | details | never
    fitted: bool = False
    """Whether it may be left out under some rules, and then follows from public numbers (`Rule.fits`)."""
    promise: bool = True
    """Whether it is part of what is promised and done to the data, and not only of how or where that is computed."""


@dataclass(frozen=True)
class PlanField:
    """One row of the table."""

    name: str
    about: str
    kind: str  # int | float | str | bool | list
    default: Any
    entry: Entry

    @property
    def shown_default(self) -> str:
        """The default as a person reads it."""
        if self.name == "local_steps":
            others = (
                f"{rule.local_steps} under {rule.name}"
                for rule in rules.table()
                if rule.local_steps != self.default
            )
            return "; ".join([str(self.default), *others])
        if self.entry.fitted:
            names = ", ".join(rule.name for rule in rules.table() if rule.fits)
            return f"{self.default:g}; under {names} it follows from the other numbers"
        if self.name == "features":
            return f"{self.default}; raw for data or a model of your own"
        if self.default is None:
            return self.entry.unset
        if isinstance(self.default, bool):
            return "on" if self.default else "off"
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)

    @property
    def sentence(self) -> str:
        """What the field is, its symbol first."""
        said = self.about
        for word, found in (("under", rules.using(self.name)), ("needed under", rules.needing(self.name))):
            said += f" ({word} {', '.join(rule.name for rule in found)})" if found else ""
        return f"{self.entry.symbol}, {said}." if self.entry.symbol else f"{said[0].upper()}{said[1:]}."
