"""The data a party brings: a client's records for `join`, the server's test set for `serve`.

mnist:3/10               the records client 3 of 10 holds in the plan's split of embedded MNIST (for trying out)
records.csv              one CSV or Parquet file; a schema agreed on beforehand says how its columns become numbers
folder/                  the same, all tables of a folder together
package.module:function  a function of yours that returns (x, y)
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nbafl.data import mnist, schema_file, tabular
from nbafl.data.checks import Arrays
from nbafl.data.features import compute, compute_apart
from nbafl.data.federation import Federation
from nbafl.data.persons import by_person
from nbafl.data.schema import SCHEMA_FILE, Schema
from nbafl.data.tables import read_table, table_files
from nbafl.durable import write_text
from nbafl.errors import DataError, UsageError
from nbafl.plan import Plan

_DIGITS = tuple(map(str, range(mnist.CLASSES)))
FORMS = "mnist:INDEX/N, a CSV or Parquet file, a folder of such files, or package.module:function"


@dataclass(frozen=True)
class Local:
    """Records as a model sees them."""

    x: np.ndarray
    y: np.ndarray
    task: str
    outputs: int
    given_shape: tuple[int, ...] = ()
    """Shape of a record before the plan's features."""
    remarks: tuple[str, ...] = ()
    """What reading these records did to them, for their owner alone."""

    classes: tuple[str, ...] = ()
    """Names of the classes in the order of their numbers; none where the target is a number."""
    persons: np.ndarray | None = None
    """How many rows each person has, where a person is protected; their rows lie one after another."""

    @property
    def units(self) -> int:
        """How many records, or persons, these are."""
        return len(self.y) if self.persons is None else len(self.persons)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])


def client_data(
    spec: str, plan: Plan, schema: Schema | None = None, outputs: int | None = None, small: bool = False
) -> Local:
    """What `join --data SPEC` trains on, with the features the plan names; `small`: a process that does without torch."""
    if spec.startswith("mnist:"):
        found = _mnist(spec, plan)
    elif Path(spec).exists():
        found = _csv(Path(spec), schema)
    elif ":" in spec:
        found = _module(spec, outputs, plan.task)
    else:
        raise UsageError("data", spec, f"{FORMS}; nothing of that name exists")
    return _seen(found, plan, small)


def server_data(plan: Plan, schema: Schema | None = None, without_test: bool = False) -> Local:
    """What `serve` measures the model on; where clients do that, no records of the shape that the schema says."""
    if without_test and plan.dataset != "mnist" and plan.test is None:
        known = schema or make_schema(plan)
        none = np.zeros((0, known.features), dtype=np.float32)
        nothing = np.zeros(0, dtype=np.int64)
        return _seen(Local(none, nothing, known.task, known.outputs, classes=known.classes or ()), plan)
    if plan.dataset == "mnist":
        digits = mnist.test()
        found = Local(digits.pixels(), digits.classes(), "classification", mnist.CLASSES, classes=_DIGITS)
    else:
        test = check_test(plan)
        found = (
            _csv(Path(test), schema or make_schema(plan))
            if Path(test).exists()
            else _module(test, None, plan.task)
        )
    return _seen(found, plan)


def _seen(found: Local, plan: Plan, small: bool = False) -> Local:
    """The same records with the plan's features."""
    if plan.person is not None and found.persons is None:
        raise UsageError("person", plan.person, "unset for data without a person column")
    if plan.person is None:
        found = replace(found, persons=None)
    features = compute_apart if small else compute
    return replace(found, x=features(plan.features, found.x, plan.feature_norm), given_shape=found.shape)


def check_test(plan: Plan, without_test: bool = False) -> str:
    """What the server measures on must be there before anybody is asked to join, unless the clients measure."""
    test = plan.test or ""
    if without_test and plan.test is None:
        return test
    if plan.dataset != "mnist" and not Path(test).is_file() and ":" not in test:
        allowed = "a CSV file that is there, package.module:function, or left out with --evaluate-every"
        raise UsageError("test", plan.test, allowed)
    return test


