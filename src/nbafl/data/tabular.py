"""A folder of tables, one file per client, as numbers a model can train on.

With a file schema.toml in the folder (or `schema=`), every row becomes numbers by that file alone. Without one a schema is
read from the clients' tables (inference.py), which no privacy guarantee covers, and the federation's remarks and the
run's statement say so. All problems of a folder are told at once.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np

from nbafl.data.identifying import repeats_persons
from nbafl.data.inference import Wanted, infer
from nbafl.data.schema import NO_TARGET, SCHEMA_FILE, Schema, with_ranges
from nbafl.data.schema_file import read_schema
from nbafl.data.tables import Table, label, listed, number, read_table, table_files, values_of
from nbafl.errors import DataError, UsageError

RANGES_FILE = "ranges.toml"
TEST_NAMES = ("test", "holdout", "validation")
"""A file of such a name is asked about: it is rarely a client."""
AS_CLIENT = "none"
"""`test = "none"`: a file called test is a client like the others."""
TAME = 10.0
"""Features beyond this without a public range are remarked on: a step size made for features near 1 fails on them."""
RARE = 0.005
"""Classes below this share of the records are pointed out: more often a typing error than a class."""
_MANY_PROBLEMS = 12

Ranges = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Folder:
    """The tables of a folder and the schema they are read by."""

    clients: list[Table]
    test: Table | None
    schema: Schema
    remarks: tuple[str, ...]


class Said(TypedDict, total=False):
    """What may be said of tables beside their target."""

    task: str | None
    scale: Ranges | None
    """Public ranges of some columns of numbers."""
    ignore: Sequence[str]
    person: str | None
    schema: Schema | str | Path | None


def read_folder(
    folder: str | Path, target: str | None, test: str | Path | None = None, **said: Unpack[Said]
) -> Folder:
    """The clients' tables sorted by file name, the test table if one is named, and the schema of them all."""
    folder = Path(folder)
    paths, test_path = client_files(folder, test)
    tables = read_all(paths)
    return assemble(tables, None if test_path is None else read_table(test_path), target, folder, **said)


def assemble(
    tables: list[Table],
    test: Table | None,
    target: str | None,
    folder: Path | None = None,
    **said: Unpack[Said],
) -> Folder:
    """Tables and the schema they are read by: the one given, the folder's own, or one read from the tables."""
    remarks: list[str] = [note for table in (*tables, *((test,) if test else ())) for note in table.notes]
    task, scale, person = said.get("task"), said.get("scale"), said.get("person")
    ignore = tuple(said.get("ignore", ()))
    found = _given_schema(said.get("schema"), folder)
    if found is not None:
        agreed = _agreeing(found, target, task, ignore, person)
        if scale:
            raise UsageError("scale", dict(scale), "unset where a schema gives the ranges")
    else:
        agreed = _read_from(tables, target, task, scale, ignore, person, folder, remarks)
    _refuse_problems([problem for table in tables for problem in agreed.problems(table)], found is None)
    test, told = _usable_test(test, agreed)
    remarks += told
    for table in tables:
        remarks += agreed.remarks(table)
    remarks += _about_columns(tables, agreed, folder) + _about_classes(tables, agreed)
    if read := agreed.used():
        where = "The schema is not declared public" if found is not None else "There is no schema"
        remarks.append(f"{where}: no guarantee covers {'; '.join(read)}.")
    return Folder(tables, test, agreed, tuple(remarks))


def client_files(folder: Path, test: str | Path | None) -> tuple[list[Path], Path | None]:
    """The files of the clients and that of the test records; a file called test that nobody named is not guessed at."""
    if not folder.is_dir():
        raise DataError(f"The data folder {folder} does not exist or is not a folder.")
    files = table_files(folder)
    test_path = None if test is None or str(test) == AS_CLIENT else Path(test)
    if test_path is not None:
        files = [path for path in files if path.resolve() != test_path.resolve()]
    if test is None and (lying := unnamed_test(folder)) is not None:
        raise DataError(
            f"{folder} holds {lying.name}, which may be the test set or a client: name it with --test {lying}, or "
            f"say --test {AS_CLIENT} to train on it as a client's file."
        )
    if not files:
        raise DataError(
            f"The data folder {folder} has no CSV or Parquet files for clients; it needs one file each (images and IDX "
            "files are read from Python, by Federation.from_images and from_idx)."
        )
    twice = sorted({path.stem for path in files if sum(each.stem == path.stem for each in files) > 1})
    if twice:
        raise DataError(
            f"The data folder {folder} holds more than one file for {listed(twice)}; each client needs one."
        )
    return files, test_path


