"""The public schema: how one row of text becomes one record of numbers, whatever the other rows are.

A schema is a TOML file that the parties agree on before they train. It names the target, the task and every column with
its kind, range, categories and the value that stands for a missing one. Encoding is record by record: a number is mapped
from its public range to [-1, 1] and cut off outside, a category becomes one feature per listed category, a missing number
becomes the constant `fill` beside an indicator feature. No statistic of the data enters, so one record never changes the
features of another. `public = true` is a person's word that nothing in the file was taken from private records.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nbafl.data.tables import Table, label, listed, number
from nbafl.tasks import outputs_of

SCHEMA_FILE = "schema.toml"
NO_TARGET = "is missing, and no rule fills in a target: leave such rows out"
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Column:
    """One feature column: a number, with a public range where one is known, or one of a list of categories."""

    name: str
    kind: str
    range: tuple[float, float] | None = None
    categories: tuple[str, ...] = ()
    fill: float | str | None = None
    """What stands for a missing value: a number (an indicator feature joins it) or one of the categories; None refuses."""

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features this column becomes."""
        if self.kind == "category":
            return tuple(f"{self.name}={category}" for category in self.categories)
        return (self.name,) if self.fill is None else (self.name, f"{self.name} is missing")

    @property
    def square(self) -> float | None:
        """The largest |features|² of this column, from public facts; None for a number without a range."""
        if self.kind == "category":
            return 1.0
        if self.range is None:
            return None
        return max(1.0, 0.0 if self.fill is None else 1 + self._scaled(np.array([float(self.fill)]))[0] ** 2)

    def encode(self, values: Sequence[str]) -> np.ndarray:
        """(rows, features) float64; values must have passed `problems`."""
        if self.kind == "category":
            known = {category: place for place, category in enumerate(self.categories)}
            encoded = np.zeros((len(values), len(self.categories)))
            for row, value in enumerate(values):
                place = known.get(label(value) if value else str(self.fill))
                if place is not None:
                    encoded[row, place] = 1.0
            return encoded
        missing = np.array([value == "" for value in values], dtype=bool)
        numbers = np.array(
            [self.fill if value == "" else number(value) for value in values], dtype=np.float64
        )
        scaled = self._scaled(numbers)
        return (
            scaled[:, None] if self.fill is None else np.stack([scaled, missing.astype(np.float64)], axis=1)
        )

    def _scaled(self, numbers: np.ndarray) -> np.ndarray:
        if self.range is None:
            return numbers
        low, high = self.range
        return np.clip((numbers - low) / (high - low), 0.0, 1.0) * 2 - 1

    def bad(self, value: str) -> str | None:
        """Why a value cannot be encoded, or None."""
        if value == "":
            return "is missing" if self.fill is None else None
        if self.kind == "category":
            return None
        parsed = number(value)
        if parsed is None:
            return "is not a number"
        return None if abs(parsed) <= _LARGEST else "is not a finite number"

    def odd(self, value: str) -> str | None:
        """What a rule of the schema does to a value, or None: worth saying and counting, not refusing."""
        if value == "":
            return "missing"
        if self.kind == "category":
            return None if label(value) in self.categories else "unknown"
        outside = self.range is not None and not self.range[0] <= float(value) <= self.range[1]
        return "outside" if outside else None


