"""ε against each adversary as bars on a logarithmic axis, with the claim as a line across them.

Drawn as plain HTML: every value is text that can be read aloud and copied, it redraws in a few milliseconds while a
slider moves, and it folds into one column on a phone. Series differ in colour, thickness and texture.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from nbafl.privacy.adversary import Adversary
from nbafl.studio.answer import Answer
from nbafl.studio.wording import escape, power_of_ten, short


@dataclass(frozen=True)
class Axis:
    """Powers of ten from 10^low to 10^high as a share of the width."""

    low: int
    high: int

    @classmethod
    def around(cls, values: Iterable[float | None]) -> Axis:
        """An axis that holds all finite positive values with a little room to the left."""
        logs = [math.log10(value) for value in values if value is not None and value > 0]
        low = math.floor(min(logs, default=0.0) - 0.05)
        return cls(low, max(low + 1, math.ceil(max(logs, default=1.0) + 1e-9)))

    def share(self, value: float | None) -> float:
        """Position of a value in per cent; what has no finite value fills the whole width."""
        if value is None:
            return 100.0
        if value <= 0:
            return 0.0
        return min(100.0, max(0.4, 100 * (math.log10(value) - self.low) / (self.high - self.low)))

    def ticks(self) -> list[int]:
        """Exponents to label: at most seven of them."""
        step = math.ceil((self.high - self.low) / 6)
        return list(range(self.low, self.high + 1, step))


@dataclass(frozen=True)
class Series:
    """One kind of bar."""

    key: str
    label: str
    values: dict[str, float | None]


def series_of(answer: Answer) -> list[Series]:
    """This plan; the paper's rule at the same claim; and clipping alone where the sensitivity is conditional."""
    summary, paper = answer.summary, answer.paper
    granted = f" ({answer.plan.rule.if_it_holds.strip()})" if answer.plan.rule.conditional else ""
    found = [Series("plan", f"this plan{granted}", _epsilons(summary["guarantee"]))]
    if answer.plan.calibration != "paper":
        found.append(Series("paper", f"the paper's rule{granted}", _epsilons(paper["guarantee"])))
    if summary["conditional"]:
        found.append(Series("clip", "this plan, from clipping alone", _epsilons(summary["unconditional"])))
    return found


def draw(answer: Answer) -> str:
    """The whole picture as HTML."""
    series = series_of(answer)
    claim = claim_of(answer)
    axis = Axis.around([claim, *(value for each in series for value in each.values.values())])
    rows = "".join(_row(each, series, axis, claim, mark(answer, each)) for each in answer.plan.adversaries())
    legend = "".join(f'<li><i class="key {each.key}"></i>{escape(each.label)}</li>' for each in series)
    if claim is not None:
        legend += f'<li><i class="key claim"></i>the claim, ε = {short(claim)}</li>'
    return f'<ul class="legend">{legend}</ul><div class="bars" style="--series:{len(series)}">{rows}{_scale(axis)}</div>'


def claim_of(answer: Answer) -> float | None:
    """What the plan claims; without noise it claims nothing."""
    return answer.plan.epsilon if answer.plan.noise else None


def mark(answer: Answer, who: Adversary) -> str:
    """What stands beside the adversary that the plan names; only some rules compute their noise for it."""
    if who != answer.adversary:
        return ""
    made_for = answer.plan.noise and answer.plan.calibration == "exact"
    return "noise made for this one" if made_for else "the claim is about this one"


def _row(who: Adversary, series: list[Series], axis: Axis, claim: float | None, said: str) -> str:
    chosen = f'<span class="chosen">{said}</span>' if said else ""
    bars = "".join(_bar(who.key, each, axis) for each in series)
    numbers = "".join(_number(who.key, each) for each in series)
    line = f'<i class="claim" style="left:{axis.share(claim):.3f}%"></i>' if claim is not None else ""
    return (
        f'<div class="bar-row{" is-chosen" if said else ""}">'
        f'<div class="who"><b>{escape(who.heading)}</b>{chosen}<small>sees {escape(who.short)}</small></div>'
        f'<div class="plot" aria-hidden="true">{_grid(axis)}{bars}{line}</div>'
        f'<div class="numbers">{numbers}</div></div>'
    )


def _bar(name: str, series: Series, axis: Axis) -> str:
    value = series.values[name]
    endless = " endless" if value is None else ""
    return f'<span class="bar {series.key}{endless}" style="width:{axis.share(value):.3f}%"></span>'


def _number(name: str, series: Series) -> str:
    value = series.values[name]
    exact = "none" if value is None else repr(value)
    return (
        f'<span class="number {series.key}" data-epsilon="{series.key}:{escape(name)}" data-value="{exact}" '
        f'title="{escape(series.label)}">{short(value)}</span>'
    )


def _grid(axis: Axis) -> str:
    width = axis.high - axis.low
    return "".join(
        f'<i class="tick" style="left:{100 * (at - axis.low) / width:.3f}%"></i>' for at in axis.ticks()
    )


def _scale(axis: Axis) -> str:
    width = axis.high - axis.low
    labels = "".join(
        f'<span style="left:{100 * (at - axis.low) / width:.3f}%">{tick_label(at)}</span>'
        for at in axis.ticks()
    )
    return (
        '<div class="bar-row scale" aria-hidden="true"><div class="who"></div>'
        f'<div class="plot">{labels}</div><div class="numbers"></div></div>'
    )


def tick_label(exponent: int) -> str:
    """A power of ten below the axis."""
    return short(10.0**exponent) if -3 <= exponent <= 3 else power_of_ten(exponent)


def _epsilons(guarantee: dict[str, dict[str, float | None]]) -> dict[str, float | None]:
    return {name: entry["epsilon"] for name, entry in guarantee.items()}
