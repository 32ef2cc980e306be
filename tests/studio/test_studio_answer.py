"""The Plan page's numbers are the plan's, and its best guess is the one statistics gives."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import erf
from scipy.stats import norm
from tests.paper_setting import Plan

from nbafl.privacy.badges import percent
from nbafl.privacy.gaussian import gdp_mu
from nbafl.studio import bars, cards, meaning
from nbafl.studio.answer import answer
from nbafl.studio.bars import Axis

PLANS = [
    Plan(),
    Plan(calibration="paper", epsilon=60),
    Plan(per_round=20),
    Plan(sensitivity="gradient", epsilon=1, delta=1e-5, samples=1200),
    Plan(sensitivity="client", adversary="colluders:3", epsilon=8, delta=1e-6),
    Plan(adversary="curious-server"),
    Plan(noise=False),
    Plan(sizes=(10, 20, 30), epsilon=5),
]


def _shown(html: str) -> dict[str, float | None]:
    found = re.findall(r'data-epsilon="([^"]+)" data-value="([^"]+)"', html)
    return {name: None if value == "none" else float(value) for name, value in found}


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: str(sorted(plan.model_dump(exclude_defaults=True))))
def test_the_bars_carry_the_numbers_of_the_plan(plan: Plan) -> None:
    shown = _shown(bars.draw(answer(plan)))
    summary, paper = plan.summary(), plan.paper_rule()
    for name, entry in summary["guarantee"].items():
        assert shown[f"plan:{name}"] == entry["epsilon"]
        if plan.calibration != "paper":
            assert shown[f"paper:{name}"] == paper["guarantee"][name]["epsilon"]
        if summary["conditional"]:
            assert shown[f"clip:{name}"] == summary["unconditional"][name]["epsilon"]


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: str(sorted(plan.model_dump(exclude_defaults=True))))
def test_every_card_names_adversary_delta_and_premise(plan: Plan) -> None:
    found = answer(plan)
    assert f"δ = {cards.short(plan.delta)}" in cards.bars_caption(found)
    if plan.noise:
        headline = cards.headline(found)
        assert plan.adversary in headline
        assert f"δ = {cards.short(plan.delta)}" in headline
        assert ("if 2C/m holds" in headline) == found.summary["conditional"]
    for piece in (
        cards.scales(found),
        cards.scales_caption(found),
        cards.notices(found),
        meaning.draw(found),
    ):
        assert "None" not in piece
        assert "nan" not in piece


def test_exact_noise_keeps_its_claim_and_the_papers_rule_does_not() -> None:
    assert answer(Plan()).kept
    assert "kept conditionally" in cards.headline(answer(Plan()))
    printed = answer(Plan(calibration="paper"))
    assert not printed.kept
    assert printed.epsilon == pytest.approx(171.644, abs=1e-3)
    assert "not kept" in cards.headline(printed)
    assert "171.6" in cards.headline(printed)


@settings(derandomize=True, max_examples=40, deadline=None)
@given(epsilon=st.floats(0.05, 60), delta=st.floats(1e-9, 0.05))
def test_the_best_guess_is_that_of_a_likelihood_ratio_test(epsilon: float, delta: float) -> None:
    # Exact noise spends all of mu*, and N(0,1) against N(mu,1) is guessed right with probability Phi(mu/2).
    mu = gdp_mu(epsilon, delta)
    assert answer(Plan(epsilon=epsilon, delta=delta)).guess == pytest.approx(
        (1 + erf(mu / math.sqrt(8))) / 2, abs=1e-9
    )


def test_the_best_guess_agrees_with_simulated_attackers() -> None:
    plan = Plan(epsilon=2, delta=1e-3, adversary="curious-server", rounds=1)
    mu = 0.2 / plan.summary()["noise"]["sigma_uplink"]
    draws = np.random.default_rng(1).normal(size=400_000)
    right = np.mean(draws < mu / 2) / 2 + np.mean(draws + mu > mu / 2) / 2
    assert answer(plan).guess == pytest.approx(right, abs=0.005)  # six standard errors


def test_no_noise_means_certainty_and_no_epsilon() -> None:
    found = answer(Plan(noise=False))
    assert found.guess == 1
    assert found.epsilon is None
    assert "100%" in meaning.draw(found)
    assert "What ε and δ say" not in meaning.draw(found)
    assert "nothing is guaranteed" in cards.headline(found)


def test_epsilon_is_told_by_its_definition_and_by_what_the_best_test_detects() -> None:
    """The best test between two Gaussians a distance mu apart, with a false alarm in 1 case of 100."""
    plan = Plan(epsilon=1, delta=1e-5, samples=1000)
    found = answer(plan)
    power = float(norm.cdf(norm.ppf(0.01) + gdp_mu(1, 1e-5)))
    assert found.detected == pytest.approx(power, rel=1e-6)
    assert "= 2.72 times" in meaning.draw(found)
    assert f"detects at most {percent(power)}" in meaning.draw(found)
    assert answer(Plan(epsilon=8, delta=1e-5, samples=1000)).detected > 5 * power


def test_words_for_a_guess_get_worse_as_it_gets_better() -> None:
    words = [meaning.verdict(guess) for guess in np.linspace(0.5, 1, 200)]
    assert list(dict.fromkeys(words)) == [text for _, text in meaning.VERDICTS]


@settings(derandomize=True, max_examples=200)
@given(values=st.lists(st.floats(1e-6, 1e12), min_size=1, max_size=9))
def test_an_axis_holds_its_values_in_order(values: list[float]) -> None:
    axis = Axis.around([*values, None, 0.0])
    shares = [axis.share(value) for value in sorted(values)]
    assert all(0 < share <= 100 for share in shares)
    assert shares == sorted(shares)
    assert axis.share(None) == 100
    assert axis.share(0.0) == 0
    assert 2 <= len(axis.ticks()) <= 7


def test_a_unit_that_is_a_client_is_called_one() -> None:
    said = meaning.draw(answer(Plan(sensitivity="client")))
    assert "all data of one client" in said
    assert "one record" not in said


def test_the_plans_own_adversary_stands_beside_the_standard_ones() -> None:
    assert bars.draw(answer(Plan(adversary="colluders:2"))).count("Colluders (2)") == 1