@dataclass(frozen=True)
class Schema:
    """What the parties agree on before they train."""

    target: str
    task: str
    columns: tuple[Column, ...]
    classes: tuple[str, ...] | None = None
    """Names of the classes in the order of the model's outputs; None for a regression."""
    target_range: tuple[float, float] | None = None
    """Public range of a regression's target, mapped to [-1, 1] for training and back in every answer."""
    ignore: tuple[str, ...] = ()
    person: str | None = None
    """The column that says whose row it is; it never becomes a feature."""
    public: bool = False
    read_from_data: tuple[str, ...] = field(default=(), compare=False)
    """What was taken from the records in this session because no schema said it."""

    @property
    def features(self) -> int:
        return sum(len(column.features) for column in self.columns)

    @property
    def feature_names(self) -> tuple[str, ...]:
        return tuple(name for column in self.columns for name in column.features)

    @property
    def outputs(self) -> int:
        return outputs_of(self.task, 0 if self.classes is None else len(self.classes))

    @property
    def norm_bound(self) -> float | None:
        """R with |(x, 1)| <= R for every possible record; None where some number has no range."""
        squares = [column.square for column in self.columns]
        return (
            None
            if None in squares
            else math.sqrt(1 + sum(square for square in squares if square is not None))
        )

    def encode(self, table: Table) -> np.ndarray:
        """Features (rows, features) float32 of one table."""
        parts = [column.encode(table.columns[column.name]) for column in self.columns]
        return np.concatenate(parts, axis=1, dtype=np.float32)

    def targets(self, table: Table) -> np.ndarray:
        """int64 classes, or float32 numbers (mapped to [-1, 1] where the target has a range)."""
        values = table.columns[self.target]
        if self.classes is not None:
            place = {name: index for index, name in enumerate(self.classes)}
            return np.array([place[label(value)] for value in values], dtype=np.int64)
        numbers = np.array([number(value) for value in values], dtype=np.float64)
        if self.target_range is not None:
            low, high = self.target_range
            numbers = np.clip((numbers - low) / (high - low), 0.0, 1.0) * 2 - 1
        return numbers.astype(np.float32)

    def in_units(self, outputs: np.ndarray) -> np.ndarray:
        """A regression's answers in the target's own unit."""
        if self.target_range is None:
            return outputs
        low, high = self.target_range
        return (outputs + 1) / 2 * (high - low) + low

    def problems(self, table: Table, with_target: bool = True) -> list[str]:
        """Why a table cannot be encoded: a sentence for each column and kind of trouble, with counts."""
        needed = [column.name for column in self.columns]
        needed += [self.target] if with_target else []
        needed += [self.person] if with_target and self.person else []
        absent = [name for name in needed if name not in table.columns]
        found = (
            [f"{table.name} lacks the column{'s' if len(absent) > 1 else ''} {listed(absent)}."]
            if absent
            else []
        )
        unknown = set(table.columns) - set(needed) - set(self.ignore) - {self.target, self.person}
        if unknown:
            extra = listed(sorted(unknown))
            found.append(
                f"{table.name} has {extra} besides the columns of the schema; "
                f"{'add to ignore what is not wanted' if with_target else 'leave out what the model does not know'}."
            )
        for column in self.columns:
            if column.name in table.columns:
                found += _counted(table, column.name, column.bad)
        if with_target and self.target in table.columns:
            found += _counted(table, self.target, self._bad_target)
        if with_target and self.person and self.person in table.columns:
            found += _counted(table, self.person, lambda value: "is missing" if value == "" else None)
        return found

    def _bad_target(self, value: str) -> str | None:
        if value == "":
            return NO_TARGET
        if self.classes is not None:
            return (
                None if label(value) in self.classes else f"is not one of the classes {listed(self.classes)}"
            )
        return Column(self.target, "number").bad(value)

    def remarks(self, table: Table, with_target: bool = True) -> list[str]:
        """What the rules of the schema did to this table's values: filled, cut off, unknown; with counts."""
        said = []
        for column in self.columns:
            counts = _tally(column.odd(value) for value in table.columns[column.name])
            for kind, count in counts.items():
                said.append(
                    _ODD[kind].format(name=column.name, count=count, table=table.name, what=_values(count))
                )
        if with_target and self.target_range is not None and self.target in table.columns:
            low, high = self.target_range
            outside = sum(not low <= float(value) <= high for value in table.columns[self.target])
            if outside:
                said.append(
                    f"{table.name}: {_values(outside)} of the target {self.target!r} outside {low:g} to {high:g} "
                    f"{'is' if outside == 1 else 'are'} cut off."
                )
        return said

    def used(self) -> list[str]:
        """For a statement: what of this schema was read from private records; nothing where it is public."""
        if self.public:
            return []
        if self.read_from_data:
            return list(self.read_from_data)
        return described(self)

    def to_toml(self) -> str:
        """The file a person reads, corrects and declares public."""
        lines = [
            "# How a row becomes a record. Read it; replace what was taken from the records by public knowledge (ranges and",
            "# categories from a code book); then set public = true. Until then the statement lists it as read from data.",
            f"public = {_toml(self.public)}",
            f"target = {_toml(self.target)}",
            f"task = {_toml(self.task)}",
        ]
        if self.classes is not None:
            lines.append(f"classes = {_toml(self.classes)}")
        if self.target_range is not None:
            lines.append(f"target_range = {_toml(self.target_range)}")
        if self.person is not None:
            lines.append(f"person = {_toml(self.person)}")
        lines.append(f"ignore = {_toml(self.ignore)}")
        for column in self.columns:
            lines += ["", f"[columns.{_key(column.name)}]", f"kind = {_toml(column.kind)}"]
            if column.range is not None:
                lines.append(f"range = {_toml(column.range)}")
            if column.kind == "category":
                lines.append(f"categories = {_toml(column.categories)}")
            if column.fill is not None:
                lines.append(f"fill = {_toml(column.fill)}")
        return "\n".join(lines) + "\n"


