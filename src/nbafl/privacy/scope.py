"""What an epsilon speaks about. Whoever prints one prints this beside it: adversary, delta, unit, adjacency, premise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbafl.plan import Plan

PROVED = "proved"
"""In place of a premise, where the sensitivity is a theorem."""


@dataclass(frozen=True)
class Scope:
    """Everything that belongs to the epsilons of one plan."""

    adversary: str
    delta: float
    unit: str
    adjacency: str
    condition: str
    """What is claimed without proof, as "if … holds"; empty where nothing is."""

    @classmethod
    def of(cls, plan: Plan) -> Scope:
        own = plan.sensitivity_of()
        return cls(plan.adversary, plan.delta, own.unit, own.adjacency, plan.rule.if_it_holds.strip())

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> Scope:
        """The way back from `to_dict`."""
        premise = told["premise"]
        condition = "" if premise == PROVED else str(premise)
        return cls(told["adversary"], told["delta"], told["unit"], told["adjacency"], condition)

    @property
    def whom(self) -> str:
        """The unit and its adjacency, as in "per record (replace)"."""
        return f"{self.unit} ({self.adjacency})"

    @property
    def premise(self) -> str:
        """The condition after a comma, to end a sentence with; empty where there is none."""
        return f", {self.condition}" if self.condition else ""

    @property
    def words(self) -> str:
        """What follows an epsilon in a line."""
        return f"at delta {self.delta:g} against {self.adversary}, per {self.whom}{self.premise}"

    def to_dict(self) -> dict[str, Any]:
        """For machines."""
        return {
            "adversary": self.adversary,
            "delta": self.delta,
            "unit": self.unit,
            "adjacency": self.adjacency,
            "premise": self.condition or PROVED,
        }
