"""A folder of CSV files, one per client, as numbers a model can train on.

The first row of every file names its columns, and one of them is the target. A column whose values are all numbers is
one feature; any other becomes one feature per category. A target is a class if it holds text or a few whole numbers, a
number to predict otherwise; `task` overrides that.

Two things are shared by all clients before training starts, and are not covered by any privacy guarantee: the names of
the columns and the lists of categories and classes, which are read from all files. Nothing else is: numbers are
scaled by public ranges the user gives (`scale`, or a file ranges.toml in the folder), never by statistics of the data.
"""

from __future__ import annotations

import csv
import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nbafl.data.checks import TASKS, Arrays
from nbafl.errors import DataError, UsageError

MISSING = frozenset({"", "na", "n/a", "nan", "null", "?"})
"""Values read as missing, in any case; a missing value is refused, not guessed."""
FEW = 20
"""Whole-number targets with at most this many different values are classes."""
RANGES_FILE = "ranges.toml"
TAME = 10.0
"""Features beyond this without a public range are remarked on: a step size made for features near 1 fails on them."""
_LARGEST = float(np.finfo(np.float32).max)

Ranges = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Table:
    """One file: its values as text, column by column."""

    path: Path
    columns: dict[str, list[str]]
    rows: list[int]
    """The row of the file each record stands in, as a spreadsheet counts them."""

    def place(self, record: int) -> str:
        """Where a record stands, for a message."""
        return f"row {self.rows[record]} of {self.path}"


@dataclass(frozen=True)
class Schema:
    """How rows of text become numbers: what clients must agree on before they train."""

    target: str
    task: str
    classes: tuple[str, ...] | None
    """Names of the classes, or None for regression."""
    columns: tuple[tuple[str, tuple[str, ...] | None], ...]
    """Feature columns in order, each with its categories, or None for a number."""
    scale: tuple[tuple[str, float, float], ...] = ()
    """Public ranges (column, low, high), mapped to [0, 1]; values outside are cut off."""

    @property
    def features(self) -> int:
        return sum(1 if categories is None else len(categories) for _, categories in self.columns)

    def encode(self, table: Table) -> Arrays:
        """Features (rows, features) float32 and targets (rows,) of one file."""
        ranges = {name: (low, high) for name, low, high in self.scale}
        parts = []
        for name, categories in self.columns:
            if categories is not None:
                parts.append(_one_hot(table.columns[name], categories))
                continue
            values = _numbers(table, name)
            if name in ranges:
                low, high = ranges[name]
                values = np.clip((values - low) / (high - low), 0.0, 1.0)
            parts.append(values[:, None])
        return np.concatenate(parts, axis=1, dtype=np.float32), self._targets(table)

    def _targets(self, table: Table) -> np.ndarray:
        if self.classes is None:
            return _numbers(table, self.target).astype(np.float32)
        number = {name: index for index, name in enumerate(self.classes)}
        labels = [_label(value) for value in table.columns[self.target]]
        for record, label in enumerate(labels):
            if label not in number:
                raise DataError(
                    f"The class {label!r} in {table.place(record)} is not one of {_listed(self.classes)}."
                )
        return np.array([number[label] for label in labels], dtype=np.int64)


def read_folder(
    folder: str | Path,
    target: str,
    test: str | Path | None = None,
    task: str | None = None,
    scale: Ranges | None = None,
) -> tuple[list[Table], Table | None, Schema]:
    """The clients' tables sorted by file name, the test table if one is named, and the schema of them all."""
    folder, test_path = Path(folder), None if test is None else Path(test)
    if not folder.is_dir():
        raise DataError(f"The data folder {folder} does not exist or is not a folder.")
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".csv" and path.is_file())
    if test_path is not None:
        files = [path for path in files if path.resolve() != test_path.resolve()]
    if not files:
        raise DataError(
            f"The data folder {folder} has no CSV files for clients; it needs one file ending in .csv each."
        )
    tables = [read_table(path) for path in files]
    test_table = None if test_path is None else read_table(test_path)
    everything = tables if test_table is None else [*tables, test_table]
    if scale is None:
        scale = read_ranges(folder / RANGES_FILE) if (folder / RANGES_FILE).exists() else {}
    return tables, test_table, infer(everything, target, task, scale)


def read_table(path: Path) -> Table:
    """One CSV file, with its shape and its missing values checked."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [(number, row) for number, row in enumerate(csv.reader(file, strict=True), 1) if row]
    except FileNotFoundError:
        raise DataError(f"The file {path} does not exist.") from None
    except UnicodeDecodeError as error:
        raise DataError(f"The file {path} is not UTF-8 text (byte {error.start}).") from None
    except (OSError, csv.Error) as error:
        raise DataError(f"The file {path} cannot be read as CSV ({error}).") from None
    if not rows:
        raise DataError(f"The file {path} is empty; its first row must name the columns.")
    header = [name.strip() for name in rows[0][1]]
    _check_header(path, header)
    if len(rows) == 1:
        raise DataError(f"The file {path} has a header but no records; every client needs at least one.")
    for number, row in rows[1:]:
        if len(row) != len(header):
            raise DataError(f"Row {number} of {path} has {len(row)} values, its header {len(header)}.")
    columns = zip(*(row for _, row in rows[1:]), strict=True)
    values = {name: [value.strip() for value in column] for name, column in zip(header, columns, strict=True)}
    table = Table(path, values, [number for number, _ in rows[1:]])
    _check_missing(table)
    return table


def _check_header(path: Path, header: list[str]) -> None:
    for position, name in enumerate(header):
        if not name:
            raise DataError(f"Column {position + 1} of {path} has no name in the header.")
        if name in header[:position]:
            raise DataError(f"The column {name!r} stands twice in the header of {path}.")


def _check_missing(table: Table) -> None:
    """Refuse the first missing value of the file."""
    found = []
    for name, column in table.columns.items():
        if blanks := {value for value in set(column) if value.lower() in MISSING}:
            found.append((next(i for i, value in enumerate(column) if value in blanks), name))
    if found:
        record, name = min(found)
        raise DataError(f"The value of {name!r} is missing in {table.place(record)}.")


def remarks(tables: Sequence[Table], schema: Schema, folder: Path) -> tuple[str, ...]:
    """What the owner of the data should know before training: columns too large to train on as they are."""
    scaled = {name for name, _, _ in schema.scale}
    wild = [
        name
        for name, categories in schema.columns
        if categories is None
        and name not in scaled
        and any(np.abs(_numbers(table, name)).max() > TAME for table in tables)
    ]
    if not wild:
        return ()
    return (
        f"Numbers beyond {TAME:g} in the column{'s' if len(wild) > 1 else ''} {_listed(wild)} have no public range and are "
        f"used as they are, which training rarely survives; write ranges into {folder / RANGES_FILE}, such as "
        f"{_toml_key(wild[0])} = [0, 100], from what is known in public, not from the data.",
    )


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


def read_ranges(path: Path) -> dict[str, Any]:
    """Public ranges from a TOML file with lines such as `age = [0, 100]`."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"The file {path} cannot be read as TOML ({error}).") from None


