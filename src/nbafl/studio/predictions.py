"""How far training gets, over T and over K: the planner's prediction and the two bounds, ready to be drawn.

All of it comes from `theory.planning`. The constants come from a pilot: one of the two that ship with the studio (embedded
MNIST, the default plan and the paper's setting), a file the user names, or one measured for the plan on the page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbafl.fields import table
from nbafl.plan import Plan
from nbafl.presets import FIRST_RELEASE
from nbafl.studio import charts
from nbafl.studio.wording import escape, listed, short
from nbafl.theory.planning import Knowledge, explore, plan_bounds

PILOTS = Path(__file__).with_name("static")
"""Made with nbafl plan --bounds --preset paper --mu 0.01 --constants pilot-paper.json, and for pilot-default.json with
explore(Plan(), rounds=64), long enough to say something about the 190 rounds of that plan."""

FORMS = {
    "empirical": "Predicted loss",
    "repaired": "Bound that holds",
    "printed": "As the paper prints it",
}
QUANTITY = {
    "empirical": "predicted training loss",
    "repaired": "bound of the loss above the best",
    "printed": "the paper’s expression",
}
WHY = {
    "empirical": "There is no prediction: what is known from the pilot does not reach this plan. Measure one for it.",
    "repaired": "There is no such bound here: it needs local problems that bring the loss down in every round.",
    "printed": "The paper’s expression has no value here: its premise fails for this training.",
}
"""Why a form may have no value, for people; the premise that failed stands behind it."""
ROUND_TICKS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000]
BORROWED: dict[str, Any] = {
    "line": {"color": charts.COLOURS[0], "width": 2.5, "dash": "dash"},
    "fill": "tozeroy",
    "fillcolor": "rgba(0,0,0,0)",
    "fillpattern": {"shape": "/", "fgcolor": "#9fb4c4", "size": 9, "solidity": 0.12},
}
TRY = {"sensitivity": "paper", "features": "raw", "model": "softmax", "mu": 5.0, "local_steps": 5}
"""Training under which both bounds have a value: convex, and with a proximal term that is large enough."""
SHAPING = (
    "clients", "samples", "sizes", "dataset", "partition", "features", "feature_norm", "model", "local_steps", "lr", "mu",
    "batch", "server_momentum", "sensitivity", "clip", "record_clip", "tolerance",
)  # fmt: skip
"""What a pilot depends on: another pilot is needed when one of these changes."""


@dataclass(frozen=True)
class Source:
    """What a pilot found out, and about which plan; the plan is unknown for a user's own file."""

    knowledge: Knowledge
    measured: Plan | None
    about: str

    def differs(self, plan: Plan) -> list[str]:
        """The fields of a plan that the pilot did not know."""
        if self.measured is None:
            return [] if self.knowledge.pilot.clients == plan.clients else ["clients"]
        return [name for name in SHAPING if getattr(plan, name) != getattr(self.measured, name)]


def known_sources(constants: str | None) -> tuple[Source, ...]:
    """The user's constants file, or the pilots that ship with the studio."""
    if constants is not None:
        return (Source(Knowledge.load(constants), None, f"constants and curve from {escape(constants)}"),)
    shipped = (
        ("pilot-default.json", Plan(), "the default plan"),
        ("pilot-paper.json", Plan(**FIRST_RELEASE), "the paper’s setting"),
    )
    return tuple(
        Source(Knowledge.load(PILOTS / name), plan, f"a pilot of {about} on the embedded, public MNIST")
        for name, plan, about in shipped
    )


def nearest(sources: Sequence[Source], plan: Plan) -> Source:
    """The pilot whose plan differs from this one in the fewest fields."""
    return min(sources, key=lambda source: len(source.differs(plan)))


def look_ahead(fields: dict[str, Any], knowledge: Knowledge) -> dict[str, Any]:
    """Everything `nbafl plan --bounds` says; runs in the background."""
    return plan_bounds(Plan(**fields), knowledge)


def measure(fields: dict[str, Any]) -> Knowledge:
    """A pilot for this very plan; runs in the background."""
    return explore(Plan(**fields))


