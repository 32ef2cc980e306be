"""The plan somebody is working on: the fields they set, what is wrong with them, and the same plan as a link,
as a command line and as a Plan.

Only what differs from the defaults is kept, so defaults that depend on other fields keep doing so, and link and
command stay short. A value that cannot be stays an error at its field until it is changed; it is never lost.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode

from nbafl import rules
from nbafl.errors import NbaflError, UsageError
from nbafl.fields import table
from nbafl.plan import Plan
from nbafl.studio.fields import parse, show

DEFAULTS: dict[str, Any] = {name: each.default for name, each in table().items()}
FOLLOWING = ("local_steps", "features", *(name for name, each in table().items() if each.entry.fitted))
"""Fields whose default follows from other fields: what somebody sets there is kept, whatever it is."""


@dataclass
class Draft:
    """A plan in the making."""

    fields: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """What was typed where there is an error, so that the field can go on showing it."""

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Draft:
        """The plan in a link; unknown names are left alone, wrong values become errors."""
        draft = cls()
        for name, text in query.items():
            if name in DEFAULTS:
                draft.put(name, text)
        return draft

    @classmethod
    def from_plan(cls, plan: Plan) -> Draft:
        """A draft that starts where a plan is."""
        said = plan.model_dump()
        fields = {name: said[name] for name in DEFAULTS if name in FOLLOWING or said[name] != DEFAULTS[name]}
        for name in FOLLOWING:
            without = {other: value for other, value in fields.items() if other != name}
            fields = without if Plan(**without) == plan else fields
        return cls(fields)

    def put(self, name: str, text: str) -> None:
        """Take what was typed, slid or chosen for a field."""
        try:
            value = parse(name, text)
            self._check_reach(name, value)
        except UsageError as error:
            self.errors[name], self.refused[name] = str(error), text
            return
        self.errors.pop(name, None)
        self.refused.pop(name, None)
        if value is None or (value == DEFAULTS[name] and name not in FOLLOWING):
            self.fields.pop(name, None)
        else:
            self.fields[name] = value

    def value(self, name: str) -> Any:
        """What a field stands at: as set, within what the other fields allow, or what follows from them, or the default."""
        fields = self._effective()
        if name in FOLLOWING and name not in fields:
            return _following(json.dumps(fields, sort_keys=True))[name]
        return fields.get(name, DEFAULTS[name])

    def plan(self) -> Plan:
        """The plan, or the sentence that says why it cannot be one."""
        for name, sentence in self.errors.items():
            raise Unfit(name, sentence)
        return Plan(**self._effective())

    def settle(self) -> str | None:
        """Bring fields along that the chosen sensitivity model needs; returns a sentence if any had to move."""
        rule = rules.find(self.value("sensitivity"))
        needed: dict[str, Any] = {
            name: value for name, value in rule.needs.items() if self.value(name) is None
        }
        if rule.models and self.value("model") not in rule.models:
            needed["model"] = rule.models[0]
        if rule.local_steps == 1 and self.fields.pop("local_steps", 1) != 1:
            needed["local_steps"] = 1
        if self.value("adjacency") not in rule.adjacencies:
            needed["adjacency"] = rule.adjacencies[0]
        for name in needed.keys() - {"local_steps"}:  # which follows from the rule
            self.put(name, show(needed[name]))
        moved = [f"{table()[name].entry.label.lower()} to {show(value)}" for name, value in needed.items()]
        return f"Sensitivity {rule.name} needs it: set {', '.join(moved)}." if moved else None

    def query(self) -> str:
        """The draft as the query of a link."""
        return urlencode({name: show(value) for name, value in self._effective().items()})

    def command(self, verb: str = "run") -> str:
        """The same plan as a command line."""
        words = ["nbafl", verb]
        for name, value in self._effective().items():
            option = f"--{name.replace('_', '-')}"
            if name == "noise":
                words.append("--no-noise")
            elif name == "sizes":
                words.append("--sizes sizes.txt")
            else:
                words.append(f"{option} {shlex.quote(show(value))}")
        return " ".join(words)

    def _effective(self) -> dict[str, Any]:
        """K and L as far as N and T let them reach; what was wanted comes back when N or T grows again."""
        fields = dict(self.fields)
        clients, rounds = fields.get("clients", DEFAULTS["clients"]), fields.get("rounds")
        if "per_round" in fields and fields["per_round"] >= clients >= 1:
            fields.pop("per_round")
        if rounds is not None and fields.get("exposures", 1) > rounds:
            fields["exposures"] = max(1, rounds)
        return fields

    def _check_reach(self, name: str, value: Any) -> None:
        """K above N and L above T are wrong when somebody asks for them, not when N or T moves later."""
        if name in ("per_round", "exposures") and value is not None:
            Plan(**{**self._counts(), name: value})

    def _counts(self) -> dict[str, Any]:
        """N and T alone, where they can be a plan."""
        counts = {name: self.value(name) for name in ("clients", "rounds")}
        return {name: value for name, value in counts.items() if value >= 1}


@lru_cache(maxsize=64)
def _following(fields: str) -> dict[str, Any]:
    """What the fields that were left out follow to; their plain defaults where there is no plan."""
    try:
        plan = Plan(**json.loads(fields))
    except NbaflError:
        return DEFAULTS
    return {name: getattr(plan, name) for name in FOLLOWING}


class Unfit(NbaflError):
    """A field of the draft holds something that no plan can have."""

    def __init__(self, field: str, sentence: str) -> None:
        super().__init__(sentence)
        self.field = field