def infer(tables: Sequence[Table], target: str, task: str | None, scale: Ranges) -> Schema:
    """The schema that fits all tables; categories are sorted, so their order does not depend on the files."""
    names = list(tables[0].columns)
    for table in tables[1:]:
        _check_same_columns(table, tables[0])
    if target not in names:
        raise DataError(
            f"The target column {target!r} is not in {tables[0].path}; its columns are {_listed(names)}."
        )
    features = [name for name in names if name != target]
    if not features:
        raise DataError(
            f"The only column of {tables[0].path} is the target {target!r}; there is nothing to learn from."
        )
    task, classes = _task(tables, target, task)
    columns = tuple((name, _categories(tables, name)) for name in features)
    numeric = [name for name, categories in columns if categories is None]
    return Schema(target, task, classes, columns, _checked_ranges(scale, numeric))


def _check_same_columns(table: Table, first: Table) -> None:
    missing = [name for name in first.columns if name not in table.columns]
    extra = [name for name in table.columns if name not in first.columns]
    if missing or extra:
        what = f"lacks {_listed(missing)}" if missing else f"has {_listed(extra)} besides"
        raise DataError(f"The columns of {table.path} differ from those of {first.path}: it {what}.")


def _checked_ranges(scale: Ranges, numeric: Sequence[str]) -> tuple[tuple[str, float, float], ...]:
    checked = []
    for name, bounds in scale.items():
        if name not in numeric:
            raise UsageError("scale", name, f"a column of numbers other than the target: {_listed(numeric)}")
        try:
            low, high = (float(bound) for bound in bounds)
        except (TypeError, ValueError):
            low = high = math.nan
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise UsageError("scale", {name: bounds}, "a pair of numbers (low, high) with low < high")
        checked.append((name, low, high))
    return tuple(checked)


def _task(tables: Sequence[Table], target: str, task: str | None) -> tuple[str, tuple[str, ...] | None]:
    """The task, and for classification the names of the classes: numbers in order, then text."""
    if task is not None and task not in TASKS:
        raise UsageError("task", task, "classification or regression")
    values = {_label(value) for table in tables for value in table.columns[target]}
    numbers = [number for value in values if (number := _number(value)) is not None]
    whole = len(numbers) == len(values) and all(number.is_integer() for number in numbers)
    if task is None:
        few = len(numbers) < len(values) or (whole and len(values) <= FEW)
        task = "classification" if few else "regression"
    if task == "regression":
        return task, None
    if len(values) < 2:
        raise DataError(
            f"The target column {target!r} has only the one value {next(iter(values))!r} in all files."
        )
    return task, tuple(
        sorted(values, key=lambda value: (_number(value) is None, _number(value) or 0.0, value))
    )


def _categories(tables: Sequence[Table], name: str) -> tuple[str, ...] | None:
    """None for a column of numbers; the sorted categories of any other.

    A column of mostly numbers with some text is refused: more likely a typing error than a category.
    """
    values = {value for table in tables for value in table.columns[name]}
    text = {value for value in values if _number(value) is None}
    if not text:
        return None
    odd = [(table, i) for table in tables for i, value in enumerate(table.columns[name]) if value in text]
    if 2 * len(odd) < sum(len(table.rows) for table in tables):
        table, record = odd[0]
        raise DataError(
            f"The value {table.columns[name][record]!r} of {name!r} in {table.place(record)} is not a number, "
            "as most values of that column are."
        )
    return tuple(sorted(values))


def _number(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def _label(value: str) -> str:
    """One name per class: `1`, `1.0` and `01` are the same number."""
    number = _number(value)
    return str(int(number)) if number is not None and number.is_integer() else value


def _numbers(table: Table, name: str) -> np.ndarray:
    numbers = [_number(value) for value in table.columns[name]]
    for record, number in enumerate(numbers):
        if number is None or not abs(number) <= _LARGEST:
            value = table.columns[name][record]
            raise DataError(
                f"The value {value!r} of {name!r} in {table.place(record)} is not a finite number."
            )
    return np.array(numbers, dtype=np.float64)


def _one_hot(values: Sequence[str], categories: Sequence[str]) -> np.ndarray:
    """One column per category; a value outside the list has none set."""
    return (np.array(values)[:, None] == np.array(categories)[None, :]).astype(np.float64)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names[:20]) + (" …" if len(names) > 20 else "")
