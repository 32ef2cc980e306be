"""The surest prediction of a plan: train it a few times with noise of its own size, drawn anew, and look.

It costs as much as a few runs, so it is done where that is cheap (tables, small models). Elsewhere the planner continues
the curve of a short pilot, and says that it does not know where that would be a guess.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from nbafl.data.federation import Federation
from nbafl.plan import Plan
from nbafl.protocol import flatten
from nbafl.simulation.batch import simulate_batch

DRAWS = 8
CERTAIN = 0.1
AFFORDABLE = 2e11
"""Multiplications (records x weights x rounds x draws) that a rehearsal may take: some seconds on two cores."""
_APART = 1_000_003
"""Seeds of a rehearsal lie so far from the plan's that it never rehearses the noise of the run itself."""


@dataclass(frozen=True)
class Rehearsal:
    """Means over the draws, and how far single draws lie apart."""

    loss: float
    loss_spread: float
    """Standard deviation of the loss of a single training."""
    accuracy: float | None
    draws: int

    @property
    def certain(self) -> bool:
        """Whether a single training ends within a fifth of the mean loss nearly always (two standard deviations)."""
        return self.loss_spread <= CERTAIN * self.loss


def affordable(plan: Plan, federation: Federation, model: nn.Module) -> bool:
    """Whether a rehearsal takes seconds."""
    records = float(federation.sizes.mean()) * plan.drawn
    return records * flatten(model).numel() * plan.rounds * DRAWS <= AFFORDABLE


def rehearse(plan: Plan, federation: Federation, model: nn.Module) -> Rehearsal | None:
    """Train the plan with fresh noise, a few times at once; None where training does not stay finite."""
    job = replace(plan.job(federation.task, federation.class_names), eval_every=plan.rounds)
    jobs = [replace(job, seed=(plan.seed + _APART * draw) % 2**31) for draw in range(1, DRAWS + 1)]
    lasts = [run[-1] for run in simulate_batch(federation, model, jobs, device="cpu", measure={"train"})]
    losses = np.array([last.train_loss for last in lasts], dtype=np.float64)
    if not np.isfinite(losses).all():
        return None
    rights = [last.train_accuracy for last in lasts if last.train_accuracy is not None]
    return Rehearsal(
        loss=float(losses.mean()),
        loss_spread=float(losses.std(ddof=1)),
        accuracy=float(np.mean(rights)) if rights else None,
        draws=DRAWS,
    )