def unnamed_test(folder: str | Path) -> Path | None:
    """A file in the folder that is called like a test set."""
    folder = Path(folder)
    if not folder.is_dir():
        return None
    return next((path for path in table_files(folder) if path.stem.lower() in TEST_NAMES), None)


def read_all(paths: Sequence[Path]) -> list[Table]:
    """Every table; problems of all files in one refusal."""
    tables, problems = [], []
    for path in paths:
        try:
            tables.append(read_table(path))
        except DataError as error:
            problems.append(str(error))
    if problems:
        raise DataError(_joined(problems))
    return tables


def _given_schema(schema: Schema | str | Path | None, folder: Path | None) -> Schema | None:
    if isinstance(schema, Schema):
        return schema
    if schema is not None:
        return read_schema(schema)
    path = None if folder is None else folder / SCHEMA_FILE
    return read_schema(path) if path is not None and path.exists() else None


def _agreeing(
    schema: Schema, target: str | None, task: str | None, ignore: Sequence[str], person: str | None
) -> Schema:
    """A schema decides; an option that says otherwise is refused."""
    for field, said, agreed in (("target", target, schema.target), ("person", person, schema.person)):
        if said is not None and said != agreed:
            raise UsageError(field, said, f"what the schema says ({agreed!r}), or unset")
    if task is not None and task != schema.task:
        raise UsageError("task", task, f"what the schema says ({schema.task!r}), or unset")
    stray = [name for name in ignore if name not in schema.ignore]
    if stray:
        raise UsageError(
            "ignore", stray[0], "a column the schema ignores; change the schema, which all parties share"
        )
    return schema


def _read_from(
    tables: list[Table],
    target: str | None,
    task: str | None,
    scale: Ranges | None,
    ignore: Sequence[str],
    person: str | None,
    folder: Path | None,
    remarks: list[str],
) -> Schema:
    if target is None:
        raise UsageError("target", None, "the name of the column to predict, where there is no schema.toml")
    if scale is None and folder is not None and (folder / RANGES_FILE).exists():
        scale = read_ranges(folder / RANGES_FILE)
        remarks.append(
            f"{folder / RANGES_FILE} is read as before; `nbafl data schema` writes a {SCHEMA_FILE} that replaces it."
        )
    wanted = Wanted(target, task, tuple(ignore), person)
    schema = infer(tables, wanted)
    schema = with_ranges(schema, _checked_ranges(scale or {}, schema))
    if (
        task is None
        and schema.classes is not None
        and all(number(name) is not None for name in schema.classes)
    ):
        remarks.append(
            f"The whole numbers of the target {target!r} are taken for {len(schema.classes)} classes; say --task regression "
            "if they are amounts."
        )
    return schema


def _checked_ranges(scale: Ranges, schema: Schema) -> dict[str, tuple[float, float]]:
    numeric = [column.name for column in schema.columns if column.kind == "number"]
    checked = {}
    for name, bounds in scale.items():
        if name not in numeric:
            raise UsageError("scale", name, f"a column of numbers other than the target: {listed(numeric)}")
        try:
            low, high = (float(bound) for bound in bounds)
        except (TypeError, ValueError):
            low = high = np.nan
        if not (np.isfinite(low) and np.isfinite(high) and low < high):
            raise UsageError("scale", {name: bounds}, "a pair of numbers (low, high) with low < high")
        checked[name] = (low, high)
    return checked


