"""What trackers are given: a plan as parameters, a round as named numbers, and every epsilon with all it needs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from nbafl.privacy import adversary
from nbafl.privacy.scope import Scope

if TYPE_CHECKING:
    from nbafl.folders.runs import RunFolder
    from nbafl.plan import Plan

CHANGES = {"replace": "replaced", "drop": "left out"}
LONGEST = 250
"""Characters of a parameter; the sizes of many clients are cut there (plan.toml has them all)."""


def parameters(plan: Plan) -> dict[str, str | float]:
    """Every field of the plan that is set, and what it promises by which name."""
    given = {name: value for name, value in plan.model_dump().items() if value is not None}
    return {**{name: _parameter(value) for name, value in given.items()}, "digest": plan.digest()}


def scalars(run: RunFolder, metrics: dict[str, Any]) -> dict[str, float]:
    """What was measured in a round; in a simulation also the epsilon spent so far against the plan's adversary."""
    measured = {
        name: float(value) for name, value in metrics.items() if name != "round" and value is not None
    }
    facts, plan = run.facts, run.plan
    if plan.noise and facts is not None and facts.where == "simulation":
        spent = plan.epsilon_after(metrics["round"])
        measured[f"{epsilon_name(plan)} so far/{adversary.parse(plan.adversary).key}"] = spent
    return {name: value for name, value in measured.items() if math.isfinite(value)}


def epsilons(run: RunFolder) -> dict[str, float]:
    """The epsilon that a finished run really gives against each adversary; infinite ones are left out."""
    if not run.plan.noise:
        return {}
    stated = run.privacy["guarantee"]
    return {
        f"{epsilon_name(run.plan)}/{name}": value["epsilon"]
        for name, value in stated.items()
        if value["epsilon"] is not None
    }


def epsilon_name(plan: Plan) -> str:
    """An epsilon's name says its delta, unit, adjacency and whether it is conditional; the adversary follows it.

    In letters, digits, spaces and dots: trackers take no other.
    """
    scope = Scope.of(plan)
    condition, change = "conditional " if scope.condition else "", CHANGES[scope.adjacency]
    return f"{condition}epsilon at delta {scope.delta:g} per {scope.unit} {change}"


def _parameter(value: Any) -> str | float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    told = str(value)
    return told if len(told) <= LONGEST else told[: LONGEST - 1] + "…"
