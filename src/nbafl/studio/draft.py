"""The plan somebody is working on: the fields they set, what is wrong with them, and the same plan as a link,
as a command line and as a Plan.

Only what differs from the defaults is kept, so defaults that depend on other fields keep doing so, and link and
command stay short. A value that cannot be stays an error at its field until it is changed; it is never lost.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from nbafl.errors import NbaflError, UsageError
from nbafl.plan import Plan
from nbafl.studio.fields import SHOWN, parse, show

DEFAULTS: dict[str, Any] = {name: each.default for name, each in Plan.model_fields.items()}
SAFE_FEATURE_NORM = 1.0
"""R offered with `proximal`: small enough for the default step size."""


@dataclass
class Draft:
    """A plan in the making."""

    fields: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

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
        fields = {name: getattr(plan, name) for name in DEFAULTS if getattr(plan, name) != DEFAULTS[name]}
        return cls(fields)

    def put(self, name: str, text: str) -> None:
        """Take what was typed, slid or chosen for a field."""
        try:
            value = parse(name, text)
            self._check_reach(name, value)
        except UsageError as error:
            self.errors[name] = str(error)
            return
        self.errors.pop(name, None)
        if value is None or value == DEFAULTS[name]:
            self.fields.pop(name, None)
        else:
            self.fields[name] = value

    def value(self, name: str) -> Any:
        """What a field stands at: as set, within what the other fields allow, or the default."""
        return self._effective().get(name, DEFAULTS[name])

    def plan(self) -> Plan:
        """The plan, or the sentence that says why it cannot be one."""
        for name, sentence in self.errors.items():
            raise Unfit(name, sentence)
        return Plan(**self._effective())

    def settle(self) -> str | None:
        """Bring fields along that the chosen sensitivity model needs; returns a sentence if any had to move."""
        model = self.fields.get("sensitivity")
        moved: list[str] = []
        if model == "gradient" and self.fields.pop("local_steps", None) is not None:
            moved.append("local steps to 1")
        if model == "proximal" and self.value("model") != "softmax":
            self.fields["model"] = "softmax"
            moved.append("model to softmax")
        if model == "proximal" and self.value("feature_norm") is None:
            self.fields["feature_norm"] = SAFE_FEATURE_NORM
            moved.append(f"feature norm R to {SAFE_FEATURE_NORM:g}")
        if model != "client" and self.fields.pop("adjacency", None) is not None:
            moved.append("neighbours to replace")
        return f"Sensitivity {model or 'paper'} needs it: set {', '.join(moved)}." if moved else None

    def carried(self) -> dict[str, Any]:
        """Fields that are set but have no control on the page."""
        return {name: value for name, value in self.fields.items() if name not in SHOWN}

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
        clients, rounds = fields.get("clients", DEFAULTS["clients"]), fields.get("rounds", DEFAULTS["rounds"])
        if fields.get("per_round", 0) >= clients:
            fields.pop("per_round")
        if fields.get("exposures", 1) > rounds:
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


class Unfit(NbaflError):
    """A field of the draft holds something that no plan can have."""

    def __init__(self, field: str, sentence: str) -> None:
        super().__init__(sentence)
        self.field = field