_ODD = {
    "missing": "{table}: {what} of {name!r} missing, filled by the schema's rule.",
    "outside": "{table}: {what} of {name!r} outside the public range cut off at its ends.",
    "unknown": "{table}: {what} of {name!r} in no category of the schema; such a record has none of them set.",
}


def _values(count: int) -> str:
    return f"{count} value{'s' if count != 1 else ''}"


def _tally(kinds: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for kind in kinds:
        if kind is not None:
            counts[kind] = counts.get(kind, 0) + 1
    return counts


def _counted(table: Table, name: str, bad: Any) -> list[str]:
    """One sentence for each reason, with the first place and the number of records."""
    first: dict[str, int] = {}
    counts: dict[str, int] = {}
    for record, value in enumerate(table.columns[name]):
        reason = bad(value)
        if reason is not None:
            first.setdefault(reason, record)
            counts[reason] = counts.get(reason, 0) + 1
    return [
        f"The value {_shown(table.columns[name][record])}of {name!r} in {table.place(record)} {reason}"
        + (f" ({counts[reason]} such values)." if counts[reason] > 1 else ".")
        for reason, record in first.items()
    ]


def _shown(value: str) -> str:
    return f"{value!r} " if value else ""


def described(schema: Schema) -> list[str]:
    """What a schema holds, in phrases: names of columns, categories, classes and ranges."""
    categories = [column.name for column in schema.columns if column.kind == "category"]
    ranges = [column.name for column in schema.columns if column.range is not None]
    filled = [column.name for column in schema.columns if column.fill is not None]
    said = [f"the names and kinds of the columns {listed([column.name for column in schema.columns])}"]
    if categories:
        said.append(f"the categories of {listed(categories)}")
    if ranges:
        said.append(f"the ranges of {listed(ranges)}")
    if filled:
        said.append(f"that values of {listed(filled)} are missing")
    if schema.classes is not None:
        said.append(f"the classes {listed(schema.classes)} of the target {schema.target!r}")
    elif schema.target_range is not None:
        said.append(f"the range of the target {schema.target!r}")
    return said


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(each) for each in value) + "]"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


def with_ranges(schema: Schema, ranges: Mapping[str, tuple[float, float]]) -> Schema:
    """The same schema with public ranges for some of its numbers."""
    columns = tuple(
        replace(column, range=ranges[column.name]) if column.name in ranges else column
        for column in schema.columns
    )
    return replace(schema, columns=columns)
