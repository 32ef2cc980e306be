"""The `gradient` rule for persons: the gradients of all rows of a person are averaged and then clipped to G.

A person then counts once, however many rows there are: replacing all of them moves the mean over a client's persons by
at most 2G/persons, as replacing a record does where every record is a person (math.md (10.2)).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from nbafl.errors import UsageError
from nbafl.protocol.aggregation import clip_factor
from nbafl.protocol.gradient import HAIR, check_one_step, prepared
from nbafl.protocol.losses import weighted
from nbafl.protocol.record_gradients import RecordGradients
from nbafl.protocol.training import Training

GROUP_BYTES = 2**25
"""What the gradients of persons that are clipped together may fill."""


def person_step(
    model: nn.Module, x: Tensor, y: Tensor, start: Tensor, training: Training, rows: np.ndarray
) -> Tensor:
    """What a client uploads before its noise: w̃ − eta·mean over its persons of clip(mean of their rows' gradients, G).

    `rows` says how many rows each person has; the rows of a person lie one after another.
    """
    check_one_step(training)
    check_rows(rows, len(x))
    shares = torch.full((len(rows),), 1 / len(rows), dtype=start.dtype, device=start.device)
    gradients = prepared(model, x, y, training.loss)
    mean, _ = clipped_by_person(gradients, x, y, start, shares, training, rows)
    return start - training.lr * mean


def clipped_by_person(
    gradients: RecordGradients,
    x: Tensor,
    y: Tensor,
    point: Tensor,
    shares: Tensor,
    training: Training,
    rows: np.ndarray,
) -> tuple[Tensor, Tensor]:
    """(sum_p shares_p·clip(mean gradient of p's rows, G) at `point`, mask of the persons who were clipped).

    With class weights a person's bound is G times the mean weight of the rows, so that one with a single row counts as
    that row would. A person whose gradient is not a finite number counts as zero, which is within the bound.
    """
    bound = training.record_clip * (1 - HAIR) if point.dtype == torch.float64 else training.record_clip
    counts = torch.as_tensor(rows, device=point.device)
    person = torch.arange(len(rows), device=point.device).repeat_interleave(counts)
    even = (1 / counts.to(point.dtype))[person]
    # What each row adds to its person: one over the person's rows, times the weight of its class.
    parts = weighted(even, y, training.class_weights)
    heavy = point.new_ones(len(rows))
    if parts is not even:
        heavy = heavy.new_zeros(len(rows)).index_add(0, person, parts).clamp(max=training.largest_weight)
    total, clipped = torch.zeros_like(point), []
    for some in _groups(rows, point.numel() if gradients.way == "chain" else None):
        mine = slice(int(rows[: some.start].sum()), int(rows[: some.stop].sum()))
        means = _means(gradients, x[mine], y[mine], point, parts[mine], person[mine] - some.start)
        norms = torch.linalg.vector_norm(means, dim=1)
        good = norms.isfinite()
        factors = torch.where(good, clip_factor(norms, heavy[some] * bound), 0.0)
        total += (shares[some] * factors) @ torch.where(good[:, None], means, 0.0)
        clipped.append(factors < 1)
    return total, torch.cat(clipped)


def _groups(rows: np.ndarray, weights: int | None) -> Iterator[slice]:
    """Persons taken together: as many as GROUP_BYTES hold the gradients of; one by one where a pass gives only sums."""
    room = 0 if weights is None else GROUP_BYTES // (8 * weights)
    first, held = 0, 0
    for person, count in enumerate(rows.tolist()):
        if person > first and held + count > room:
            yield slice(first, person)
            first, held = person, 0
        held += count
    yield slice(first, len(rows))


def _means(
    gradients: RecordGradients, x: Tensor, y: Tensor, point: Tensor, parts: Tensor, person: Tensor
) -> Tensor:
    """Every person's mean gradient, (persons, d): the sum of the rows' gradients, each with its part."""
    persons = int(person[-1]) + 1
    if persons == 1:
        pieces = gradients.pieces(x, y, point, None)
        return sum((add(parts[rows]) for rows, _, add in pieces), torch.zeros_like(point))[None]
    each = gradients.of_chain(x, y, point) * parts[:, None]
    return each.new_zeros(persons, each.shape[1]).index_add(0, person, each)


def check_rows(rows: np.ndarray, records: int) -> None:
    """The rows of persons must be all of a client's records."""
    if not len(rows) or rows.min() < 1 or int(rows.sum()) != records:
        raise UsageError("persons", int(rows.sum()), f"at least one row each and {records} rows in all")
