"""The list of runs as a table: its columns, what of it is shown, and the rows; all of it can be put into a link.

Rows hold plain values to sort by and texts to look at. Runs that differ in nothing but their seed can be one row, with
the mean and the spread of what they measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Any

from nbafl.studio import run_cards
from nbafl.studio.run_folders import Entry
from nbafl.studio.wording import duration, short

NARROW = ("name", "state", "result", "changed")
"""The columns beside the details of a run."""
LABELS = {
    "name": "Run",
    "state": "State",
    "claimed": "Claimed ε",
    "real": "Real ε",
    "delta": "δ",
    "adversary": "Adversary",
    "unit": "Unit",
    "rounds": "T",
    "result": "Result",
    "duration": "Duration",
    "audit": "Audit",
    "changed": "Changed",
}
LEFT = ("name", "state", "adversary", "unit", "audit")
FIELDS = {"result": "accuracy", "duration": "seconds"}
"""What a column is sorted by, where that is not of its name."""
COLUMNS = [
    {
        "name": name,
        "label": label,
        "field": FIELDS.get(name, name),
        "align": "left" if name in LEFT else "right",
        "sortable": True,
    }
    for name, label in LABELS.items()
]
FILTERS = {"state": "State", "adversary": "Adversary", "unit": "Unit", "audit": "Audit", "tag": "Tag"}
ANY = "any"
HIDDEN = 1e308
"""Sorts what has no finite value behind everything that has one."""


@dataclass(frozen=True)
class View:
    """What of the list is shown, as the address of the page says it."""

    find: str = ""
    filters: Mapping[str, str] = field(default_factory=dict)
    sort: str = ""
    descending: bool = False
    archived: bool = False
    grouped: bool = False

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> View:
        """The view in a link; what it does not know is left alone."""
        filters = {name: query[name] for name in FILTERS if query.get(name)}
        sort = query.get("sort", "")
        return cls(
            query.get("find", ""),
            filters,
            sort if sort in LABELS else "",
            "desc" in query,
            "archived" in query,
            "seeds" in query,
        )

    def query(self) -> list[tuple[str, str]]:
        """The view as parts of a link; only what is not as usual."""
        parts = {"find": self.find, **self.filters, "sort": self.sort}
        flags = {"desc": self.descending, "archived": self.archived, "seeds": self.grouped}
        return [
            *((name, text) for name, text in parts.items() if text),
            *((n, "1") for n, on in flags.items() if on),
        ]

    def with_filter(self, name: str, value: str) -> View:
        """The same with one column filtered; `any` shows all."""
        others = {key: kept for key, kept in self.filters.items() if key != name}
        return replace(self, filters=others if value == ANY else {**others, name: value})

    def shows(self, row: Mapping[str, Any]) -> bool:
        """Whether a row is among those to be shown, whatever is searched for."""
        if row["archived"] and not self.archived:
            return False
        return all(wanted in str(row[name]).split(" ") for name, wanted in self.filters.items())


def choices(rows: Iterable[Mapping[str, Any]], name: str) -> list[str]:
    """The values that a column can be filtered by."""
    found = {word for row in rows for word in str(row[name]).split(" ") if word}
    return [ANY, *sorted(found)]


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but their seed."""

    entries: tuple[Entry, ...]

    @property
    def name(self) -> str:
        return self.entries[0].name

    @property
    def label(self) -> str:
        seeds = len(self.entries)
        return self.name if seeds == 1 else f"{self.name} and {seeds - 1} more seed{'s' if seeds > 2 else ''}"


def groups(entries: Sequence[Entry], grouped: bool) -> list[Group]:
    """The entries one by one, or those of one plan together."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        key = _without_seed(entry) if grouped and entry.state in ("finished", "running", "stopped") else ""
        found.setdefault(key or entry.name, []).append(entry)
    return [Group(tuple(members)) for members in found.values()]


def _without_seed(entry: Entry) -> str:
    if entry.plan is None:
        return ""
    fields = entry.plan.model_dump(exclude={"seed", "device", "engine", "eval_every"})
    return json.dumps([entry.state, fields], default=str, sort_keys=True)


def row(group: Group, failed: str | None = None) -> dict[str, Any]:
    """A row of the table."""
    entry = group.entries[0]
    plan, made = entry.plan, run_cards.row(entry, failed)
    promised = plan is not None and plan.noise
    seconds = entry.duration
    made |= {
        "label": group.label,
        "claimed": plan.epsilon if plan is not None and promised else None,
        "claimed_text": short(plan.epsilon) if plan is not None and promised else "",
        "real": _real(entry),
        "real_text": short(entry.epsilon) if entry.kept is not None else "",
        "delta": plan.delta if plan is not None else None,
        "delta_text": short(plan.delta) if plan is not None else "",
        "adversary": plan.adversary if plan is not None else "",
        "unit": entry.unit,
        "seconds": seconds,
        "duration": "" if seconds is None else duration(seconds),
        "audit": entry.verdict,
        "tag": " ".join(entry.label.tags),
        "note": entry.label.note,
        "archived": entry.label.archived,
        "marks": run_cards.marks(entry),
    }
    if len(group.entries) > 1:
        made |= _spread(group)
    return made


def _real(entry: Entry) -> float | None:
    if entry.kept is None:
        return None
    return HIDDEN if entry.epsilon is None else entry.epsilon


def _spread(group: Group) -> dict[str, Any]:
    """Mean and deviation over the seeds."""
    values = [
        e.last["test_accuracy"] for e in group.entries if e.last and e.last.get("test_accuracy") is not None
    ]
    if not values:
        return {}
    deviation = f" ± {stdev(values):.1%}" if len(values) > 1 else ""
    return {"accuracy": fmean(values), "result": f"{fmean(values):.1%}{deviation}"}
