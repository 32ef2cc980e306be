"""How good the final model is, in the measures that suit its task, always beside a predictor that knows only the target.

What is measured on private training records is marked so: it is outside the guarantee and not for giving away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.stats import rankdata
from torch import nn

from nbafl.protocol import likeliest, probabilities

if TYPE_CHECKING:
    from nbafl.data.federation import Federation
    from nbafl.data.schema import Schema

PIECE = 8192
BINS = 10
MOST_CLIENTS = 200
MOST_CLASSES = 20


def score(model: nn.Module, federation: Federation) -> dict[str, Any]:
    """All measures of a model: on the test set where there is one, else on the training records; and client by client."""
    rows = np.unique(np.concatenate([np.asarray(part) for part in _some_clients(federation)]))
    known = federation.y[rows]
    on_test = federation.test is not None
    x, y = federation.test if federation.test is not None else (federation.x[rows], known)
    measured = measures(
        outputs_of(model, x), y, known, federation.task, federation.classes, federation.schema
    )
    return {
        "measured_on": "test records" if on_test else "training records",
        "outside_the_guarantee": "what was measured on training records"
        if not on_test
        else "measures by client",
        **measured,
        "worst_client": _worst_client(model, federation),
    }


def score_test(
    model: nn.Module, test: tuple[np.ndarray, np.ndarray], task: str, schema: Schema | None
) -> dict[str, Any]:
    """What the server of a federation can measure: its own test records, beside a constant read from them."""
    x, y = test
    classes = None if schema is None else schema.classes
    return {"measured_on": "test records", **measures(outputs_of(model, x), y, y, task, classes, schema)}


def measures(
    outputs: np.ndarray,
    y: np.ndarray,
    known: np.ndarray,
    task: str,
    classes: Sequence[str] | None,
    schema: Schema | None,
) -> dict[str, Any]:
    """The measures of a task; `known` are the targets a constant predictor may look at."""
    if task == "regression":
        numbers = [np.asarray(each, dtype=np.float64) for each in (outputs[:, 0], y, known)]
        predicted, truth, seen = numbers if schema is None else [schema.in_units(each) for each in numbers]
        return regression(predicted, truth, float(seen.mean()))
    answered = probabilities(torch.from_numpy(outputs).double()).numpy()
    names = tuple(classes or map(str, range(answered.shape[1])))
    return classification(answered, y, np.bincount(known, minlength=len(names)) / len(known), names)


def classification(
    answered: np.ndarray, y: np.ndarray, shares: np.ndarray, names: Sequence[str]
) -> dict[str, Any]:
    """Accuracy, recall by class and their mean (balanced accuracy), AUC, confusion, calibration; `shares` of the classes
    are all that the constant predictor knows."""
    predicted = answered.argmax(axis=1)
    confusion = np.zeros((len(names), len(names)), dtype=np.int64)
    np.add.at(confusion, (y, predicted), 1)
    present = confusion.sum(axis=1) > 0
    recall = np.divide(np.diag(confusion), confusion.sum(axis=1), out=np.zeros(len(names)), where=present)
    constant = int(shares.argmax())
    return {
        "accuracy": float((predicted == y).mean()),
        "balanced_accuracy": float(recall[present].mean()),
        "log_loss": log_loss(answered, y),
        "auc": area_under_curve(answered, y),
        "recall": {name: float(recall[i]) if present[i] else None for i, name in enumerate(names)},
        "confusion": {"classes": list(names), "rows_are_truth": confusion.tolist()}
        if len(names) <= MOST_CLASSES
        else None,
        "calibration": calibration(answered.max(axis=1), predicted == y),
        "constant": {
            "prediction": names[constant],
            "accuracy": float((y == constant).mean()),
            "balanced_accuracy": float(1 / present.sum()),
            "log_loss": log_loss(np.broadcast_to(shares, answered.shape), y),
        },
    }


def log_loss(probabilities: np.ndarray, y: np.ndarray) -> float:
    return float(-np.log(np.maximum(probabilities[np.arange(len(y)), y], 1e-300)).mean())


def area_under_curve(probabilities: np.ndarray, y: np.ndarray) -> float | None:
    """Two classes: the chance that a record of the second gets a higher probability of it than one of the first; more
    classes: the mean over classes, each against the rest. None where a class is not there."""
    classes = [1] if probabilities.shape[1] == 2 else range(probabilities.shape[1])
    areas = []
    for each in classes:
        positive = y == each
        count, rest = int(positive.sum()), int((~positive).sum())
        if count and rest:
            ranks = rankdata(probabilities[:, each])
            # Mann and Whitney's U over all pairs, ties counting one half.
            areas.append((ranks[positive].sum() - count * (count + 1) / 2) / (count * rest))
    return float(np.mean(areas)) if areas else None


def calibration(confidence: np.ndarray, right: np.ndarray) -> dict[str, Any]:
    """How often answers of a given confidence are right, in ten bins, and the mean gap weighted by records."""
    place = np.minimum((confidence * BINS).astype(int), BINS - 1)
    bins = [
        {
            "confidence": float(confidence[place == i].mean()),
            "right": float(right[place == i].mean()),
            "records": int(n),
        }
        for i in range(BINS)
        if (n := (place == i).sum())
    ]
    gap = sum(each["records"] * abs(each["confidence"] - each["right"]) for each in bins) / len(right)
    return {"mean_gap": float(gap), "bins": bins}


def regression(predicted: np.ndarray, y: np.ndarray, constant: float) -> dict[str, Any]:
    """R², mean absolute and root mean square error in the target's unit."""
    spread = float(((y - y.mean()) ** 2).mean())
    error = float(((predicted - y) ** 2).mean())
    return {
        "r2": 1 - error / spread if spread > 0 else None,
        "mae": float(np.abs(predicted - y).mean()),
        "rmse": error**0.5,
        "constant": {
            "prediction": constant,
            "mae": float(np.abs(constant - y).mean()),
            "rmse": float(((constant - y) ** 2).mean() ** 0.5),
        },
    }


