"""A schema read from the records themselves, for want of a public one.

Everything found here (names, kinds, categories, classes, ranges) comes from private records, so no epsilon covers it: a
run says so and the statement lists it. What cannot be told without a guess is asked for: the task of a whole-number
target that could be either, and columns that look like identifiers, persons or dates (`identifying`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nbafl.data.identifying import identifying, refusal
from nbafl.data.schema import Column, Schema, described
from nbafl.data.tables import Table, label, listed, number, values_of
from nbafl.errors import DataError, UsageError
from nbafl.tasks import TASKS

FEW = 20
"""Whole-number targets with at most this many different values may be classes."""
OWN_CATEGORY = "missing"


def names_in(said: str) -> tuple[str, ...]:
    """Names of columns as an option has them: several, separated by commas."""
    return tuple(name.strip() for name in said.split(",") if name.strip())


@dataclass(frozen=True)
class Wanted:
    """What the owner said about the columns; everything else is read from the tables."""

    target: str
    task: str | None = None
    ignore: tuple[str, ...] = ()
    person: str | None = None

    def __post_init__(self) -> None:
        if self.task is not None and self.task not in TASKS:
            raise UsageError("task", self.task, "binary, classification or regression")


def infer(tables: Sequence[Table], wanted: Wanted, *, draft: bool = False) -> Schema:
    """The schema that fits all tables.

    A `draft` is for a person to correct: it adds ranges, rules for missing values, and ignores columns that
    tell whom a record is about. Without it such columns and missing values are refused, and numbers keep their scale.
    """
    names = common_columns(tables, wanted)
    ignore = list(wanted.ignore)
    suspects = identifying(tables, names)
    if draft:
        ignore += [each.name for each in suspects]
    elif refused := [each for each in suspects if each.refused]:
        raise DataError(refusal(refused))
    columns = [name for name in names if name not in ignore]
    if not columns:
        raise DataError(
            f"{tables[0].name} has no column besides the target {wanted.target!r}"
            f"{f' and {listed(ignore)}, left out' if ignore else ''}; there is nothing to learn from."
        )
    task, classes = _task(tables, wanted)
    schema = Schema(
        target=wanted.target,
        task=task,
        columns=tuple(_column(tables, name, draft) for name in columns),
        classes=classes,
        target_range=_nice_range(tables, wanted.target) if draft and classes is None else None,
        ignore=tuple(ignore),
        person=wanted.person,
    )
    return replace(schema, read_from_data=tuple(described(schema)))


def common_columns(tables: Sequence[Table], wanted: Wanted) -> list[str]:
    """Feature columns that all tables share; all differences are told at once."""
    first, problems = tables[0], []
    for name, role in (
        (wanted.target, "target"),
        (wanted.person, "person"),
        *((each, "ignored") for each in wanted.ignore),
    ):
        if name is not None and name not in first.columns:
            problems.append(
                f"The {role} column {name!r} is not in {first.name}; its columns are {listed(list(first.columns))}."
            )
    for table in tables[1:]:
        lacking = [name for name in first.columns if name not in table.columns and name not in wanted.ignore]
        extra = [name for name in table.columns if name not in first.columns and name not in wanted.ignore]
        if lacking:
            problems.append(
                f"The columns of {table.name} differ from those of {first.name}: it lacks {listed(lacking)}."
            )
        if extra:
            problems.append(
                f"The columns of {table.name} differ from those of {first.name}: it has {listed(extra)} besides."
            )
    if problems:
        raise DataError(" ".join(problems))
    return [name for name in first.columns if name not in (wanted.target, wanted.person, *wanted.ignore)]


def _task(tables: Sequence[Table], wanted: Wanted) -> tuple[str, tuple[str, ...] | None]:
    """The task, and for classes their names: numbers in order, then text."""
    values = Counter(label(value) for value in values_of(tables, wanted.target))
    if not values:
        raise DataError(f"The target column {wanted.target!r} has no values at all.")
    task = wanted.task or _guessed_task(wanted.target, values)
    if task == "regression":
        return task, None
    if len(values) < 2:
        raise DataError(
            f"The target column {wanted.target!r} has only the one value {next(iter(values))!r} in all files."
        )
    if task == "binary" and len(values) != 2:
        raise UsageError(
            "task", "binary", f"classification for the {len(values)} different values of {wanted.target!r}"
        )
    classes = sorted(values, key=lambda value: (number(value) is None, number(value) or 0.0, value))
    return wanted.task or ("binary" if len(classes) == 2 else "classification"), tuple(classes)


def _guessed_task(target: str, values: Mapping[str, int]) -> str:
    numbers = [parsed for value in values if (parsed := number(value)) is not None]
    if len(numbers) < len(values):
        if 2 * sum(count for value, count in values.items() if number(value) is not None) > sum(
            values.values()
        ):
            odd = next(value for value in values if number(value) is None)
            raise DataError(
                f"The target {target!r} holds numbers and also {odd!r}: correct it, or say --task classification."
            )
        return "classification"
    if not all(each.is_integer() for each in numbers):
        return "regression"
    if len(values) <= 2 or sorted(numbers) in (list(range(len(values))), list(range(1, len(values) + 1))):
        return "classification" if len(values) <= FEW else "regression"
    if len(values) <= FEW:
        raise DataError(
            f"The target {target!r} holds {len(values)} different whole numbers, which may be classes or amounts: "
            "say --task classification or --task regression."
        )
    return "regression"


def _column(tables: Sequence[Table], name: str, draft: bool) -> Column:
    """A column of numbers, or the sorted categories of any other; mostly numbers with some text is refused."""
    values = values_of(tables, name)
    missing = len(values) < sum(map(len, tables))
    text = {value for value in values if number(value) is None}
    if not text and values:
        bounds = _nice_range(tables, name) if draft else None
        fill = (bounds[0] + bounds[1]) / 2 if missing and bounds is not None else None
        return Column(name, "number", bounds, (), fill)
    odd = [(table, i) for table in tables for i, value in enumerate(table.columns[name]) if value in text]
    if values and 2 * len(odd) < len(values):
        table, record = odd[0]
        more = f" ({len(odd)} such values)" if len(odd) > 1 else ""
        raise DataError(
            f"The value {table.columns[name][record]!r} of {name!r} in {table.place(record)} is not a number, "
            f"as most values of that column are{more}."
        )
    categories = sorted({label(value) for value in values})
    if missing and draft:
        own = OWN_CATEGORY if OWN_CATEGORY not in categories else f"({OWN_CATEGORY})"
        return Column(name, "category", None, (*categories, own), own)
    return Column(name, "category", None, tuple(categories) or (OWN_CATEGORY,))


def _nice_range(tables: Sequence[Table], name: str) -> tuple[float, float] | None:
    """A range around all values with ends at round numbers, for a person to replace by what is known in public."""
    numbers = [
        parsed
        for value in values_of(tables, name)
        if (parsed := number(value)) is not None and math.isfinite(parsed)
    ]
    if not numbers:
        return None
    low, high = min(numbers), max(numbers)
    if low == high:
        return (low, low + 1.0)
    step = 10.0 ** math.floor(math.log10(high - low)) / 2
    if not (math.isfinite(step) and step > 0):
        return (low, high)
    return float(f"{math.floor(low / step) * step:.12g}"), float(f"{math.ceil(high / step) * step:.12g}")
