"""The `gradient` rule: one local step on the mean of per-record gradients, each clipped to norm G.

Replacing one of a client's m records moves the mean of clipped gradients by at most 2G/m and so the upload by at
most 2·eta·G/m, for any model (math.md (2.1)); class weights multiply what is left after clipping, where they still act on
records that are clipped, and the bound by the largest of them. Nothing else is clipped. How the gradients are had is in
`record_gradients`; a record whose gradient is not a finite number counts as zero, which is within the bound.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nbafl.errors import UsageError
from nbafl.protocol.clipping import HAIR, clip_factor
from nbafl.protocol.losses import weighted
from nbafl.protocol.record_gradients import RecordGradients, prepared
from nbafl.protocol.training import Training


def gradient_step(model: nn.Module, x: Tensor, y: Tensor, start: Tensor, training: Training) -> Tensor:
    """What a client uploads before its noise: w̃ − eta·mean over its records of clip(grad, G).

    The proximal term has no say here: its gradient mu(w − w̃) is 0 at w̃, where the one step is taken.
    """
    check_one_step(training)
    shares = torch.full((len(x),), 1 / len(x), dtype=start.dtype, device=start.device)
    shares = weighted(shares, y, training.class_weights)
    mean, _ = clipped_gradient(model, x, y, start, shares, training)
    return start - training.lr * mean


def check_one_step(training: Training) -> None:
    """Refuse what the bound 2·eta·G/m does not cover."""
    if training.steps != 1:
        raise UsageError("local_steps", training.steps, "1 under sensitivity gradient")
    if training.batch is not None:
        raise UsageError("batch", training.batch, "unset under sensitivity gradient")


def clipped_gradient(
    model: nn.Module, x: Tensor, y: Tensor, point: Tensor, shares: Tensor, training: Training
) -> tuple[Tensor, Tensor]:
    """`clipped_sum` of a model as it comes; what its trial step found is kept for the next time."""
    return clipped_sum(prepared(model, x, y, training.loss), x, y, point, shares, training)


def clipped_sum(
    gradients: RecordGradients,
    x: Tensor,
    y: Tensor,
    point: Tensor,
    shares: Tensor,
    training: Training,
    squares: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(sum_r shares_r·clip(grad_r, G) at `point`, mask of the records whose gradient was longer than G).

    With shares p_i/|D_i| over the records of many clients this is the average of all their uploads' steps at once.
    `squares` are |x_r|², for a caller who comes with the same records many times.
    """
    bound = training.record_clip * (1 - HAIR) if point.dtype == torch.float64 else training.record_clip
    total, clipped = torch.zeros_like(point), []
    for rows, norm, weighted_sum in gradients.pieces(x, y, point, squares):
        factor = torch.where(norm.isfinite(), clip_factor(norm, bound), 0.0)
        total += weighted_sum(shares[rows] * factor)
        clipped.append(factor < 1)
    return total, torch.cat(clipped)
