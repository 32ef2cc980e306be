"""Theorems 2 and 3 as printed, against the recursions of their proofs unrolled in 40-digit arithmetic."""

from __future__ import annotations

import dataclasses
import math

import mpmath as mp
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from nbafl.errors import UsageError
from nbafl.theory.assumptions import Constants, TheoremSetting
from nbafl.theory.bounds import Theorem2, lemma3, lemma3_random, printed, theorem2, theorem2_form, theorem3

mp.mp.dps = 40
FAIR = settings(max_examples=150, derandomize=True, deadline=None)


@st.composite
def problems(draw: st.DrawFn, random_scheduling: bool = False) -> tuple[TheoremSetting, Constants]:
    """Constants and settings inside the domain of Theorem 2 (or 3)."""
    rho = draw(st.floats(0.1, 20))
    dissimilarity = draw(st.floats(1, 3))
    clients = draw(st.integers(20, 200))
    per_round = draw(st.integers(16, clients)) if random_scheduling else clients
    exposures = draw(st.integers(1, 3))
    share = 1 - dissimilarity / math.sqrt(per_round) if random_scheduling else 1.0
    factor = 4.0 if random_scheduling else 1.0  # rho B^2 (1/K + 2/sqrt(K)) adds less than that
    least_mu = factor * rho * (dissimilarity + dissimilarity**2) / share
    constants = Constants(
        rho=rho,
        beta=draw(st.floats(0.01, 10)),
        polyak=rho * draw(st.floats(1e-3, 1)),
        dissimilarity=dissimilarity,
        divergence=draw(st.floats(0, 3)),
        initial_gap=draw(st.floats(0.01, 50)),
    )
    rounds = draw(st.integers(math.floor(exposures * math.sqrt(clients)) + 1, 150))
    setting = TheoremSetting(
        clients=clients,
        per_round=per_round,
        rounds=rounds,
        exposures=exposures,
        samples=draw(st.integers(1, 2000)),
        epsilon=rounds * draw(st.floats(1e-3, 0.05)) if random_scheduling else draw(st.floats(0.1, 200)),
        delta=draw(st.floats(1e-8, 0.2)),
        mu=least_mu * draw(st.floats(1.01, 5)),
    )
    return setting, constants


def unrolled(factor: mp.mpf, first: mp.mpf, noise: mp.mpf, rounds: int) -> mp.mpf:
    """gap <- factor gap + noise, T times: the last step of both proofs before the geometric sum."""
    gap = first
    for _ in range(rounds):
        gap = factor * gap + noise
    return gap


@FAIR
@given(problems())
def test_theorem_2_is_its_recursion(problem: tuple[TheoremSetting, Constants]) -> None:
    s, k = problem
    rho, b, mu = mp.mpf(k.rho), mp.mpf(k.dissimilarity), mp.mpf(s.mu)
    c = mp.sqrt(2 * mp.log(mp.mpf(1.25) / s.delta))
    downlink = mp.mpf(1) / (s.samples * s.clients)  # the theorem's own Delta s_D, without 2C
    norm = downlink * s.rounds * c / s.epsilon * mp.sqrt(2 * s.clients / mp.pi)
    square = downlink**2 * s.rounds**2 * c**2 * s.clients / mp.mpf(s.epsilon) ** 2
    factor = 1 + 2 * k.polyak * (-1 / mu + rho * b / mu**2 + rho * b**2 / (2 * mu**2))
    noise = (1 / mu + rho * b / mu) * k.beta * norm + rho / 2 * square
    expected = unrolled(factor, mp.mpf(k.initial_gap), noise, s.rounds)
    assert theorem2(s, k).value == pytest.approx(float(expected), rel=1e-7)
    assert printed(s, k) == theorem2(s, k)


@FAIR
@given(problems(random_scheduling=True))
def test_theorem_3_is_its_recursion(problem: tuple[TheoremSetting, Constants]) -> None:
    s, k = problem
    rho, b, mu, n, drawn = (mp.mpf(v) for v in (k.rho, k.dissimilarity, s.mu, s.clients, s.per_round))
    c = mp.sqrt(2 * mp.log(mp.mpf(1.25) / s.delta))
    log = mp.log(1 - n / drawn + n / drawn * mp.exp(-mp.mpf(s.epsilon) / s.rounds))
    gamma = -mp.log(1 - drawn / n + drawn / n * mp.exp(-s.epsilon / (s.exposures * mp.sqrt(drawn))))
    value = theorem3(s, k)
    if s.rounds <= s.epsilon / gamma:
        assert value.value is None
        assert "eps/gamma" in (value.reason or "")
        return
    root = mp.sqrt(drawn)
    alpha2 = (rho * b**2 * (mp.mpf(1) / 2 + 1 / drawn + 2 / root) + rho * b + mu * b / root - mu) / mu**2
    norm = -c / (s.samples * drawn * log) * mp.sqrt(2 / mp.pi)
    square = (c / (s.samples * drawn * log)) ** 2
    alpha1, alpha0 = 1 + 2 * rho * b / mu + 2 * rho * b * root / (mu * n), 2 * rho * drawn / n + rho
    noise = alpha1 * k.beta * norm + alpha0 * square
    expected = unrolled(1 + 2 * k.polyak * alpha2, mp.mpf(k.initial_gap), noise, s.rounds)
    assert value.value == pytest.approx(float(expected), rel=1e-7)


