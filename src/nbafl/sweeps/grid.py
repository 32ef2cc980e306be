"""Which runs a sweep consists of: a base plan, fields that take several values, and seeds."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nbafl.errors import UsageError
from nbafl.plan import Plan

LONGEST_NAME = 120
"""Characters of a run's folder name; longer ones end in a number instead of values."""
MOST_RUNS = 100_000


@dataclass(frozen=True)
class Point:
    """One run of a sweep: its folder name, the values of the fields that vary, and its plan."""

    name: str
    setting: dict[str, Any]
    plan: Plan


@dataclass(frozen=True)
class Grid:
    """Every combination of the values in `axes`, each with every seed."""

    base: dict[str, Any]
    axes: dict[str, tuple[Any, ...]]
    seeds: tuple[int, ...]
    holdout: float | None = None

    def __post_init__(self) -> None:
        for field, values in self.axes.items():
            _check_axis(field, values)
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise UsageError("seeds", list(self.seeds), "at least one, each once")
        if self.holdout is not None and not 0 < self.holdout < 1:
            raise UsageError("holdout", self.holdout, "above 0 and below 1")
        if self.size > MOST_RUNS:
            raise UsageError("grid", f"{self.size} runs", f"at most {MOST_RUNS}")

    @classmethod
    def of(
        cls, plan: Plan, grid: Mapping[str, Sequence[Any]], seeds: int | Sequence[int], holdout: float | None
    ) -> Grid:
        """From what somebody has in Python: a plan, and lists of values by field."""
        base = plan.model_dump(exclude_unset=True, exclude={"seed", *grid})
        numbers = tuple(range(plan.seed, plan.seed + seeds)) if isinstance(seeds, int) else tuple(seeds)
        return cls(base, {field: tuple(values) for field, values in grid.items()}, numbers, holdout)

    @property
    def size(self) -> int:
        """How many runs there are."""
        count = len(self.seeds)
        for values in self.axes.values():
            count *= len(values)
        return count

    def points(self) -> list[Point]:
        """Every run, in the order of the axes; an invalid combination is refused before any run begins."""
        settings = [
            dict(zip(self.axes, chosen, strict=True)) for chosen in itertools.product(*self.axes.values())
        ]
        made = [
            Point(_name(setting, seed), setting, Plan(**{**self.base, **setting, "seed": seed}))
            for setting in settings
            for seed in self.seeds
        ]
        if len({point.name for point in made}) < len(made):  # values that differ only in odd characters
            made = [
                Point(f"{number:05d}-{point.name}", point.setting, point.plan)
                for number, point in enumerate(made)
            ]
        return made

    def to_dict(self) -> dict[str, Any]:
        """What sweep.json holds; equal for equal sweeps."""
        axes = {field: list(values) for field, values in self.axes.items()}
        told = {"base": self.base, "axes": axes, "seeds": list(self.seeds), "holdout": self.holdout}
        return json.loads(json.dumps(told, default=asdict))  # tuples as lists, as they are after reading

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Grid:
        axes = {field: tuple(values) for field, values in told["axes"].items()}
        return cls(told["base"], axes, tuple(told["seeds"]), told["holdout"])


def _check_axis(field: str, values: Sequence[Any]) -> None:
    if field == "seed":
        raise UsageError("seed", list(values), "given as seeds, not among the fields that vary")
    if field not in Plan.model_fields:
        raise UsageError("a field of the grid", field, "one of " + ", ".join(Plan.model_fields))
    if not values:
        raise UsageError(field, [], "at least one value")
    told = [json.dumps(value, default=str) for value in values]
    if len(set(told)) < len(told):
        raise UsageError(field, list(values), "each value once")


def _name(setting: Mapping[str, Any], seed: int) -> str:
    """A folder name a person can read; the same run has the same name in every sweep."""
    parts = [f"{field}-{_told(value)}" for field, value in setting.items()]
    return "_".join([*parts, f"seed-{seed}"])[-LONGEST_NAME:].lstrip("_-")


def _told(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", text).strip("-") or "none"
