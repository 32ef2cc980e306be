"""What an epsilon speaks about. Whoever prints one prints this beside it: adversary, delta, unit, adjacency, premise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbafl.privacy import subsampling
from nbafl.privacy.adversary import parse

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
    provided: tuple[str, ...] = ()
    """What people must keep to, in plain words: a secret that stays one, accomplices that are not more than planned for."""

    @classmethod
    def of(cls, plan: Plan) -> Scope:
        own = plan.sensitivity_of()
        condition = plan.rule.if_it_holds.strip()
        return cls(plan.adversary, plan.delta, own.unit, own.adjacency, condition, tuple(_provided(plan)))

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> Scope:
        """The way back from `to_dict`."""
        premise = told["premise"]
        condition = "" if premise == PROVED else str(premise)
        provided = tuple(told.get("provided", ()))  # a server of an earlier version does not say it
        return cls(told["adversary"], told["delta"], told["unit"], told["adjacency"], condition, provided)

    @property
    def whom(self) -> str:
        """The unit and its adjacency, as in "per record (replace)"."""
        return f"{self.unit} ({self.adjacency})"

    @property
    def premise(self) -> str:
        """All conditions after a comma, to end a sentence with; empty where there is none."""
        return "".join(f", {each}" for each in (self.condition, *self.provided) if each)

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
            "provided": list(self.provided),
        }


def _provided(plan: Plan) -> Iterator[str]:
    """What a plan's epsilon stands on besides its sensitivity."""
    named = parse(plan.adversary)
    if subsampling.rests_on_the_draw(plan.release(), named):
        yield "as long as it stays secret who is drawn"
    if plan.aggregation == "secure":
        count = named.accomplices
        who = {0: "no client works", 1: "at most 1 client works"}.get(count, f"at most {count} clients work")
        yield f"while {who} with the server"
