"""What a round is judged by: loss and accuracy of the broadcast model on everyone's records and on the test set."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from nbafl.protocol import likeliest, record_losses
from nbafl.protocol.losses import Loss


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
    clipped_fraction: float | None = None
    upload_norm: float | None = None
    """Mean length of single uploads before their noise: only a simulation may know it."""
    broadcast_norm: float | None = None
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Tally:
    """Summed loss, number correct (None in a regression) and number of records, for each of several groups."""

    loss: Tensor
    correct: Tensor | None
    count: Tensor

    @classmethod
    def of(cls, output: Tensor, target: Tensor, real: Tensor, loss: Loss) -> Tally:
        """One group per row of `target` and `real` (groups, records); `output` is (groups, outputs, records)."""
        losses, correct = record_losses(output, target, loss), None
        if not target.is_floating_point():
            correct = ((likeliest(output, 1) == target) & real).sum(1)
        return cls((losses.double() * real).sum(1), correct, real.sum(1))

    @classmethod
    def join(cls, parts: list[Tally]) -> Tally:
        correct = [part.correct for part in parts if part.correct is not None]
        return cls(
            torch.cat([part.loss for part in parts]),
            torch.cat(correct) if correct else None,
            torch.cat([part.count for part in parts]),
        )

    def means(self, name: str) -> dict[str, Tensor]:
        """Mean loss and accuracy over all records of all groups."""
        total = self.count.sum()
        values = {f"{name}_loss": self.loss.sum() / total}
        if self.correct is not None:
            values[f"{name}_accuracy"] = self.correct.sum().double() / total
        return values

    def spread(self) -> dict[str, Tensor]:
        """Mean and worst accuracy over clients: Algorithm 1's local testing step."""
        if self.correct is None:
            return {}
        accuracy = self.correct.double() / self.count
        return {"mean_client_accuracy": accuracy.nanmean(), "worst_client_accuracy": _nanmin(accuracy)}


def _nanmin(values: Tensor) -> Tensor:
    """The smallest entry; clients without a record to test on are NaN and left out."""
    return values.nan_to_num(nan=torch.inf).min()


class Scorer(Protocol):
    """Evaluates a weight vector."""

    def train(self, vector: Tensor, clients: np.ndarray | None) -> Tally:
        """One group per client, on its training records; None: every client."""
        ...

    def local(self, vector: Tensor, clients: np.ndarray | None) -> Tally:
        """One group per client, on the records it set aside."""
        ...

    def test(self, vector: Tensor) -> Tally | None:
        """One group or several: the common test set."""
        ...


def evaluate(
    scorer: Scorer, vector: Tensor, clients: np.ndarray | None, measure: frozenset[str], set_aside: bool
) -> dict[str, Tensor]:
    """The evaluated part of RoundMetrics, as scalars on the device; `set_aside`: clients test on records of their own."""
    values: dict[str, Tensor] = {}
    own = None
    if "train" in measure or ("clients" in measure and not set_aside):
        own = scorer.train(vector, clients)
        if "train" in measure:
            values.update(own.means("train"))
    if "clients" in measure:
        if set_aside:
            own = scorer.local(vector, clients)
        assert own is not None
        values.update(own.spread())
    test = scorer.test(vector) if "test" in measure else None
    if test is not None:
        values.update(test.means("test"))
    return values
