"""What a plan's epsilon rests on, and what a careful reader should know before relying on it, as sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nbafl.privacy import accounting, adversary, calibration

if TYPE_CHECKING:
    from nbafl.plan import Plan


def assumptions(plan: Plan) -> list[str]:
    """Everything an epsilon of this plan rests on."""
    named = adversary.parse(plan.adversary)
    sensitivity = plan.sensitivity_of()
    found = [
        f"Adversary {named.name} sees {named.seen(plan.exposures)}.",
        f"Sensitivity {sensitivity.model}: {sensitivity.premise}",
        "Noise is Gaussian and fresh in every upload and broadcast; initial weights, K and the draw of clients "
        "do not depend on the data.",
    ]
    if plan.weighting == "records":
        found.append("The number of records of each client is public.")
    if plan.drawn < plan.clients and sensitivity.unit == "record":
        found.append(
            "K-random scheduling gives no amplification for a record: who took part shows in the broadcast; "
            "it only makes participations fewer."
        )
    if plan.drawn < plan.clients and sensitivity.unit == "client":
        found.append("Against broadcast and colluders: who takes part in a round stays secret from them.")
    return found


def warnings(plan: Plan) -> list[str]:
    """Where the plan promises less than it seems to."""
    if not plan.noise:
        return ["No noise is added: nothing is guaranteed against anybody."]
    return [*_about_the_premise(plan), *_about_the_rule(plan), *_about_the_draw(plan)]


def about_simulating(plan: Plan) -> str | None:
    """What the owner of data should know before giving away a model that a simulation trained on them."""
    if plan.dataset == "mnist" or not plan.noise:
        return None
    return (
        f"A simulation's noise follows from its seed ({plan.seed}), so whoever has or guesses that can take it away: what "
        "it trains is for you to look at. Train a model to give away with nbafl serve and nbafl join."
    )


def _about_the_premise(plan: Plan) -> Iterator[str]:
    sensitivity = plan.sensitivity_of()
    if sensitivity.conditional:
        yield (
            "The sensitivity 2C/m is conditional: it does not hold for general models. The unconditional values rest "
            "on clipping alone (2C); choose sensitivity gradient, proximal or client for a guarantee that holds."
        )
    smallest = int(plan.client_sizes.min())
    if sensitivity.unit == "record" and plan.delta >= 1 / smallest:
        yield f"delta {plan.delta:g} is not below 1/m = {1 / smallest:g}: releasing one record outright would pass."


def _about_the_rule(plan: Plan) -> Iterator[str]:
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
    if not plan.noise_scales().sigma_uplink.any():
        yield (
            f"Against {plan.adversary} alone the least noise is all at the server: uploads carry none, so nothing "
            "holds against anybody who sees one."
        )


def _about_the_draw(plan: Plan) -> Iterator[str]:
    if plan.drawn == plan.clients:
        return
    if plan.calibration == "paper":
        yield from _about_the_lemma(plan)
    if plan.adversary == "eavesdropper":
        spread = adversary.parse("eavesdropper-spread")
        worst = accounting.epsilon_spent(plan.release(), plan.noise_scales(), spread, plan.delta)
        shown = f"{worst:.6g}" if math.isfinite(worst) else "infinite"
        yield (
            "With K < N an eavesdropper that taps other clients in more than L rounds in all (L of each) is "
            f"stronger: adversary eavesdropper-spread, epsilon {shown} at delta {plan.delta:g}."
        )


def _about_the_lemma(plan: Plan) -> Iterator[str]:
    yield "The K-random lemma claims an amplification that does not exist; see docs/errata.md."
    if calibration.lemma_b(plan.epsilon, plan.rounds, plan.drawn, plan.clients) is None:
        yield "The lemma's b does not exist at these N, K, T and epsilon; as printed the rule falls to sigma_D = 0."
    elif plan.noise_scales().sigma_downlink == 0:
        yield "By the lemma's condition T <= epsilon/gamma the server adds no noise (sigma_D = 0)."
