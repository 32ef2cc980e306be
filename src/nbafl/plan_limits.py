"""Limits between a plan's fields, beside those of the single fields (`fields`) and of the rule (`rules`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbafl import class_weights
from nbafl.errors import UsageError
from nbafl.privacy import adversary, calibration
from nbafl.tasks import REGRESSION

if TYPE_CHECKING:
    from nbafl.plan import Plan

LEAST_RESERVE = 1e-3
"""A smaller share of a budget pays for no score that tells anything."""


def check(plan: Plan) -> None:
    """Refuse counts that contradict each other, in one sentence that names the field."""
    if plan.drawn > plan.clients:
        raise UsageError("per_round", plan.per_round, f"at most clients ({plan.clients})")
    if plan.exposures > plan.rounds:
        raise UsageError("exposures", plan.exposures, f"at most rounds ({plan.rounds})")
    if plan.server_average > plan.rounds:
        raise UsageError("server_average", plan.server_average, f"at most rounds ({plan.rounds})")
    if plan.server_lr is not None and plan.server_optimiser != "adam":
        raise UsageError("server_lr", plan.server_lr, "unset, or given with server_optimiser adam")
    _check_reserve(plan)
    _check_sizes(plan)
    _check_classes(plan)
    if not adversary.parse(plan.adversary).among(plan.clients):
        raise UsageError(
            "adversary", plan.adversary, f"one with fewer accomplices than clients ({plan.clients})"
        )


def _check_reserve(plan: Plan) -> None:
    if plan.reserve and plan.calibration != "exact":
        raise UsageError("reserve", plan.reserve, "0, or given with calibration exact")
    if 0 < plan.reserve < LEAST_RESERVE:
        raise UsageError("reserve", plan.reserve, f"0, or from {LEAST_RESERVE} to 0.9")
    calibration.training_share(plan.epsilon, plan.delta, plan.reserve)


def _check_classes(plan: Plan) -> None:
    if plan.class_weights is not None and plan.task == REGRESSION:
        raise UsageError("class_weights", plan.class_weights, "unset where the target is a number")
    class_weights.parse(plan.class_weights or "")


def _check_sizes(plan: Plan) -> None:
    if plan.sizes is None:
        return
    if len(plan.sizes) != plan.clients:
        raise UsageError("sizes", f"{len(plan.sizes)} numbers", f"one number per client ({plan.clients})")
    smallest = min(plan.sizes)
    if smallest < 1:
        raise UsageError("sizes", smallest, "at least 1 record for each client")
