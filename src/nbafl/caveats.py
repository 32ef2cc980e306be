"""What a plan's epsilon rests on, and what a careful reader should know before relying on it, as sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nbafl import aggregation, rules
from nbafl.privacy import accounting, adversary, calibration
from nbafl.privacy.scope import Scope

if TYPE_CHECKING:
    from nbafl.plan import Plan


def assumptions(plan: Plan) -> list[str]:
    """Everything an epsilon of this plan rests on."""
    named = adversary.parse(plan.adversary)
    sensitivity = plan.sensitivity_of()
    found = [
        f"Adversary {named.name} sees {named.seen(plan.exposures)}{aggregation.masked(plan)}.",
        f"Sensitivity {sensitivity.model}: {sensitivity.premise}",
        f"Noise is Gaussian and fresh in every upload and broadcast; {_independent(plan)} do not depend on the data.",
    ]
    found.append(f"The number of {plan.counted} of each client is public.")
    if plan.drawn < plan.clients and sensitivity.unit != "client":
        found.append(
            f"K-random scheduling gives no amplification for a {sensitivity.unit}: the broadcast shows who took part; "
            "drawing only makes participations fewer."
        )
    if plan.drawn < plan.clients and sensitivity.unit == "client":
        found.append(
            "Against broadcast and colluders: who takes part in a round stays secret from them, and all clients are online "
            "and able to answer in every round (a federation's statement counts the draw of any other round as known)."
        )
    return [*found, *about_training(plan), *aggregation.assumptions(plan)]


def _independent(plan: Plan) -> str:
    """What the data did not decide; the first weights of a continued run are another run's last ones."""
    if plan.continues:
        return "the weights that the first of its runs began with, K and the draw of clients"
    return "initial weights, K and the draw of clients"


def about_training(plan: Plan) -> list[str]:
    """Where the run started and what the server does after the noise, for the statement."""
    found = []
    if plan.continues:
        runs = "; ".join(
            f"plan {each.plan[:16]} with {each.rounds} rounds, which ended in model {each.model[:16]}"
            for each in plan.continues
        )
        found.append(
            f"This run goes on with {'an earlier run' if len(plan.continues) == 1 else 'earlier runs'} over the same data "
            f"({runs}). Its releases and theirs add up (mu^2); the adversary may see what it sees in each of them."
        )
    public = plan.continues[0].init if plan.continues else plan.init_sha256
    if public:
        found.append(
            f"Training started from weights that are assumed to be public (file with sha256 {public[:16]}): the "
            "guarantee does not cover the data they were made from."
        )
    after = [
        *(["Adam"] if plan.server_optimiser == "adam" else []),
        *([f"momentum {plan.server_momentum:g}"] if plan.server_momentum and plan.carried_on else []),
        *([f"the mean of the last {plan.server_average} broadcasts"] if plan.server_average > 1 else []),
    ]
    if after:
        found.append(f"After the noise the server uses {' and '.join(after)}: that costs no privacy.")
    return found


def warnings(plan: Plan) -> list[str]:
    """Where the plan promises less than it seems to."""
    if not plan.noise:
        return ["No noise is added: nothing is guaranteed."]
    return [
        *_about_the_premise(plan),
        *_about_the_rule(plan),
        *_about_the_draw(plan),
        *aggregation.warnings(plan),
    ]


def about_simulating(plan: Plan) -> str | None:
    """What the owner of data should know before giving away a model that a simulation trained on them."""
    if plan.dataset == "mnist" or not plan.noise:
        return None
    return (
        f"A simulation's noise follows from its seed ({plan.seed}): anyone who knows or guesses the seed can remove it, so "
        "keep the model to yourself. To train a model you can share, use nbafl serve and nbafl join."
    )


def _about_the_premise(plan: Plan) -> Iterator[str]:
    sensitivity = plan.sensitivity_of()
    if plan.rule.warning:
        proved = [rule.name for rule in rules.table() if not rule.conditional]
        yield plan.rule.warning.format(proved=" or ".join(proved))
    largest = int(plan.client_sizes.max())
    if sensitivity.unit != "client" and plan.delta >= 1 / largest:
        one = "one of its records" if plan.person is None else "all records of one of its persons"
        yield (
            f"delta {plan.delta:g} is not below 1/m = {1 / largest:g} of the largest client: publishing {one} would "
            "satisfy it."
        )


def _about_the_rule(plan: Plan) -> Iterator[str]:
    if plan.reserve:
        yield (
            f"The noise is made for epsilon {plan.training_epsilon:.4g} {Scope.of(plan).words}; the rest of the claim is "
            "kept for noisy scores at the clients (nbafl serve --evaluate-every)."
        )
    if plan.calibration == "paper" and plan.epsilon > 1:
        yield (
            "The paper's noise formula sqrt(2 ln(1.25/delta)) is proven for epsilon below 1 only, "
            f"not {plan.epsilon:g}."
        )
    if plan.calibration == "separate":
        yield (
            "Separate calibration meets the paper's two requirements one by one; it is not a guarantee against an "
            "adversary who sees uploads and broadcasts together."
        )


def _about_the_draw(plan: Plan) -> Iterator[str]:
    if plan.drawn == plan.clients:
        return
    if plan.calibration == "paper":
        yield from _about_the_lemma(plan)
    if adversary.parse(plan.adversary) == adversary.EAVESDROPPER:
        spread = adversary.EAVESDROPPER_SPREAD
        worst = accounting.epsilon_spent(plan.release(), plan.noise_scales(), spread, plan.delta)
        shown = f"{worst:.6g}" if math.isfinite(worst) else "infinite"
        yield (
            "With K < N an eavesdropper that taps other clients in more than L rounds in all (L of each) is "
            f"stronger: adversary {spread.name}, epsilon {shown} at delta {plan.delta:g}."
        )


def _about_the_lemma(plan: Plan) -> Iterator[str]:
    yield "The K-random lemma claims an amplification that does not exist; see docs/errata.md."
    if calibration.lemma_b(plan.epsilon, plan.rounds, plan.drawn, plan.clients) is None:
        yield "The lemma's b does not exist at these N, K, T and epsilon; as printed the rule falls to sigma_D = 0."
    elif plan.noise_scales().sigma_downlink == 0:
        yield "By the lemma's condition T <= epsilon/gamma the server adds no noise (sigma_D = 0)."