def make_schema(plan: Plan) -> Schema:
    """How columns become numbers: a schema.toml beside the data or the test file, else read from the server's test file."""
    found = written_schema({"dataset": plan.dataset, "test": plan.test})
    if found is not None:
        for field, said, agreed in (
            ("target", plan.target, found.target),
            ("person", plan.person, found.person),
        ):
            if said not in (None, agreed):
                raise UsageError(field, said, f"what the {SCHEMA_FILE} says ({agreed!r})")
        return found
    if plan.test is None or plan.target is None:
        allowed = f"given with test, a table from which the schema is read, where there is no {SCHEMA_FILE}"
        raise UsageError("target", plan.target, allowed)
    path = Path(plan.test)
    beside = path.parent / tabular.RANGES_FILE
    ranges = tabular.read_ranges(beside) if beside.exists() else {}
    return tabular.assemble([read_table(path)], None, plan.target, scale=ranges).schema


def has_schema(plan: Plan) -> bool:
    """Whether a plan's data are tables, so that its parties need a schema."""
    return bool(_beside(plan.dataset, plan.test))


def written_schema(fields: Mapping[str, Any]) -> Schema | None:
    """The schema.toml beside the data or the test file that such fields of a plan name."""
    for folder in _beside(fields.get("dataset", "mnist"), fields.get("test")):
        if (folder / SCHEMA_FILE).is_file():
            return schema_file.read_schema(folder / SCHEMA_FILE)
    return None


def _beside(dataset: str, test: str | None) -> list[Path]:
    found = [Path(dataset)] if dataset != "mnist" and Path(dataset).is_dir() else []
    return [*found, Path(test).parent] if test is not None and Path(test).is_file() else found


def write_schema(schema: Schema, path: Path) -> None:
    write_text(path, schema.to_toml())


def read_schema(path: str | Path) -> Schema:
    """A schema as `serve --prepare` hands it out; the first release's schema.json is refused with the way out."""
    if Path(path).suffix == ".json":
        raise DataError(
            f"The schema {path} is of the first release: run `nbafl serve --prepare` again with this version and hand out "
            f"its {SCHEMA_FILE}."
        )
    return schema_file.read_schema(path)


def _mnist(spec: str, plan: Plan) -> Local:
    index, _, count = spec.removeprefix("mnist:").partition("/")
    if not (index.isdecimal() and count == str(plan.clients) and int(index) < plan.clients):
        raise UsageError(
            "data", spec, f"mnist:INDEX/{plan.clients} with INDEX below {plan.clients}, as in the plan"
        )
    federation = Federation.mnist(
        clients=plan.clients, samples=plan.samples, partition=plan.partition, seed=plan.seed, sizes=plan.sizes
    )
    return Local(*federation.client(int(index)), "classification", mnist.CLASSES, classes=_DIGITS)


def _csv(path: Path, schema: Schema | None) -> Local:
    if schema is None:
        raise UsageError("schema", None, "the schema file of the federation, which goes with tables")
    files = table_files(path) if path.is_dir() else [path]
    if not files:
        raise DataError(f"The folder {path} holds no CSV or Parquet files.")
    tables = [read_table(file) for file in files]
    tabular.check_by(schema, tables)
    parts = [(schema.encode(table), schema.targets(table)) for table in tables]
    x, y = (np.concatenate(each) for each in zip(*parts, strict=True))
    persons = tabular.persons_of(tables, schema)
    if persons is not None:
        order, counts = by_person(persons)
        x, y, persons = x[order], y[order], counts
    remarks = tuple(remark for table in tables for remark in (*table.notes, *schema.remarks(table)))
    return Local(
        x, y, schema.task, schema.outputs, remarks=remarks, classes=schema.classes or (), persons=persons
    )


def _module(spec: str, outputs: int | None, task: str | None) -> Local:
    module, _, function = spec.partition(":")
    if os.getcwd() not in sys.path:  # a function beside the user's data, as `python -m` would find it
        sys.path.insert(0, os.getcwd())
    try:
        x, y = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UsageError("data", spec, f"{FORMS}; loading it failed: {error}") from None
    federation = Federation.from_arrays([(x, y)], outputs=outputs, task=task)
    pair: Arrays = federation.client(0)
    return Local(*pair, federation.task, federation.outputs, classes=federation.class_names)
