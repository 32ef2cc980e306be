"""What a client's arrays must be before anything trains on them; a refusal names the client and the row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nbafl.errors import DataError, UsageError
from nbafl.tasks import BINARY, REGRESSION, TASKS

Arrays = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Checked:
    """One client's (or test set's) arrays: x is float32 (tokens: int64), y as given; both finite and equally long."""

    name: str
    x: np.ndarray
    y: np.ndarray
    kinds: tuple[str, str]
    """numpy's kind of x and y as given: `f` for decimal numbers, `i` for whole ones."""


def check_pair(name: str, pair: Any, tokens: bool = False) -> Checked:
    """One (x, y) pair, converted and checked by itself; `tokens` stay whole numbers."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise DataError(f"The data of {name} must be a pair (x, y), got {type(pair).__name__}.")
    x, x_kind = _numbers(pair[0], f"x of {name}")
    y, y_kind = _numbers(pair[1], f"y of {name}")
    if x.ndim < 2:
        raise DataError(
            f"The x of {name} must have one row per record and at least one feature, got shape {x.shape}."
        )
    if y.ndim != 1:
        raise DataError(f"The y of {name} must have one number per record, got shape {y.shape}.")
    if len(x) != len(y):
        raise DataError(f"The x and y of {name} differ in length: {len(x)} and {len(y)} records.")
    if not len(x):
        raise DataError(f"There are no records in {name}; every client needs at least one.")
    if tokens and (x_kind != "i" or x.min() < 0):
        found = f"a value of {x.min()}" if x_kind == "i" else f"{x.dtype} numbers"
        raise DataError(f"The x of {name} must hold tokens, whole numbers of at least 0, got {found}.")
    with np.errstate(over="ignore"):
        x = np.ascontiguousarray(x, dtype=np.int64 if tokens else np.float32)
    _finite(x.reshape(len(x), -1), f"x of {name}")
    _finite(y.reshape(-1, 1), f"y of {name}")
    return Checked(name, x, y, (x_kind, y_kind))


def _numbers(values: Any, what: str) -> tuple[np.ndarray, str]:
    try:
        array = np.asarray(values)
    except (
        ValueError,
        TypeError,
        RuntimeError,
    ) as error:  # ragged lists; tensors that need detach or another device
        raise DataError(f"The {what} cannot be read as one array ({error}).") from None
    if array.dtype.kind not in "fiub":
        raise DataError(f"The {what} must hold numbers, got {array.dtype}.")
    return array, "f" if array.dtype.kind == "f" else "i"


def _finite(values: np.ndarray, what: str) -> None:
    if values.dtype.kind == "f" and not (good := np.isfinite(values).all(axis=1)).all():
        raise DataError(f"The {what} has a NaN or infinite value in row {int(np.argmin(good))}.")


def check_alike(parts: list[Checked]) -> None:
    """Every client must have features of one shape and one kind of numbers."""
    first = parts[0]
    for part in parts[1:]:
        if part.x.shape[1:] != first.x.shape[1:]:
            raise DataError(
                f"The records of {part.name} have shape {part.x.shape[1:]}, "
                f"those of {first.name} {first.x.shape[1:]}; all clients need the same."
            )
        for letter, mine, theirs in zip("xy", part.kinds, first.kinds, strict=True):
            if mine != theirs:
                raise DataError(
                    f"The {letter} of {part.name} has {_KIND[mine]} numbers, that of {first.name} "
                    f"{_KIND[theirs]} ones; all clients need the same."
                )


_KIND = {"f": "decimal", "i": "whole"}


def task_of(parts: list[Checked], task: str | None) -> str:
    """The task asked for, or: whole-number targets are classes and decimal ones a regression."""
    if task is None:
        if parts[0].kinds[1] == "f" and all(np.isin(part.y, (0, 1)).all() for part in parts):
            raise DataError(
                f"The y of {parts[0].name} holds only 0 and 1 as decimal numbers: say task='binary', "
                "task='classification' or task='regression'."
            )
        return "classification" if parts[0].kinds[1] == "i" else "regression"
    if task not in TASKS:
        raise UsageError("task", task, "binary, classification or regression")
    return task


def targets(parts: list[Checked], task: str, outputs: int | None) -> tuple[list[np.ndarray], int]:
    """Each part's y as the task stores it, and the number of outputs of a model."""
    if task in (BINARY, REGRESSION) and outputs not in (None, 1):
        raise UsageError("outputs", outputs, f"1 for the task {task}")
    if task == REGRESSION:
        return [part.y.astype(np.float32) for part in parts], 1
    if task == BINARY:
        for part in parts:
            _refuse(part, (part.y != 0) & (part.y != 1), "a binary target is 0 or 1")
        return [part.y.astype(np.int64) for part in parts], 1
    for part in parts:
        _refuse(
            part, (part.y < 0) | (part.y != np.floor(part.y)), "a class must be a whole number of at least 0"
        )
    lowest, highest = min(int(part.y.min()) for part in parts), max(int(part.y.max()) for part in parts)
    if outputs is None and lowest > 0:
        raise DataError(
            f"The y of {parts[0].name} holds the classes {lowest} to {highest}, and none is 0: number them from 0, or say "
            f"outputs={highest + 1} if class 0 exists."
        )
    classes = outputs if outputs is not None else max(2, 1 + max(int(part.y.max()) for part in parts))
    if classes < 2:
        raise UsageError("outputs", outputs, "at least 2 classes")
    for part in parts:
        _refuse(part, part.y >= classes, f"with {classes} outputs a class must be below {classes}")
    return [part.y.astype(np.int64) for part in parts], classes


def _refuse(part: Checked, bad: np.ndarray, rule: str) -> None:
    if bad.any():
        row = int(np.argmax(bad))
        raise DataError(f"The y of {part.name} is {part.y[row]} in row {row}; {rule}.")
