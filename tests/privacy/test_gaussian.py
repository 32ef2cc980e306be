"""δ(ε; μ) and its inverses against 60-digit arithmetic, dp-accounting's PLD and themselves."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st

from nbafl.errors import UsageError
from nbafl.privacy.gaussian import gdp_delta, gdp_epsilon, gdp_mu, log_gdp_delta


def exact_log_delta(epsilon: float, mu: float) -> float:
    with mpmath.workdps(80):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return float(mpmath.log(mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2)))


@pytest.mark.parametrize("mu", [1e-7, 1e-5, 1e-3, 0.03, 0.5, 0.999, 1.001, 4, 16, 163, 1000])
def test_log_delta_agrees_with_long_arithmetic(mu: float) -> None:
    for position in (-10, -3, -0.5, 0, 0.4, 2, 5.5, 6.5, 20):
        epsilon = max(0.0, mu * (position + mu / 2))
        assert log_gdp_delta(epsilon, mu)[0] == pytest.approx(exact_log_delta(epsilon, mu), abs=1e-12)


def test_reference_values() -> None:
    expected = {
        (50, 0.01): 8.02561,
        (60, 0.01): 8.9513,
        (100, 0.01): 12.0694,
        (1, 1e-5): 0.268051,
        (8, 1e-5): 1.66603,
    }
    for (epsilon, delta), mu in expected.items():
        assert gdp_mu(epsilon, delta) == pytest.approx(mu, rel=5e-6)


@given(
    log_epsilon=st.floats(math.log(1e-4), math.log(3e5)),
    log_delta=st.floats(math.log(1e-12), math.log(0.4)),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_the_three_functions_are_inverse(log_epsilon: float, log_delta: float) -> None:
    epsilon, delta = math.exp(log_epsilon), math.exp(log_delta)
    mu = gdp_mu(epsilon, delta)
    assert gdp_epsilon(mu, delta) == pytest.approx(epsilon, rel=1e-9)
    assert gdp_delta(epsilon, mu) == pytest.approx(delta, rel=1e-8)


@pytest.mark.parametrize(("mu", "epsilon"), [(0.3, 0.5), (1.0, 2.0), (3.0, 10.0)])
def test_delta_agrees_with_the_privacy_loss_distribution(mu: float, epsilon: float) -> None:
    pld = privacy_loss_distribution.from_gaussian_mechanism(1 / mu, value_discretization_interval=1e-4)
    assert gdp_delta(epsilon, mu) == pytest.approx(pld.get_delta_for_epsilon(epsilon), rel=1e-4)


def test_arrays_of_either_argument_and_the_limits() -> None:
    both = log_gdp_delta(np.array([0.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0]))
    assert both == pytest.approx([log_gdp_delta(e, m)[0] for e, m in ((0.0, 1.0), (1.0, 2.0), (2.0, 3.0))])
    assert gdp_delta(3.0, 0.0) == 0
    assert gdp_delta(3.0, math.inf) == 1
    assert gdp_epsilon(0.0, 1e-5) == 0
    assert gdp_epsilon(math.inf, 1e-5) == math.inf
    assert gdp_epsilon(0.01, 0.4) == 0  # δ(0; 0.01) is far below 0.4


@pytest.mark.parametrize("epsilon", [0, -1, math.nan, math.inf])
def test_mu_refuses_an_epsilon_no_noise_can_have(epsilon: float) -> None:
    with pytest.raises(UsageError, match="epsilon must be"):
        gdp_mu(epsilon, 0.01)


@pytest.mark.parametrize("delta", [0, 1, -0.1, 1.5, math.nan])
def test_delta_must_be_a_probability(delta: float) -> None:
    with pytest.raises(UsageError, match="delta must be"):
        gdp_mu(1.0, delta)
    with pytest.raises(UsageError, match="delta must be"):
        gdp_epsilon(1.0, delta)


def test_negative_or_undefined_arguments_are_refused() -> None:
    with pytest.raises(UsageError, match="mu must be"):
        gdp_epsilon(math.nan, 0.1)
    with pytest.raises(UsageError, match="mu must be"):
        gdp_delta(1.0, -1.0)
    with pytest.raises(UsageError, match="epsilon must be"):
        gdp_delta(-1.0, 1.0)
