"""What a folder of tables holds, for its owner to read before anything is trained: `nbafl data check`.

Nothing here is for giving away: counts and values come straight from private records.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nbafl.data import tabular
from nbafl.data.identifying import Identifying, identifying, refusal
from nbafl.data.inference import Wanted, common_columns
from nbafl.data.schema import SCHEMA_FILE, Schema
from nbafl.data.schema_file import read_schema
from nbafl.data.tables import Table, label, number, read_table, values_of
from nbafl.durable import write_text
from nbafl.errors import DataError, UsageError


@dataclass(frozen=True)
class Described:
    """Facts, and two kinds of sentences: what training would refuse, and what the owner should know."""

    clients: dict[str, int]
    columns: list[dict[str, Any]]
    classes: dict[str, dict[str, int]] | None
    test: str | None
    schema: str
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def describe(
    folder: str | Path,
    target: str | None,
    test: str | None = None,
    task: str | None = None,
    ignore: Sequence[str] = (),
    person: str | None = None,
) -> Described:
    """Everything that can be said about a folder; problems are collected, not raised."""
    folder = Path(folder)
    lying = tabular.unnamed_test(folder) if test is None else None
    paths, test_path = tabular.client_files(folder, test if lying is None else str(lying))
    problems, remarks = [], []
    tables = []
    for path in paths:
        try:
            tables.append(read_table(path))
        except DataError as error:
            problems.append(str(error))
    if lying is not None:
        remarks.append(
            f"{lying.name} is taken for the test set here; name it with --test {lying} when you train."
        )
    if not tables:
        raise DataError(" ".join(problems))
    if target is None:
        path = folder / SCHEMA_FILE
        target = read_schema(path).target if path.exists() else None
    mended, wanted = tables, Wanted(target or "", task, tuple(ignore), person)
    if target is not None and not (folder / SCHEMA_FILE).exists():
        mended, wanted, found = _with_columns_mended(tables, wanted)
        problems += found
    if not problems or wanted.target in mended[0].columns:
        try:
            test_table = None if test_path is None else read_table(test_path)
            read = tabular.assemble(
                mended, test_table, target, folder, task=task, ignore=wanted.ignore, person=wanted.person
            )
            remarks += read.remarks
        except DataError as error:
            remarks += [note for table in tables for note in table.notes]
            problems.append(str(error))
    return Described(
        clients={Path(table.name).stem: len(table) for table in tables},
        columns=[
            _column(tables, name, judged=name not in (target, person, *ignore)) for name in tables[0].columns
        ],
        classes=_classes(tables, target),
        test=None if test_path is None else str(test_path),
        schema=_about_schema(folder),
        problems=problems,
        remarks=remarks,
    )


def _with_columns_mended(tables: list[Table], wanted: Wanted) -> tuple[list[Table], Wanted, list[str]]:
    """The tables as if all had the same columns and none that training refuses; and what was wrong with the columns.

    Training stops at these; their owner is told of what would come after them as well.
    """
    problems = []
    try:
        common_columns(tables, wanted)
    except DataError as error:
        problems.append(str(error))
    shared = [name for name in tables[0].columns if all(name in table.columns for table in tables)]
    tables = [
        dataclasses.replace(table, columns={name: table.columns[name] for name in shared}) for table in tables
    ]
    ignore = tuple(name for name in wanted.ignore if name in shared)
    person = wanted.person if wanted.person in shared else None
    judged = [name for name in shared if name not in (wanted.target, person, *ignore)]
    if refused := [each for each in identifying(tables, judged) if each.refused]:
        problems.append(refusal(refused))
    ignore = (*ignore, *(each.name for each in refused))
    return tables, dataclasses.replace(wanted, ignore=ignore, person=person), problems


@dataclass(frozen=True)
class Drafted:
    """A schema read from the records, where it was written, and the columns whose values it keeps out."""

    path: Path
    schema: Schema
    left_out: list[Identifying]
    problems: tuple[str, ...]
    """What training still refuses: no rule of a schema fills in a target."""

    @property
    def sentence(self) -> str:
        """Where it lies and what it holds."""
        columns, features = len(self.schema.columns), self.schema.features
        held = f"{columns:,} column{'s'[: columns != 1]}, {features:,} feature{'s'[: features != 1]}"
        return f"Wrote {self.path}: {held}, task {self.schema.task}."


def draft(folder: str | Path, wanted: Wanted, test: str | None = None) -> Drafted:
    """The schema `nbafl data schema` writes, from the clients' tables (a test file is left out of it)."""
    folder = Path(folder)
    lying = tabular.unnamed_test(folder) if test is None else None
    paths, _ = tabular.client_files(folder, test if lying is None else str(lying))
    tables = tabular.read_all(paths)
    ranges = folder / tabular.RANGES_FILE
    schema = tabular.draft_schema(tables, wanted, tabular.read_ranges(ranges) if ranges.exists() else None)
    left_out = identifying(tables, [name for name in schema.ignore if name not in wanted.ignore])
    problems = tuple(problem for table in tables for problem in schema.problems(table))
    return Drafted(folder / SCHEMA_FILE, schema, left_out, problems)


def write_draft(
    folder: str | Path, wanted: Wanted, test: str | None = None, replace: bool = False
) -> Drafted:
    """Write DIR/schema.toml for its owner to read; one that is there stays unless it is to be replaced."""
    path = Path(folder) / SCHEMA_FILE
    if path.exists() and not replace:
        raise UsageError("schema", str(path), "a file that is not there yet (--force replaces it)")
    drafted = draft(folder, wanted, test)
    write_text(path, drafted.schema.to_toml())
    return drafted


def _about_schema(folder: Path) -> str:
    path = folder / SCHEMA_FILE
    if not path.exists():
        return "none: what shapes the model is read from the records"
    return f"{path}, " + ("declared public" if read_schema(path).public else "not yet declared public")


def _column(tables: Sequence[Table], name: str, judged: bool) -> dict[str, Any]:
    """One row of the overview: what a column holds and where values are missing; `judged`: and whom it may name."""
    tables = [table for table in tables if name in table.columns]
    values = values_of(tables, name)
    numbers = np.array([parsed for value in values if (parsed := number(value)) is not None])
    distinct = len(set(values))
    numeric = bool(values) and len(numbers) == len(values)
    missing = {Path(table.name).stem: int(count) for table in tables if (count := table.missing(name).sum())}
    told = [found.looks for found in identifying(tables, [name] if judged else [])]
    return {
        "name": name,
        "kind": "number" if numeric else "category" if values else "empty",
        "different": distinct,
        "from": float(numbers.min()) if numeric else None,
        "to": float(numbers.max()) if numeric else None,
        "missing": missing,
        "remark": "constant" if distinct <= 1 else " ".join(told),
    }


def _classes(tables: Sequence[Table], target: str | None) -> dict[str, dict[str, int]] | None:
    """How often each class occurs at each client, where the target looks like classes."""
    held = [table for table in tables if target in table.columns]
    if target is None or not held:
        return None
    values = {label(value) for value in values_of(held, target)}
    if len(values) > 20:
        return None
    return {
        Path(table.name).stem: {
            value: sum(label(each) == value for each in table.columns[target]) for value in sorted(values)
        }
        for table in held
    }
