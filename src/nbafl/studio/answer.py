"""Everything the Plan page says about one plan, computed in one go and away from the page.

The numbers are the Plan's own (`summary`, `paper_rule`); added is one quantity that people can picture: how often the
best possible guess about one record is right.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from nbafl.plan import Plan
from nbafl.privacy import accounting, adversary, badges


@dataclass(frozen=True)
class Answer:
    """What a plan needs and what it is worth."""

    plan: Plan
    summary: dict[str, Any]
    paper: dict[str, Any]
    adversary: adversary.Adversary
    guess: float
    """The highest probability of telling two neighbouring data sets apart, for the adversary of the plan."""
    detected: float
    """The most that any of its tests with a false alarm in 1 case of 100 detects."""

    @property
    def epsilon(self) -> float | None:
        """The ε that really holds against the plan's adversary; None where none does."""
        value: float | None = self.summary["guarantee"][self.adversary.key]["epsilon"]
        return value

    @property
    def kept(self) -> bool:
        """Whether the noise is worth what the plan claims, against the adversary it names."""
        return badges.holds(self.epsilon, self.plan.epsilon)


@lru_cache(maxsize=256)
def answer(plan: Plan) -> Answer:
    """The page's numbers for a plan; remembered, because sliders come back to where they were."""
    named = adversary.parse(plan.adversary)
    secure = plan.secure_sums()
    detected = (
        accounting.attack_power(plan.release(), plan.noise_scales(), named, 0.01)
        if secure is None
        else secure.attack_power(named, 0.01)
    )
    return Answer(plan, plan.summary(), plan.paper_rule(), named, best_guess(plan, named), detected)


def best_guess(plan: Plan, named: adversary.Adversary) -> float:
    """The success of an optimal test between two equally likely neighbours: (1 + δ(0))/2, with δ(0) their distance.

    δ(0) is the total variation distance of what the adversary sees in the two cases, so no guess does better.
    """
    secure = plan.secure_sums()
    if secure is not None:
        return (1 + secure.delta(named, 0.0)) / 2
    return (1 + accounting.delta_spent(plan.release(), plan.noise_scales(), named, 0.0)) / 2
