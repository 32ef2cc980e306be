"""Lower bounds on epsilon: they hold for mechanisms whose epsilon is known, and come close to it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nbafl.audit.bounds import Outcomes, ceiling, distribution_free, gaussian_mu, looks_gaussian
from nbafl.privacy.gaussian import gdp_epsilon


def gaussian_outcomes(mu: float, trials: int, seed: int, factor: float = 1.0) -> Outcomes:
    """Scores of an attacker who expects a distance mu where it really is factor·mu."""
    random = np.random.default_rng(seed)
    null, other = (side * factor * mu / 2 + random.normal(size=trials) for side in (-1, 1))
    information = np.full(trials, mu**2)
    return Outcomes((null, other), (information, information))


def answers(epsilon: float, trials: int, seed: int) -> Outcomes:
    """Randomised response: a bit is told truly with probability e^epsilon/(1 + e^epsilon), which is epsilon-DP."""
    random = np.random.default_rng(seed)
    truth = 1 / (1 + math.exp(-epsilon))
    null, other = (np.where(random.random(trials) < truth, side, -side).astype(float) for side in (-1, 1))
    return Outcomes((null, other), (np.ones(trials), np.ones(trials)))


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 5.0])
def test_randomised_response_is_bounded_by_its_epsilon_and_nearly_attains_it(epsilon: float) -> None:
    found = [distribution_free(answers(epsilon, 20_000, seed), 0.0, 1 - 1e-8) for seed in range(20)]
    assert max(found) <= epsilon
    assert distribution_free(answers(epsilon, 300_000, 0), 0.0, 0.95) > 0.93 * epsilon


@pytest.mark.parametrize("mu", [0.268, 1.7, 8.0256])
def test_gaussian_releases_are_bounded_by_their_mu_and_nearly_attain_it(mu: float) -> None:
    found = [gaussian_mu(gaussian_outcomes(mu, 20_000, seed), 0.95) for seed in range(30)]
    assert max(found) <= 1
    assert min(found) > 1 - 15 / math.sqrt(20_000) * max(1, 1 / mu)
    for seed in range(20):
        outcomes = gaussian_outcomes(mu, 20_000, seed)
        assert distribution_free(outcomes, 0.01, 1 - 1e-7) <= gdp_epsilon(mu, 0.01)


def test_a_mechanism_that_leaks_twice_as_much_is_seen() -> None:
    assert 1.95 < gaussian_mu(gaussian_outcomes(1.0, 100_000, 0, factor=2.0), 0.95) < 2


def test_participations_of_different_number_are_fitted_together() -> None:
    random = np.random.default_rng(0)
    information = random.integers(0, 6, size=(2, 50_000)).astype(float)
    noise = random.normal(size=(2, 50_000)) * (information > 0)
    scores = [side * np.sqrt(i) / 2 + n for side, i, n in zip((-1, 1), information, noise, strict=True)]
    found = gaussian_mu(Outcomes((scores[0], scores[1]), (information[0], information[1])), 0.95)
    assert 0.95 < found <= 1


def test_scores_that_are_not_gaussian_only_count() -> None:
    random = np.random.default_rng(0)
    null, other = (random.laplace(side, 0.2, size=50_000) for side in (-1, 1))
    outcomes = Outcomes((null, other), (np.ones(50_000), np.ones(50_000)))
    assert not looks_gaussian(outcomes)
    assert looks_gaussian(gaussian_outcomes(3.0, 50_000, 1))
    # One in 300 guesses is wrong, so at most z(1/300)·2 can come of counting; mean over spread would say 7.
    assert 4.5 < gaussian_mu(outcomes, 0.95) < 5.6


def test_perfect_attacks_reach_the_ceiling_and_no_further() -> None:
    trials = 125_000
    sure = Outcomes((np.full(trials, -9.0), np.full(trials, 9.0)), (np.ones(trials), np.ones(trials)))
    assert distribution_free(sure, 0.01, 0.95) == pytest.approx(ceiling(trials, 0.01, 0.95))
    assert ceiling(1_000_000, 0.01, 0.95) == pytest.approx(12.5, abs=0.15)
    # 125,000 runs without an error prove mu > 8.0256, the mu of epsilon 50 at delta 0.01.
    assert gaussian_mu(sure, 0.95) > 8.0256


def test_guesses_without_any_skill_prove_nothing() -> None:
    random = np.random.default_rng(0)
    outcomes = Outcomes(
        (random.normal(size=20_000), random.normal(size=20_000)), (np.ones(20_000), np.ones(20_000))
    )
    assert distribution_free(outcomes, 1e-5, 0.95) < 0.05
    assert gaussian_mu(outcomes, 0.95) == 0