def second_derivative(form: Theorem2, rounds: int) -> float:
    """h''(T) as the equation after Theorem 2 prints it; the paper reads convexity in T off its sign."""
    decay, log = form.contraction**rounds, math.log(form.contraction)
    noise = form.kappa1 * rounds / form.epsilon + form.kappa0 * rounds**2 / form.epsilon**2
    slope = form.kappa1 / form.epsilon + 2 * form.kappa0 * rounds / form.epsilon**2
    curvature = 2 * form.kappa0 / form.epsilon**2
    return (form.initial_gap - noise) * decay * log**2 - 2 * slope * decay * log + curvature * (1 - decay)


@FAIR
@given(problems())
def test_second_derivative_is_the_derivative_of_the_derivative(
    problem: tuple[TheoremSetting, Constants],
) -> None:
    form, reason = theorem2_form(*problem)
    assert reason is None
    assert form is not None
    rounds = problem[0].rounds

    def h(t: mp.mpf) -> mp.mpf:
        noise = form.kappa1 * t / form.epsilon + form.kappa0 * t**2 / mp.mpf(form.epsilon) ** 2
        decay = mp.mpf(form.contraction) ** t
        return decay * form.initial_gap + noise * (1 - decay)

    assert second_derivative(form, rounds) == pytest.approx(float(mp.diff(h, rounds, 2)), rel=1e-6)


def test_lemma_3_is_the_appendix_at_theta_zero() -> None:
    rho, b, mu, bar, theta = sympy.symbols("rho B mu mubar theta", positive=True)
    general2 = (
        -1 / mu + b / mu * (rho * (1 + theta) / bar + theta) + rho * b**2 * (1 + theta) ** 2 / (2 * bar**2)
    )
    general1 = 1 / mu + rho * b * (1 + theta) / bar
    values = {rho: 2.5, b: 1.3, mu: 11.0, bar: 11.0, theta: 0}
    increment = lemma3(Constants(2.5, 1, 0.1, 1.3, 0, 1), 11.0)
    assert increment.lambda2 == pytest.approx(float(general2.subs(values)), rel=1e-12)
    assert increment.lambda1 == pytest.approx(float(general1.subs(values)), rel=1e-12)
    assert increment.expected(3, 2, 5) == pytest.approx(
        increment.lambda2 * 9 + increment.lambda1 * 6 + 1.25 * 5, rel=1e-12
    )


def test_at_all_clients_theorem_3_does_not_become_theorem_2() -> None:
    """The finite-population factor is missing: at K = N drawing changes nothing, yet Q differs from P."""
    constants = Constants(1.0, 0.5, 0.05, 1.2, 0.3, 2.0)
    everyone, drawn = lemma3(constants, 20.0), lemma3_random(constants, 20.0, 50, 50)
    assert drawn.lambda2 > everyone.lambda2 + 1e-3


BASE = TheoremSetting(
    clients=50, per_round=50, rounds=25, exposures=1, samples=100, epsilon=60, delta=0.01, mu=10
)
GRANTED = Constants(rho=1.5, beta=0.5, polyak=0.05, dissimilarity=1.3, divergence=0.4, initial_gap=2.3)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"mu": 0.0}, "mu = 0"),
        ({"mu": 0.01}, "lambda_2"),
        ({"rounds": 7}, r"L sqrt(N) = 7.071"),
        ({"per_round": 20, "mu": 0.0}, "mu = 0"),
        ({"per_round": 20, "mu": 5.0}, "alpha_2"),
        ({"per_round": 20, "mu": 60.0}, "logarithm"),
        ({"per_round": 20, "mu": 60.0, "rounds": 12, "epsilon": 5.0}, "eps/gamma = 15.9"),
    ],
)
def test_a_violated_domain_is_named(changes: dict[str, float], named: str) -> None:
    value = printed(dataclasses.replace(BASE, **changes), GRANTED)
    assert value.value is None
    assert named in (value.reason or "")
    assert value.as_json() == {"value": None, "reason": value.reason}


def test_a_contraction_outside_zero_one_is_named() -> None:
    absurd = dataclasses.replace(GRANTED, polyak=50.0)
    assert "not in (0, 1)" in (printed(BASE, absurd).reason or "")


def test_the_papers_own_setting_has_no_domain_for_theorem_3() -> None:
    """N=50, K=20, T=25 and every epsilon of figure 4: the logarithm's argument is negative."""
    for epsilon in (50, 60, 100):
        setting = dataclasses.replace(BASE, per_round=20, epsilon=epsilon, mu=60.0)
        assert "logarithm" in (printed(setting, GRANTED).reason or "")


@pytest.mark.parametrize(
    ("field", "value"),
    [("clients", 0), ("per_round", 51), ("epsilon", 0.0), ("delta", 1.0), ("mu", -1.0), ("rounds", 0)],
)
def test_an_impossible_setting_is_refused(field: str, value: float) -> None:
    with pytest.raises(UsageError, match=field):
        dataclasses.replace(BASE, **{field: value})


@pytest.mark.parametrize(("field", "value"), [("rho", 0.0), ("dissimilarity", 0.9), ("beta", math.nan)])
def test_impossible_constants_are_refused(field: str, value: float) -> None:
    with pytest.raises(UsageError, match=field):
        dataclasses.replace(GRANTED, **{field: value})