def _worst_client(model: nn.Module, federation: Federation) -> dict[str, Any] | None:
    """The client the model serves worst, by name; its own records are outside the guarantee."""
    if not 1 < federation.clients <= MOST_CLIENTS:
        return None
    found = []
    for number, rows in enumerate(federation.local_records()):
        if not len(rows):
            continue
        outputs, y = outputs_of(model, federation.x[rows]), federation.y[rows]
        if federation.task == "regression":
            error = float(((outputs[:, 0] - y) ** 2).mean() ** 0.5)
            scale = 1.0 if federation.schema is None else _unit(federation.schema)
            found.append((-error, {"name": str(federation.names[number]), "rmse": error * scale}))
        else:
            accuracy = float((likeliest(torch.from_numpy(outputs)).numpy() == y).mean())
            found.append((accuracy, {"name": str(federation.names[number]), "accuracy": accuracy}))
    return min(found, key=lambda each: each[0])[1] if found else None


def _unit(schema: Schema) -> float:
    """What a difference of 1 in the model's output is worth in the target's unit."""
    return 1.0 if schema.target_range is None else (schema.target_range[1] - schema.target_range[0]) / 2


def _some_clients(federation: Federation) -> list[Any]:
    return list(federation.records(np.arange(min(federation.clients, MOST_CLIENTS))))


@torch.no_grad()
def outputs_of(model: nn.Module, x: np.ndarray) -> np.ndarray:
    """The model's answers (records, outputs), in evaluation mode and in pieces."""
    model = model.eval()
    like = next(model.parameters())
    pieces = (_on_device(x[i : i + PIECE], like) for i in range(0, len(x), PIECE))
    return torch.cat([model(piece).reshape(len(piece), -1).cpu() for piece in pieces]).float().numpy()


def _on_device(x: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    """Records where the model is, features in its precision; tokens stay whole numbers."""
    piece = torch.from_numpy(np.array(x))
    return piece.to(like) if piece.is_floating_point() else piece.to(like.device)


def without_infinities(value: Any) -> Any:
    """The same measures with None for what is no finite number, as JSON wants it."""
    if isinstance(value, dict):
        return {name: without_infinities(each) for name, each in value.items()}
    if isinstance(value, list):
        return [without_infinities(each) for each in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
