"""What all runs of a sweep cost together, against accountants that share no code with it."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom
from tests.paper_setting import Plan

import nbafl
from nbafl.continuing import price
from nbafl.privacy.adversary import parse
from nbafl.privacy.release import Earlier
from nbafl.sweeps.grid import Grid
from nbafl.sweeps.price import composed_epsilon

BASE = {
    "clients": 6,
    "samples": 50,
    "rounds": 4,
    "sensitivity": "gradient",
    "model": "softmax",
    "delta": 1e-5,
}


def mp_delta(epsilon: float, mu: float) -> mpmath.mpf:
    """delta of a mu-GDP mechanism with 40 digits, straight from the definition."""
    with mpmath.workdps(40):
        if mu == 0:
            return mpmath.mpf(0)
        cdf = mpmath.ncdf
        return cdf(-epsilon / mu + mu / 2) - mpmath.exp(epsilon) * cdf(-epsilon / mu - mu / 2)


@pytest.mark.parametrize("adversary", ["broadcast", "curious-server", "eavesdropper"])
def test_with_everyone_in_every_round_costs_add_up(adversary: str) -> None:
    plans = [Plan(**BASE, epsilon=epsilon, adversary=adversary) for epsilon in (0.5, 1.0, 3.0)]
    found = composed_epsilon(plans, parse(adversary), 1e-5)
    # each plan is calibrated to its claim, so its mu solves delta(epsilon; mu) = delta
    mus = [
        brentq(lambda mu, e=plan.epsilon: float(mp_delta(e, mu)) - 1e-5, 0.01, 5.0, xtol=1e-14)
        for plan in plans
    ]
    total = math.sqrt(sum(mu**2 for mu in mus))
    assert float(mp_delta(found, total)) == pytest.approx(1e-5, rel=1e-4)


def test_with_drawn_clients_the_price_is_that_of_independent_draws() -> None:
    plans = [Plan(**BASE, epsilon=epsilon, per_round=3, adversary="curious-server") for epsilon in (1.0, 4.0)]
    found = composed_epsilon(plans, parse("curious-server"), 1e-5)
    each = [plan.sensitivity_of().uplink[0] / plan.noise_scales().sigma_uplink[0] for plan in plans]

    def delta(epsilon: float) -> float:
        chance = binom.pmf(np.arange(5), 4, 0.5)
        return float(
            sum(
                chance[a] * chance[b] * mp_delta(epsilon, math.sqrt(a * each[0] ** 2 + b * each[1] ** 2))
                for a in range(5)
                for b in range(5)
            )
        )

    assert delta(found) <= 1e-5 * (1 + 1e-6)  # never below the truth
    assert delta(found * 0.999) > 1e-5  # and not above it by more than the grid of costs


def test_one_run_costs_what_its_plan_says_and_no_noise_costs_everything() -> None:
    plan = Plan(**BASE, epsilon=2.0, per_round=2)
    alone = composed_epsilon([plan], parse("targeted"), 1e-5)
    assert alone == pytest.approx(plan.guarantees()["targeted"], rel=1e-3)
    assert alone >= plan.guarantees()["targeted"] * (1 - 1e-9)
    bare = Plan(**BASE, noise=False)
    assert composed_epsilon([plan, bare], parse("broadcast"), 1e-5) == math.inf


@pytest.mark.parametrize("name", ["broadcast", "curious-server", "curious-server:1", "colluders:1"])
def test_one_run_under_secure_aggregation_costs_what_its_own_statement_says(name: str) -> None:
    plan = Plan(
        **{**BASE, "clients": 10}, features="raw", epsilon=1.0, aggregation="secure", adversary="curious-server:1",
        min_answers=7,
    )  # fmt: skip
    alone = plan.epsilons(plan.release(), plan.noise_scales(), plan.secure_sums()).get(parse(name).key)
    if alone is None:  # one that its statement does not list
        alone = plan.secure_sums().epsilon(parse(name), plan.delta)
    assert composed_epsilon([plan], parse(name), plan.delta) == pytest.approx(alone, rel=1e-9)
    twice = composed_epsilon([plan, plan.with_fields(seed=1)], parse(name), plan.delta)
    cost = 2 * plan.secure_sums().cost(parse(name))
    assert twice == pytest.approx(float(mp_epsilon(math.sqrt(cost), plan.delta)), rel=1e-4)


def test_a_run_that_goes_on_costs_all_of_its_runs_and_their_common_start_once() -> None:
    first = nbafl.Plan(**BASE, features="raw", epsilon=1.0, adversary="eavesdropper")
    others = [parse("eavesdropper")]
    own = Earlier(first.digest(), "ab" * 32, first.rounds, 1, price(first, others, None))
    start = {"init": "model.safetensors", "init_sha256": "ab" * 32, "continues": (own,), "epsilon": 2.0}
    second, third = (nbafl.Plan(**{**first.model_dump(), **start, "lr": lr}) for lr in (0.1, 0.2))
    assert composed_epsilon([second], others[0], 1e-5) == pytest.approx(2.0, rel=1e-6)
    both = composed_epsilon([second, third], others[0], 1e-5)
    apart = mu_of(2.0) ** 2 - mu_of(1.0) ** 2
    assert both == pytest.approx(float(mp_epsilon(math.sqrt(mu_of(1.0) ** 2 + 2 * apart), 1e-5)), rel=1e-4)
    Grid({**second.model_dump(), "continues": (own,)}, {"lr": (0.1, 0.2)}, (0,), None).to_dict()


def mu_of(epsilon: float) -> float:
    return brentq(lambda mu: float(mp_delta(epsilon, mu)) - 1e-5, 0.01, 5.0, xtol=1e-14)


def mp_epsilon(mu: float, delta: float) -> float:
    return brentq(lambda epsilon: float(mp_delta(epsilon, mu)) - delta, 0.0, 50.0, xtol=1e-12)
