"""A plan that goes on with finished runs over the same data: what it may be, and what such a run adds to the price.

Every release of every run is about the same records, so their mu^2 add up (math.md (3.2)); `privacy.release.Earlier` is
one of the runs before. `nbafl.folders.earlier` makes the fields of such a plan from a run folder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbafl import aggregation
from nbafl.errors import UsageError
from nbafl.privacy import accounting, adversary, calibration, dropouts
from nbafl.privacy.adversary import Adversary
from nbafl.privacy.dropouts import AnsweredRound

if TYPE_CHECKING:
    from nbafl.evaluation import Evaluation
    from nbafl.plan import Plan


def check(plan: Plan) -> None:
    """Refuse what has no sum: it is known for proven rules with every client in every round."""
    if plan.init_sha256 is not None and plan.init is None:
        raise UsageError("init_sha256", plan.init_sha256, "unset without init")
    if plan.continues is None:
        return
    for field, fine, allowed in (
        ("continues", len(plan.continues) > 0, "at least one run"),
        ("sensitivity", not plan.rule.conditional, "a rule that is proved"),
        ("per_round", plan.drawn == plan.clients, "unset (all clients in every round)"),
        ("aggregation", plan.aggregation == aggregation.PLAIN, aggregation.PLAIN),
        ("calibration", plan.calibration == "exact", "exact"),
        ("noise", plan.noise, "on"),
    ):
        if not fine:
            raise UsageError(field, getattr(plan, field), f"{allowed} in a run that goes on with another one")
    if plan.init is None or plan.init_sha256 != plan.continues[-1].model:
        raise UsageError("init", plan.init, "the model of the last of the runs that this one continues")
    known = min((each.exposures for each in plan.continues if each.exposures < each.rounds), default=None)
    if known is not None and plan.exposures > known:
        allowed = f"at most {known}, which is what the runs before are priced for"
        raise UsageError("exposures", plan.exposures, allowed)
    calibration.mu_left(plan.release(), plan.training_epsilon, plan.delta, adversary.parse(plan.adversary))


def price(
    plan: Plan,
    others: Sequence[Adversary],
    rounds: Sequence[AnsweredRound] | None,
    evaluation: Evaluation | None = None,
) -> dict[str, float]:
    """mu^2 of a run of this plan alone against its adversaries and `others`.

    `rounds`: a federation's as they were; `evaluation`: what it released besides.
    """
    release, noise = plan.release() if evaluation is None else evaluation.beside(plan)[0], plan.noise_scales()
    alone = dataclasses.replace(release, earlier=())
    everyone = [each for each in (*plan.adversaries(), *others) if each.among(plan.clients)]
    if rounds is not None:
        return {each.name: dropouts.realised_cost(alone, noise, each, rounds) for each in everyone}
    return {each.name: accounting.whole_cost(alone, noise, each) for each in everyone}
