"""The data a party brings: a client's records for `join`, the server's test set for `serve`.

mnist:3/10               the records client 3 of 10 holds in the plan's split of embedded MNIST (for trying out)
records.csv              one CSV file; a schema agreed on beforehand says how its columns become numbers
folder/                  the same, all CSV files of a folder together
package.module:function  a function of yours that returns (x, y)
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from nbafl.data import mnist, tabular
from nbafl.data.checks import Arrays
from nbafl.data.features import compute
from nbafl.data.federation import Federation
from nbafl.durable import write_text
from nbafl.errors import DataError, UsageError
from nbafl.plan import Plan

FORMS = "mnist:INDEX/N, a CSV file, a folder of CSV files, or package.module:function"


@dataclass(frozen=True)
class Local:
    """Records as a model sees them."""

    x: np.ndarray
    y: np.ndarray
    task: str
    outputs: int

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])


def client_data(
    spec: str, plan: Plan, schema: tabular.Schema | None = None, outputs: int | None = None
) -> Local:
    """What `join --data SPEC` trains on, with the features the plan names."""
    if spec.startswith("mnist:"):
        found = _mnist(spec, plan)
    elif Path(spec).exists():
        found = _csv(Path(spec), schema)
    elif ":" in spec:
        found = _module(spec, outputs)
    else:
        raise UsageError("data", spec, f"{FORMS}; nothing of that name exists")
    return Local(compute(plan.features, found.x, plan.feature_norm), found.y, found.task, found.outputs)


def server_data(plan: Plan, schema: tabular.Schema | None = None) -> Local:
    """What `serve` measures the model on."""
    if plan.dataset == "mnist":
        digits = mnist.test()
        found = Local(digits.pixels(), digits.classes(), "classification", mnist.CLASSES)
    else:
        test = check_test(plan)
        found = _csv(Path(test), schema or make_schema(plan)) if Path(test).exists() else _module(test, None)
    return Local(compute(plan.features, found.x, plan.feature_norm), found.y, found.task, found.outputs)


def check_test(plan: Plan) -> str:
    """What the server measures on must be there before anybody is asked to join."""
    test = plan.test or ""
    if plan.dataset != "mnist" and not Path(test).is_file() and ":" not in test:
        allowed = "a CSV file that is there, or package.module:function, so that the server can evaluate"
        raise UsageError("test", plan.test, allowed)
    return test


def make_schema(plan: Plan) -> tabular.Schema:
    """How columns become numbers, from the server's own test file and the public ranges beside it."""
    if plan.test is None or plan.target is None:
        raise UsageError("target", plan.target, "given with test, a CSV file, from which the schema is read")
    path = Path(plan.test)
    beside = path.parent / tabular.RANGES_FILE
    ranges = tabular.read_ranges(beside) if beside.exists() else {}
    return tabular.infer([tabular.read_table(path)], plan.target, None, ranges)


def write_schema(schema: tabular.Schema, path: Path) -> None:
    write_text(path, json.dumps(asdict(schema), indent=2) + "\n")


def read_schema(path: str | Path) -> tabular.Schema:
    """A schema file as `serve --prepare` writes it; what does not look like one is refused."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        columns = tuple(
            (str(name), None if categories is None else tuple(map(str, categories)))
            for name, categories in content["columns"]
        )
        classes = content["classes"]
        scale = tuple((str(name), float(low), float(high)) for name, low, high in content["scale"])
        return tabular.Schema(
            str(content["target"]),
            str(content["task"]),
            None if classes is None else tuple(map(str, classes)),
            columns,
            scale,
        )
    except OSError as error:
        raise DataError(f"schema {str(path)!r} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError):
        raise DataError(
            f"schema {str(path)!r} is not a schema file as `nbafl serve --prepare` writes it."
        ) from None


def _mnist(spec: str, plan: Plan) -> Local:
    index, _, count = spec.removeprefix("mnist:").partition("/")
    if not (index.isdecimal() and count == str(plan.clients) and int(index) < plan.clients):
        raise UsageError(
            "data", spec, f"mnist:INDEX/{plan.clients} with INDEX below {plan.clients}, as in the plan"
        )
    federation = Federation.mnist(
        clients=plan.clients, samples=plan.samples, partition=plan.partition, seed=plan.seed, sizes=plan.sizes
    )
    return Local(*federation.client(int(index)), "classification", mnist.CLASSES)


def _csv(path: Path, schema: tabular.Schema | None) -> Local:
    if schema is None:
        raise UsageError("schema", None, "the schema file of the federation, which goes with CSV data")
    files = sorted(path.glob("*.csv")) if path.is_dir() else [path]
    if not files:
        raise DataError(f"The folder {path} holds no CSV files.")
    parts = [schema.encode(_with_columns(tabular.read_table(file), schema)) for file in files]
    x, y = (np.concatenate(values) for values in zip(*parts, strict=True))
    return Local(x, y, schema.task, 1 if schema.classes is None else len(schema.classes))


def _with_columns(table: tabular.Table, schema: tabular.Schema) -> tabular.Table:
    missing = [name for name, _ in (*schema.columns, (schema.target, None)) if name not in table.columns]
    if missing:
        raise DataError(f"The file {table.path} lacks the column {missing[0]!r} of the schema.")
    return table


def _module(spec: str, outputs: int | None) -> Local:
    module, _, function = spec.partition(":")
    if os.getcwd() not in sys.path:  # a function beside the user's data, as `python -m` would find it
        sys.path.insert(0, os.getcwd())
    try:
        x, y = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UsageError("data", spec, f"{FORMS}; loading it failed: {error}") from None
    federation = Federation.from_arrays([(x, y)], outputs=outputs)
    pair: Arrays = federation.client(0)
    return Local(*pair, federation.task, federation.outputs)
