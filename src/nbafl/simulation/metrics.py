"""What a round is judged by: loss and accuracy of the broadcast model on everyone's records and on the test set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nbafl.protocol import record_losses
from nbafl.simulation.records import Records, Rows

Forward = Callable[[Tensor], Tensor]
"""Outputs of the model for a batch of records."""

CHUNK = 2048


@dataclass(frozen=True)
class RoundMetrics:
    """One line of metrics.jsonl; None where a quantity was not evaluated in this round."""

    round: int
    train_loss: float | None = None
    train_accuracy: float | None = None
    test_loss: float | None = None
    test_accuracy: float | None = None
    mean_client_accuracy: float | None = None
    worst_client_accuracy: float | None = None
    participants: int = 0
    clipped_fraction: float = 0.0
    upload_norm: float | None = None
    broadcast_norm: float | None = None
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Scores:
    """Loss and correctness of every record of a set (correct is None in a regression)."""

    loss: Tensor
    correct: Tensor | None

    @classmethod
    def of(cls, output: Tensor, target: Tensor, loss: str) -> Scores:
        if loss == "squared":
            return cls(record_losses(output, target, loss), None)
        return cls(record_losses(output, target, loss), output.argmax(-1) == target)

    @classmethod
    def join(cls, parts: list[Scores]) -> Scores:
        right = [part.correct for part in parts if part.correct is not None]
        return cls(torch.cat([part.loss for part in parts]), torch.cat(right) if right else None)


@torch.no_grad()
def score(forward: Forward, x: Tensor, y: Tensor, loss: str, index: Tensor | None = None) -> Scores:
    """Scores of all records, or of those at `index`, in pieces of CHUNK records."""
    count, parts = len(y) if index is None else len(index), []
    for start in range(0, count, CHUNK):
        piece = slice(start, start + CHUNK) if index is None else index[start : start + CHUNK]
        parts.append(Scores.of(forward(x[piece]), y[piece], loss))
    return Scores.join(parts)


def means(scores: Scores) -> dict[str, Tensor]:
    """Mean loss and, for classes, accuracy."""
    result = {"loss": scores.loss.mean(dtype=torch.float64)}
    if scores.correct is not None:
        result["accuracy"] = scores.correct.to(torch.float64).mean()
    return result


def client_accuracies(correct: Tensor, sizes: Tensor) -> Tensor:
    """Accuracy of each client, from correctness in client order; clients without records are left out."""
    owner = torch.repeat_interleave(
        torch.arange(len(sizes), device=sizes.device), sizes, output_size=len(correct)
    )
    sums = torch.zeros(len(sizes), dtype=torch.float64, device=correct.device)
    sums.index_add_(0, owner, correct.to(torch.float64))
    return (sums / sizes)[sizes > 0]


def evaluate(
    forward: Forward, records: Records, clients: np.ndarray, loss: str, measure: frozenset[str]
) -> dict[str, Tensor]:
    """The evaluated part of RoundMetrics, as scalars on the device; `clients` are those whose records count."""
    result: dict[str, Tensor] = {}
    if measure & {"train", "clients"}:
        rows = records.rows(clients)
        train = score(forward, records.x, records.y, loss, flat(rows))
        if "train" in measure:
            result.update({f"train_{name}": value for name, value in means(train).items()})
        if "clients" in measure:
            own = records.rows(clients, local=True) if records.has_local_test else rows
            if records.has_local_test:
                train = score(forward, records.x, records.y, loss, flat(own))
            result.update(spread(train, own.sizes))
    if "test" in measure and records.test is not None:
        test = score(forward, *records.test, loss)
        result.update({f"test_{name}": value for name, value in means(test).items()})
    return result


def spread(scores: Scores, sizes: Tensor) -> dict[str, Tensor]:
    """Mean and worst accuracy over clients: Algorithm 1's local testing step."""
    if scores.correct is None:
        return {}
    accuracies = client_accuracies(scores.correct, sizes)
    return {"mean_client_accuracy": accuracies.mean(), "worst_client_accuracy": accuracies.min()}


def flat(rows: Rows) -> Tensor:
    """All record numbers in client order, padding left out."""
    return rows.index[rows.real]
