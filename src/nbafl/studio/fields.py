"""The controls of the Plan page: which fields of a Plan get a slider, how far it reaches, and how text becomes a value.

A slider moves evenly in what matters, which for most fields is the logarithm; the text field beside it takes any
number at all. What a value may be is not decided here: the Plan decides, and says so in a sentence.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nbafl.errors import UsageError
from nbafl.plan import Plan

FINE = (1, 1.1, 1.2, 1.3, 1.5, 1.6, 1.8, 2, 2.2, 2.5, 2.7, 3, 3.5, 4, 4.5, 5, 5.5, 6, 7, 8, 9)
COARSE = (1, 2, 5)
"""Leading digits a logarithmic slider stops at, in every decade."""


@dataclass(frozen=True)
class Scale:
    """The values a slider stops at, from `low` to `high`: round numbers in every decade, or every whole number."""

    low: float
    high: float
    whole: bool = False
    digits: tuple[float, ...] | None = FINE

    @cached_property
    def stops(self) -> Sequence[float]:
        """All values, ascending."""
        if self.digits is None:
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


@dataclass(frozen=True)
class Slider:
    """A field with a slider and a text field."""

    name: str
    label: str
    symbol: str
    scale: Scale
    about: str
    models: tuple[str, ...] = ("paper", "gradient", "proximal", "client")
    """The sensitivity models that use the field."""


@dataclass(frozen=True)
class Choice:
    """A field with a few named values."""

    name: str
    label: str
    options: dict[str, str]
    about: str


@dataclass(frozen=True)
class Entry:
    """A field that is typed; left empty it takes the plan's default."""

    name: str
    label: str
    symbol: str
    about: str


PRIVACY = (
    Slider(
        "epsilon",
        "Privacy loss",
        "ε",
        Scale(0.1, 1000),
        "The claim. Smaller protects more and needs more noise.",
    ),
    Slider(
        "delta",
        "Slack",
        "δ",
        Scale(1e-8, 0.1, digits=COARSE),
        "What is added to every chance beside the factor e^ε; keep it well below 1/m.",
    ),
)
FEDERATION = (
    Slider("clients", "Clients", "N", Scale(2, 1000, whole=True), "Parties that hold data."),
    Slider(
        "per_round",
        "Drawn each round",
        "K",
        Scale(1, 50, whole=True, digits=None),
        "At the right end: everyone.",
    ),
    Slider("rounds", "Rounds", "T", Scale(1, 500, whole=True), "How many aggregations are broadcast."),
    Slider(
        "exposures",
        "Uploads overheard",
        "L",
        Scale(1, 25, whole=True, digits=None),
        "Uploads of each client that an outsider may see.",
    ),
    Slider("samples", "Records per client", "m", Scale(10, 10_000, whole=True), "Records each client holds."),
    Slider(
        "clip",
        "Clipping norm",
        "C",
        Scale(0.1, 100),
        "Largest norm of the weights (or of the update, for whole clients).",
        models=("paper", "proximal", "client"),
    ),
    Slider(
        "record_clip",
        "Record gradient norm",
        "G",
        Scale(0.01, 100),
        "Largest norm of each record's gradient.",
        models=("gradient",),
    ),
)

ADVERSARIES = {
    "eavesdropper": "Eavesdropper: broadcasts and L uploads of each client",
    "eavesdropper-spread": "Eavesdropper, spread: L uploads of each client in rounds of its choice",
    "targeted": "Targeted: broadcasts and L uploads of one client",
    "broadcast": "Broadcast: only what the server sends out",
    "curious-server": "Curious server: every upload",
    "colluders": "Colluders: clients that pool their own noise",
}
CHOICES = (
    Choice(
        "sensitivity",
        "What one record can change (sensitivity)",
        {
            "paper": "Paper: 2C/m, holds only conditionally",
            "gradient": "Gradient: one step, records clipped, any model",
            "proximal": "Proximal: convex loss, softmax model",
            "client": "Client: protects a whole client",
        },
        "How far one record, or one client, can move an upload.",
    ),
    Choice(
        "calibration",
        "How noise follows from ε (calibration)",
        {
            "exact": "Exact: holds against the adversary chosen",
            "separate": "Separate: the paper's two requirements, exact arithmetic",
            "paper": "Paper: the rule as printed",
        },
        "Only exact noise is made for the adversary below.",
    ),
    Choice("adversary", "Who is looking (adversary)", ADVERSARIES, "Whom exact noise is made for."),
)

DETAILS = (
    Entry("feature_norm", "Feature norm", "R", "Norm bound of each record's features; needed by proximal."),
    Entry("tolerance", "Solved to", "τ", "Gradient norm the local problem is solved to; proximal, optional."),
    Entry("local_steps", "Local steps", "S", "Optimiser steps of a client in a round."),
    Entry("lr", "Step size", "η", "Step size of the local optimiser."),
    Entry("mu", "Proximal weight", "μ", "Weight of the proximal term."),
    Entry("batch", "Batch", "", "Records a local step uses; empty: all."),
    Entry("seed", "Seed", "", "Seed of split, weights, draws and noise."),
)
DETAIL_CHOICES = (
    Choice("model", "Model", {"mlp": "MLP 784-256-10", "softmax": "Softmax regression"}, "What is trained."),
    Choice(
        "adjacency",
        "Neighbours",
        {"replace": "Replace", "drop": "Drop (whole clients)"},
        "What neighbouring data differ by.",
    ),
)

SLIDERS = (*PRIVACY, *FEDERATION)
SHOWN = frozenset(each.name for each in (*SLIDERS, *CHOICES, *DETAILS, *DETAIL_CHOICES))
LABELS = {each.name: each.label for each in (*SLIDERS, *CHOICES, *DETAILS, *DETAIL_CHOICES)}

_ANNOTATIONS = {name: str(field.annotation) for name, field in Plan.model_fields.items()}
_LISTS = frozenset(name for name, kind in _ANNOTATIONS.items() if "tuple" in kind)
_WHOLE = frozenset(name for name, kind in _ANNOTATIONS.items() if "int" in kind) - _LISTS
_NUMBERS = frozenset(name for name, kind in _ANNOTATIONS.items() if "float" in kind) | _WHOLE


def parse(name: str, text: str) -> Any:
    """The value a person typed for a plan's field; None when the field was emptied."""
    text = text.strip()
    if not text:
        return None
    if name in _LISTS:
        return tuple(_number(name, part, whole=True) for part in text.split(","))
    if name in _NUMBERS:
        return _number(name, text, whole=name in _WHOLE)
    if name != "noise":
        return text
    if text not in ("true", "false"):
        raise UsageError(name, text, "true or false")
    return text == "true"


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
