"""Reading a schema file: every mistake in it is told at once."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbafl.data.schema import Column, Schema
from nbafl.data.tables import label
from nbafl.errors import DataError
from nbafl.tasks import TASKS

KINDS = ("number", "category")


def read_schema(path: str | Path) -> Schema:
    """A schema file; every mistake in it is told at once."""
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"The schema {path} cannot be read ({error.strerror}).") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"The schema {path} is not valid TOML ({error}).") from None
    return parse_schema(content, str(path))


_FIELDS = {"public", "target", "task", "classes", "target_range", "person", "ignore", "columns"}


def parse_schema(content: Mapping[str, Any], name: str) -> Schema:
    """A schema from the content of its file."""
    problems = [f"{key!r} is not a field of a schema" for key in content if key not in _FIELDS]
    for key, kind, what in (
        ("public", bool, "true or false"),
        ("target", str, "the name of a column"),
        ("columns", dict, "a table for each column, [columns.NAME]"),
    ):
        if not isinstance(content.get(key), kind):
            problems.append(f"{key} must be {what}")
    task = content.get("task")
    if task not in TASKS:
        problems.append(f"task must be one of {', '.join(TASKS)}, got {task!r}")
    classes = content.get("classes")
    if task in ("binary", "classification") and not _texts(classes, at_least=2):
        problems.append("classes must list at least two different names")
    elif task == "binary" and classes is not None and len(classes) != 2:
        problems.append(f"task binary has two classes, got {len(classes)}")
    if task == "regression" and classes is not None:
        problems.append("a regression has no classes")
    target_range = _range(content.get("target_range"), "target_range", problems)
    if target_range is not None and task != "regression":
        problems.append("target_range belongs to a regression")
    ignore = content.get("ignore", [])
    if not _texts(ignore, at_least=0):
        problems.append("ignore must list different names of columns")
    person = content.get("person")
    if person is not None and not isinstance(person, str):
        problems.append("person must be the name of a column")
    described_columns = content.get("columns")
    columns = [
        _column(column, said, problems)
        for column, said in (described_columns.items() if isinstance(described_columns, dict) else ())
    ]
    if not columns:
        problems.append("there must be at least one column to learn from")
    taken = {content.get("target"), person, *(ignore if _texts(ignore, 0) else [])}
    problems += [
        f"{column.name!r} is a column and also target, person or ignored"
        for column in columns
        if column.name in taken
    ]
    if problems:
        raise DataError(f"The schema {name} is not valid: " + "; ".join(problems) + ".")
    return Schema(
        target=content["target"],
        task=str(task),
        columns=tuple(columns),
        classes=None if classes is None else tuple(label(each) for each in classes),
        target_range=target_range,
        ignore=tuple(ignore),
        person=person,
        public=content["public"],
    )


def _column(name: str, said: Any, problems: list[str]) -> Column:
    said = said if isinstance(said, dict) else {}
    where = f"column {name!r}"
    problems += [
        f"{where}: {key!r} is not a field"
        for key in said
        if key not in ("kind", "range", "categories", "fill")
    ]
    kind, fill = said.get("kind"), said.get("fill")
    if kind not in KINDS:
        problems.append(f"{where}: kind must be number or category, got {kind!r}")
    if kind == "category":
        if "range" in said:
            problems.append(f"{where}: a category has no range")
        if not _texts(said.get("categories"), at_least=1):
            problems.append(f"{where}: categories must list different names")
            return Column(name, "category")
        categories = tuple(label(each) for each in said["categories"])
        if fill is not None and fill not in categories:
            problems.append(f"{where}: fill must be one of its categories, got {fill!r}")
        return Column(name, "category", None, categories, fill)
    if "categories" in said:
        problems.append(f"{where}: a number has no categories")
    bounds = _range(said.get("range"), f"{where}: range", problems)
    if fill is not None and (
        isinstance(fill, bool) or not isinstance(fill, int | float) or not math.isfinite(fill)
    ):
        problems.append(f"{where}: fill must be a number, got {fill!r}")
        fill = None
    return Column(name, "number", bounds, (), None if fill is None else float(fill))


def _texts(values: Any, at_least: int) -> bool:
    texts = isinstance(values, list) and all(isinstance(value, str) and value for value in values)
    return texts and len(set(map(label, values))) == len(values) >= at_least


def _range(bounds: Any, what: str, problems: list[str]) -> tuple[float, float] | None:
    if bounds is None:
        return None
    numbers = isinstance(bounds, list | tuple) and len(bounds) == 2
    numbers = numbers and all(isinstance(each, int | float) and not isinstance(each, bool) for each in bounds)
    if not numbers or not (math.isfinite(bounds[0]) and math.isfinite(bounds[1]) and bounds[0] < bounds[1]):
        problems.append(f"{what} must be two numbers [low, high] with low < high, got {bounds!r}")
        return None
    return float(bounds[0]), float(bounds[1])
