"""Using a model: new rows in, probabilities or numbers out, by the schema and the model of a run folder alone."""

from __future__ import annotations

import contextlib
import csv
import io
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from nbafl.data.features import compute
from nbafl.data.schema import Schema
from nbafl.data.schema_file import read_schema
from nbafl.data.tables import from_frame, read_table
from nbafl.durable import write_text
from nbafl.errors import DataError, UsageError
from nbafl.folders import audits, runs
from nbafl.folders.facts import FROM_PYTHON, Facts
from nbafl.protocol import probabilities
from nbafl.simulation.models import build
from nbafl.tasks import classes_of

if TYPE_CHECKING:
    from torch import nn

    from nbafl.run.result import Run

PIECE = 8192


@dataclass(frozen=True)
class Predictions:
    """One answer per row: class names and their probabilities, or numbers in the target's unit."""

    values: np.ndarray
    """Names of the likeliest classes, or predicted numbers."""
    probabilities: np.ndarray | None
    """(rows, classes); None for a regression."""
    classes: tuple[str, ...] | None
    remarks: tuple[str, ...] = ()
    """What the rules of the schema did to the rows."""

    def columns(self) -> dict[str, np.ndarray]:
        """Column by column, as the file and the frame have them."""
        found = {"prediction": self.values}
        if self.probabilities is not None and self.classes is not None:
            found |= {f"probability {name}": self.probabilities[:, i] for i, name in enumerate(self.classes)}
        return found

    def to_frame(self) -> Any:
        """A pandas frame."""
        import pandas

        return pandas.DataFrame(self.columns())

    def to_csv(self) -> str:
        """A line per row in the order of the rows; numbers with all their digits."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        columns = self.columns()
        writer.writerow(columns)
        writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
        return text.getvalue()


def predict(run: Run, rows: Any, model: nn.Module | None = None) -> Predictions:
    """Answers for a table (a file's path, a frame, a mapping of columns) or an array of records."""
    facts, schema = facts_of(run), schema_of(run)
    x, remarks = _records(rows, schema, facts)
    x = x if facts.tokens else compute(run.plan.features, x, run.plan.feature_norm)
    outputs = _outputs(model_of(run, model), x)
    if facts.task == "regression":
        numbers = outputs[:, 0].astype(np.float64)
        return Predictions(numbers if schema is None else schema.in_units(numbers), None, None, remarks)
    names = facts.classes or tuple(map(str, range(classes_of(facts.task, facts.outputs))))
    found = probabilities(torch.from_numpy(outputs).double()).numpy()
    return Predictions(np.array(names)[found.argmax(axis=1)], found, names, remarks)


def model_of(run: Run, model: nn.Module | None = None) -> nn.Module:
    """The final model of a run, in evaluation mode; `model` where the run was given one that no name builds again."""
    facts, path = facts_of(run), run.path / runs.MODEL
    if not path.is_file():
        raise DataError(f"{str(run.path)!r} holds no model yet: the run is not finished.")
    if model is None:
        if facts.model == FROM_PYTHON:
            raise UsageError(
                "model", None, "the module this run was trained with, which was given from Python"
            )
        shape = _shape_seen(run, facts)
        model = build(facts.model, shape, facts.outputs, seed=0, tokens=facts.tokens)
    try:
        model.load_state_dict(load_file(path))
    except (SafetensorError, RuntimeError) as error:
        raise DataError(
            f"{str(path)!r} does not fit the model {facts.model!r}: {str(error).splitlines()[0]}"
        ) from None
    return model.eval()


def export_onnx(run: Run, path: str | Path, model: nn.Module | None = None) -> Path:
    """The numeric part of a model as ONNX (records in, outputs before softmax or sigmoid out), the schema beside it."""
    path, facts, schema = Path(path), facts_of(run), schema_of(run)
    example = torch.zeros((2, *_shape_seen(run, facts)), dtype=torch.int64 if facts.tokens else None)
    batch = torch.export.Dim("records", min=1)
    trained = model_of(run, model)
    try:
        with _quiet_export():
            torch.onnx.export(
                trained, (example,), str(path), input_names=["records"], output_names=["outputs"],
                dynamic_shapes=({0: batch},), dynamo=True, external_data=False, verbose=False,
            )  # fmt: skip
    except ModuleNotFoundError as error:
        raise DataError(f"ONNX export needs {error.name}: pip install 'nbafl[onnx]'.") from None
    if schema is not None:
        write_text(path.with_suffix(".schema.toml"), schema.to_toml())
    return path


@contextlib.contextmanager
def _quiet_export() -> Iterator[None]:
    """Without what the exporter says about itself: operators of packages that are not installed, its own old calls."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            for about_code in (FutureWarning, DeprecationWarning):
                warnings.simplefilter("ignore", about_code)
            yield
    finally:
        logger.setLevel(level)


def facts_of(run: Run) -> Facts:
    facts = Facts.load(run.path)
    if audits.stands_alone(run.path):
        raise DataError(f"{str(run.path)!r} is the folder of an audit; a prediction needs a finished run.")
    if facts is None:
        raise DataError(
            f"{str(run.path)!r} was made by the first release, which did not keep what a prediction needs."
        )
    return facts


def schema_of(run: Run) -> Schema | None:
    path = run.path / runs.SCHEMA
    return read_schema(path) if path.is_file() else None


def _records(rows: Any, schema: Schema | None, facts: Facts) -> tuple[np.ndarray, tuple[str, ...]]:
    if isinstance(rows, str | Path) and Path(rows).suffix == ".npy":
        rows = _array_file(Path(rows))
    if schema is None or isinstance(rows, np.ndarray | torch.Tensor):
        return _array(rows, facts), ()
    table = read_table(rows) if isinstance(rows, str | Path) else from_frame(rows, "the frame")
    problems = schema.problems(table, with_target=False)
    if problems:
        raise DataError(" ".join(problems))
    return schema.encode(table), (*table.notes, *schema.remarks(table, with_target=False))


def _array_file(path: Path) -> np.ndarray:
    try:
        with open(path, "rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"The file {path} does not exist.") from None
    except OSError as error:
        raise DataError(f"The file {path} cannot be read ({error.strerror}).") from None
    except (
        ValueError,
        TypeError,
        EOFError,
        OverflowError,
        SyntaxError,
        TokenError,
    ):  # all of them numpy lets out
        raise DataError(
            f"The file {path} is not a whole array of numbers as numpy.save writes it: it is damaged or another file."
        ) from None


def _array(rows: Any, facts: Facts) -> np.ndarray:
    try:
        x = np.asarray(rows, dtype=np.int64 if facts.tokens else np.float32)
    except (TypeError, ValueError):
        raise DataError(
            "This run was trained on arrays, not on a table: give records as an array or a .npy file."
        ) from None
    if x.shape[1:] != facts.shape or not len(x):
        raise DataError(f"Records of this run have shape {facts.shape}, got an array of shape {x.shape}.")
    if not np.isfinite(x).all():
        raise DataError("The records hold NaN or infinite values.")
    return x


def _shape_seen(run: Run, facts: Facts) -> tuple[int, ...]:
    """The shape of a record once it has the plan's features."""
    if run.plan.features == "raw":
        return facts.shape
    return tuple(compute(run.plan.features, np.zeros((1, *facts.shape), dtype=np.float32), None).shape[1:])


@torch.no_grad()
def _outputs(model: nn.Module, x: np.ndarray) -> np.ndarray:
    pieces = [
        model(torch.from_numpy(np.ascontiguousarray(x[i : i + PIECE]))) for i in range(0, len(x), PIECE)
    ]
    return torch.cat(pieces).numpy()