def curve(
    found: dict[str, Any], form: str, over: str, now: int, borrowed: bool = False
) -> dict[str, Any] | None:
    """One form over T (`rounds`) or K (`per_round`) with its minimiser marked; None where it has no value at all.

    What rests on the pilot of another plan is borrowed, and looks so: dashed, and hatched below.
    """
    swept = found["curves"][over][form]
    points = [
        (at, value)
        for at, value in zip(swept["candidates"], swept["values"], strict=True)
        if value is not None
    ]
    if not points:
        return None
    symbol, axis = ("T", "rounds T") if over == "rounds" else ("K", "clients drawn each round K")
    line = _line(points, QUANTITY[form]) | (BORROWED if borrowed else {})
    best = _best(swept["at"], swept["value"], symbol, last=swept["at"] == points[-1][0])
    xaxis: dict[str, Any] = {"title": {"text": axis}}
    if over == "rounds":
        xaxis |= {"type": "log", "tickvals": ROUND_TICKS, "ticktext": [str(tick) for tick in ROUND_TICKS]}
    layout = {
        "xaxis": xaxis,
        "yaxis": {"title": {"text": QUANTITY[form]}, "range": _reach([value for _, value in points])},
        "margin": {"l": 52, "r": 24, "t": 26, "b": 42},
        "shapes": [_now(now)],
        "annotations": [_now_label(now, logarithmic=over == "rounds")],
    }
    return charts.figure([line, best], layout)


def _line(points: list[tuple[int, float]], name: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [at for at, _ in points],
        "y": [value for _, value in points],
        "line": {"color": charts.COLOURS[0], "width": 2.5},
        "hovertemplate": "%{y:.4g}",
    }


def _best(at: int, value: float, symbol: str, last: bool) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": f"best {symbol}",
        "x": [at],
        "y": [value],
        "text": [f"best {symbol} = {at}"],
        "textposition": "top left" if last else "top center",
        "textfont": {"color": charts.INK, "size": 13},
        "marker": {
            "symbol": "diamond",
            "size": 12,
            "color": charts.COLOURS[1],
            "line": {"color": "#fff", "width": 1.5},
        },
        "hovertemplate": "%{y:.4g}",
        "cliponaxis": False,
    }


def _now(at: int) -> dict[str, Any]:
    """A line where the plan stands."""
    line = {"color": charts.SOFT, "dash": "dot", "width": 1.5}
    return {"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper", "line": line}


def _now_label(at: int, logarithmic: bool) -> dict[str, Any]:
    where = {"x": math.log10(at) if logarithmic else at, "y": 1, "yref": "paper", "yanchor": "bottom"}
    return {**where, "text": "this plan", "showarrow": False, "font": {"size": 12, "color": charts.SOFT}}


def _reach(values: list[float]) -> list[float]:
    """A range that shows the valley: values far above it would flatten it."""
    low, high = min(values), max(values)
    top = min(high, low + 6 * max(abs(low), (sorted(values)[len(values) // 2] - low)))
    room = 0.12 * (top - low) or 0.1 * abs(low) or 0.1
    return [low - room / 2, top + 2 * room]


def reason(found: dict[str, Any], form: str) -> str:
    """Why a form has no value, no best T or no best K, in words first; empty when nothing is missing."""
    text = found["reasons"].get(form)
    if not text:
        return ""
    if missing(found, form):
        return f"{WHY[form]} Exactly: {text}."
    return f"Note: {text}."


def missing(found: dict[str, Any], form: str) -> bool:
    """Whether a form has no value at all for this plan."""
    return (found["predicted_loss"] if form == "empirical" else found["bound"][form]) is None


def here(found: dict[str, Any], form: str) -> str:
    """The form's value for the plan as it is, and its best T and K."""
    value = found["predicted_loss"] if form == "empirical" else found["bound"][form]
    if isinstance(value, dict) or value is None:
        return "no value for this plan"
    best = found["best"][form] or {}
    said = [
        f"best {symbol} = {best[key]}"
        for key, symbol in (("rounds", "T"), ("per_round", "K"))
        if best.get(key)
    ]
    return f"{short(value)} for this plan" + (f"; {listed(said)}" if said else "")


def moves(found: dict[str, Any], plan: Plan, form: str) -> str:
    """How the best T follows the claim."""
    steps = [(each["epsilon"], each["best_rounds"][form]) for each in found["curves"]["epsilon"]]
    if not plan.noise or any(rounds is None for _, rounds in steps):
        return ""
    said = ", ".join(f"{rounds} at ε = {short(epsilon)}" for epsilon, rounds in steps)
    return f"Best T by claim: {said} (δ = {short(plan.delta)}, {escape(plan.adversary)})."


def caption(source: Source, plan: Plan) -> str:
    """What the curves assume."""
    text = f"Assumes {source.about}; the noise is this plan’s own at every T and K. "
    differs = source.differs(plan)
    if differs:
        names = listed([table()[name].entry.label.lower() for name in differs])
        text += f"<b>This plan differs from that pilot in {escape(names)}</b>: measure again to be sure. "
    return text + "A pilot trains without noise: on private data it is outside the privacy guarantee."
