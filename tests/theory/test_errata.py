"""What docs/errata.md says about the paper's proofs, each shown by a computation."""

from __future__ import annotations

import math
from itertools import combinations, pairwise

import numpy as np
import pytest
import sympy
from scipy.special import gammaln

from nbafl.theory.assumptions import Constants, TheoremSetting
from nbafl.theory.bounds import finite_population, lemma3, lemma3_random, theorem2_form

PAPER_DIMENSION = 784 * 256 + 256 + 256 * 10 + 10


def test_the_norm_of_the_noise_grows_with_the_dimension_not_with_the_clients() -> None:
    """Appendix E: E|n| = sigma sqrt(2N/pi) and E|n|^2 = sigma^2 N, at N = 50 and the paper's network."""
    d, clients = PAPER_DIMENSION, 50
    mean_norm = math.sqrt(2) * math.exp(gammaln((d + 1) / 2) - gammaln(d / 2))  # of a chi variable
    assert d == 203_530
    assert mean_norm / math.sqrt(2 * clients / math.pi) == pytest.approx(80, rel=0.01)
    assert d / clients == pytest.approx(4070, rel=0.001)
    sample = np.random.default_rng(0).normal(size=(200, 5000))
    assert np.linalg.norm(sample, axis=1).mean() == pytest.approx(
        math.sqrt(2) * math.exp(gammaln(2500.5) - gammaln(2500)), rel=0.01
    )


def test_no_constant_b_exists_when_clients_differ() -> None:
    """Lemma 2: B(w)^2 = 1 + mean eps_i^2 / |grad F|^2 is unbounded on the way to the optimum."""
    centres = np.array([-1.0, 1.0])  # F_i = (w - c_i)^2 / 2, optimum at 0

    def dissimilarity(w: float) -> float:
        gradients = w - centres
        return math.sqrt(np.mean(gradients**2) / gradients.mean() ** 2)

    values = [dissimilarity(10.0**-k) for k in range(6)]
    assert all(later > 5 * earlier for earlier, later in pairwise(values[1:]))


def test_noise_enters_with_coefficient_one() -> None:
    """Lemma 3 prints lambda_1 = 1/mu + rho B/mu: broken by one draw of noise along the gradient."""
    rho, mu, w, noise = 1.0, 50.0, 1.0, 0.1
    after = mu * w / (mu + rho) + noise  # exact proximal solution of F = rho w^2 / 2, plus the noise
    increment = rho / 2 * (after**2 - w**2)
    constants = Constants(rho, 1.0, rho, 1.0, 0.0, 1.0)
    assert increment > lemma3(constants, mu).expected(rho * w, noise, noise**2)
    mended = lemma3(constants, mu).lambda2 * w**2 + (1 + rho / mu) * noise * w + rho / 2 * noise**2
    assert increment <= mended


def test_polyak_of_every_client_is_not_polyak_of_their_mean() -> None:
    """Assumption 1.2 is stated for F_i and used for F: each l is 1 here, that of the mean a thousandth."""
    angle = 0.06
    directions = np.array([[1.0, 0.0], [math.cos(angle), math.sin(angle)]])
    for a in directions:  # F_i = (a'w)^2 / 2 has |grad F_i|^2 = 2 F_i for unit a
        w = np.random.default_rng(1).normal(size=2)
        gradient = a * (a @ w)
        assert gradient @ gradient == pytest.approx(2 * 0.5 * (a @ w) ** 2)
    mean = sum(np.outer(a, a) for a in directions) / 2
    assert np.linalg.eigvalsh(mean).min() < 1e-3


def test_the_appendix_flips_the_sign_of_kappa() -> None:
    """kappa with P - 1 makes the noise term of Theorem 2 negative; the theorem itself has 1 - P."""
    constants = Constants(1.4, 0.4, 0.05, 1.3, 0.4, 2.3)
    form, _ = theorem2_form(TheoremSetting(50, 50, 25, 1, 100, 60, 0.01, 6.0), constants)
    assert form is not None
    assert form.kappa1 > 0
    appendix = form.kappa1 * (1 - form.contraction) / (form.contraction - 1)
    assert appendix == pytest.approx(-form.kappa1)


def test_the_terms_of_theorem_3_that_its_proof_does_not_give() -> None:
    """Expanding the step before alpha: alpha_2 as printed, but alpha_1 = 1 + 2 rho B/mu and alpha_0 = rho."""
    rho, b, mu, k, n, g, noise = sympy.symbols("rho B mu K N g n", positive=True)
    root = sympy.sqrt(k)
    apart = noise + b * g / (mu * root)
    apart_square = noise**2 + b**2 * g**2 / (k * mu**2)
    quiet = (-1 / mu + rho * b / mu**2 + rho * b**2 / (2 * mu**2)) * g**2
    step = sympy.expand(quiet + (g + 2 * rho * b * g / mu) * apart + rho * apart_square)
    values = {rho: 1.7, b: 1.2, mu: 30.0, k: 20, n: 50}
    printed = lemma3_random(Constants(1.7, 1.0, 0.1, 1.2, 0.0, 1.0), 30.0, 50, 20)
    assert float(step.coeff(g, 2).coeff(noise, 0).subs(values)) == pytest.approx(printed.lambda2)
    extra1 = printed.lambda1 - float(step.coeff(g, 1).coeff(noise, 1).subs(values))
    extra0 = printed.lambda0 - float(step.coeff(g, 0).coeff(noise, 2).subs(values))
    assert extra1 == pytest.approx(2 * 1.7 * 1.2 * math.sqrt(20) / (30 * 50))
    assert extra0 == pytest.approx(2 * 1.7 * 20 / 50)


def test_a_mean_of_k_drawn_clients_has_the_finite_population_factor() -> None:
    """Appendix G bounds the draw's variance by (1/K) mean |w_i|^2, which does not vanish at K = N."""
    points = np.random.default_rng(4).normal(size=(6, 3))
    centre = points.mean(0)
    population = np.mean(np.sum((points - centre) ** 2, axis=1))
    for drawn in range(1, 7):
        means = [points[list(chosen)].mean(0) for chosen in combinations(range(6), drawn)]
        variance = np.mean(np.sum((np.array(means) - centre) ** 2, axis=1))
        assert variance == pytest.approx(finite_population(6, drawn) * population, abs=1e-12)