def read_ranges(path: Path) -> dict[str, Any]:
    """Public ranges from a TOML file of the first release, with lines such as `age = [0, 100]`."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"The file {path} cannot be read as TOML ({error}).") from None


def _usable_test(test: Table | None, schema: Schema) -> tuple[Table | None, list[str]]:
    """The test records a model can be measured on: unknown classes are said, counted and left out."""
    if test is None:
        return None, []
    said = []
    if schema.classes is not None and schema.target in test.columns:
        known = [label(value) in schema.classes for value in test.columns[schema.target]]
        unknown = _counts(
            value for value, ok in zip(test.columns[schema.target], known, strict=True) if not ok and value
        )
        if unknown and any(known):
            told = ", ".join(f"{value!r} ({count})" for value, count in unknown.items())
            said.append(
                f"Classes in {test.name} that no client has: {told}; those records are left out of the test."
            )
            test = _rows_where(
                test, [ok or not value for value, ok in zip(test.columns[schema.target], known, strict=True)]
            )
    _refuse_problems(schema.problems(test), False)
    return test, said + schema.remarks(test)


def _counts(values: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return counts


def _rows_where(table: Table, keep: Sequence[bool]) -> Table:
    columns = {
        name: [value for value, kept in zip(column, keep, strict=True) if kept]
        for name, column in table.columns.items()
    }
    return replace(
        table, columns=columns, rows=[row for row, kept in zip(table.rows, keep, strict=True) if kept]
    )


def check_by(schema: Schema, tables: Sequence[Table]) -> None:
    """Refuse tables that a schema cannot encode, all problems at once."""
    _refuse_problems([problem for table in tables for problem in schema.problems(table)], False)


def _refuse_problems(problems: list[str], without_schema: bool) -> None:
    if not problems:
        return
    hint = ""
    if without_schema and any("is missing" in problem and NO_TARGET not in problem for problem in problems):
        hint = (
            " Missing values need a rule: `nbafl data schema` writes one for each column; "
            "never fill in a mean of private records."
        )
    raise DataError(_joined(problems) + hint)


def _joined(problems: list[str]) -> str:
    shown = " ".join(problems[:_MANY_PROBLEMS])
    more = f" … and {len(problems) - _MANY_PROBLEMS} more problems." if len(problems) > _MANY_PROBLEMS else ""
    return (f"{len(problems)} problems: " if len(problems) > 1 else "") + shown + more


def _about_columns(tables: Sequence[Table], schema: Schema, folder: Path | None) -> list[str]:
    """Columns too large to train on as they are, constant ones, and rows that seem to share a person."""
    wild = [
        column.name
        for column in schema.columns
        if column.kind == "number" and column.range is None and _largest(tables, column.name) > TAME
    ]
    said = []
    if wild:
        where = "its folder" if folder is None else str(folder)
        said.append(
            f"Numbers beyond {TAME:g} in the column{'s' if len(wild) > 1 else ''} {listed(wild)} have no public range and "
            f"are used as they are, which usually breaks training: `nbafl data schema {where} --target {schema.target}` "
            "writes a schema.toml to put ranges in that are known in public."
        )
    if schema.person is None:
        for name in tables[0].columns:
            if (
                name != schema.target
                and all(name in table.columns for table in tables)
                and repeats_persons(tables, name)
            ):
                distinct = len(set(values_of(tables, name)))
                rows = sum(map(len, tables))
                said.append(
                    f"{name!r} has {distinct} different values in {rows} rows: if it says whose row it is, the guarantee "
                    f"per row says little about a person; --person {name} protects all rows of a person together."
                )
    return said


def _largest(tables: Sequence[Table], name: str) -> float:
    return max((abs(number(value) or 0.0) for value in values_of(tables, name)), default=0.0)


def _about_classes(tables: Sequence[Table], schema: Schema) -> list[str]:
    """Classes so rare that they look like typing errors, and a target so lopsided that accuracy says nothing."""
    if schema.classes is None:
        return []
    counts = _counts(label(value) for table in tables for value in table.columns[schema.target])
    total = sum(counts.values())
    said = []
    rare = [name for name in schema.classes if counts.get(name, 0) <= max(1, RARE * total) and total >= 20]
    if rare:
        told = ", ".join(f"{name!r} ({counts.get(name, 0)} of {total} records)" for name in rare)
        said.append(
            f"Rare in the target {schema.target!r}: {told}; check for a typing error in a class name."
        )
    largest = max(counts.values()) / total
    if largest >= 0.9:
        most = max(counts, key=lambda name: counts[name])
        said.append(
            f"{largest:.0%} of the records are {most!r}: a model that always gives this answer has that accuracy; look at "
            "balanced accuracy and recall by class instead."
        )
    return said


def draft_schema(tables: list[Table], wanted: Wanted, ranges: Ranges | None = None) -> Schema:
    """The schema `nbafl data schema` writes for a person to read."""
    schema = infer(tables, wanted, draft=True)
    return with_ranges(schema, _checked_ranges(ranges or {}, schema))


def persons_of(tables: Sequence[Table], schema: Schema) -> np.ndarray | None:
    """Whose row each is, as numbers 0, 1, … over one client's tables; None where every row stands for itself."""
    if schema.person is None:
        return None
    seen: dict[str, int] = {}
    column = [label(value) for table in tables for value in table.columns[schema.person]]
    return np.array([seen.setdefault(value, len(seen)) for value in column], dtype=np.int64)
