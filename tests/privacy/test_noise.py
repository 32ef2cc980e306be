"""The deployment's noise: its law, its grid, its key. No seed exists; each test errs with
probability below 1e-7."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from randomgen import AESCounter
from scipy import stats

from nbafl.errors import Refused, UsageError
from nbafl.privacy import noise
from nbafl.privacy.gaussian import gdp_delta
from nbafl.privacy.noise import SecureGaussian, arithmetic_cost, grid_step, largest_coordinate, precision

ALARM = 1e-8


@pytest.mark.parametrize("spread", [2.0**10, 1500.3, 2.0**11 - 0.1, 2.0**30 * 1.37])
def test_the_draws_follow_the_normal_law(spread: float) -> None:
    draws = SecureGaussian().integers(spread, 1_000_000)
    # A uniform jitter over the cell undoes the rounding, which the test would otherwise see.
    distance = stats.kstest((draws + np.random.default_rng().random(draws.size) - 0.5) / spread, "norm")
    assert distance.pvalue > ALARM
    count = draws.size
    assert abs(draws.mean() / spread) < 6 / math.sqrt(count)
    assert abs(np.mean((draws / spread) ** 2) - 1) < 6 * math.sqrt(2 / count)
    assert abs(np.mean((draws / spread) ** 4) - 3) < 6 * math.sqrt(96 / count)


def test_each_single_integer_has_its_own_probability() -> None:
    spread, count = 2.0**10, 4_000_000
    draws = SecureGaussian().integers(spread, count)
    inner = np.arange(-3000, 3001)
    expected = count * (stats.norm.cdf((inner + 0.5) / spread) - stats.norm.cdf((inner - 0.5) / spread))
    observed = np.bincount(draws[np.abs(draws) <= 3000] + 3000, minlength=inner.size)
    rest = count - expected.sum()
    statistic = ((observed - expected) ** 2 / expected).sum() + (count - observed.sum() - rest) ** 2 / rest
    assert stats.chi2.sf(statistic, inner.size) > ALARM


def test_the_tail_is_there() -> None:
    draws = SecureGaussian().integers(2.0**30, 4_000_000) / 2.0**30
    for edge in (2.0, 3.0, 4.0):
        probability = 2 * stats.norm.sf(edge)
        hits = int((np.abs(draws) > edge).sum())
        assert stats.binomtest(hits, draws.size, probability).pvalue > ALARM


def test_neighbouring_draws_are_uncorrelated() -> None:
    draws = SecureGaussian().integers(2.0**20, 1_000_000) / 2.0**20
    for lag in (1, 2, 3, 64, noise.BATCH):
        assert abs(np.mean(draws[lag:] * draws[:-lag])) < 6 / math.sqrt(draws.size - lag)


def test_the_generator_is_aes_128_in_counter_mode() -> None:
    key = bytes(range(16))
    words = AESCounter(key=int.from_bytes(key, "little")).random_raw(8).astype("<u8").tobytes()
    blocks = b"".join(counter.to_bytes(16, "little") for counter in range(4))
    assert words == Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(blocks)


def test_two_releases_and_a_forked_child_never_share_noise() -> None:
    gaussian, vector = SecureGaussian(), np.zeros(4)
    first, second = gaussian.add(vector, 1.0, 1.0), gaussian.add(vector, 1.0, 1.0)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, gaussian.add(vector, 1.0, 1.0).tobytes())
        finally:
            os._exit(0)  # whatever happened: a second process must not go on with the suite
    os.close(write)
    os.waitpid(child, 0)
    third = np.frombuffer(os.read(read, 32))
    os.close(read)
    fourth = gaussian.add(vector, 1.0, 1.0)
    seen = np.concatenate([first, second, third, fourth])
    assert len(np.unique(seen)) == seen.size


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.floats(1e-6, 1e6), st.floats(-100, 100), st.integers(1, 40))
def test_every_release_lies_on_the_grid_whatever_the_vector(sigma: float, centre: float, size: int) -> None:
    step = grid_step(sigma)
    assert 2**30 <= sigma / step < 2**31
    assert math.frexp(step)[0] == 0.5  # a power of two
    vector = np.full(size, centre * sigma) * np.linspace(0.9, 1.1, size)
    released = SecureGaussian().add(vector, sigma, sigma) / step
    assert (released == np.rint(released)).all()


def test_low_order_bits_say_nothing_where_floats_tell_all() -> None:
    """Mironov: 1/3 + n and 2/3 + n in floats share few values; on the grid every parity is equally likely."""
    count, sigma = 200_000, 1.0
    for value in (1 / 3, 2 / 3):
        steps = SecureGaussian().add(np.full(count, value), sigma, 1.0) / grid_step(sigma)
        low = (steps.astype(np.int64) & 15).astype(int)
        assert stats.chisquare(np.bincount(low, minlength=16)).pvalue > ALARM


def test_rounding_is_paid_for_by_wider_noise() -> None:
    """sensitivity = step sqrt(d) doubles the sensitivity on the grid, so the noise must double too."""
    size, sigma = 1_000_000, 0.75
    released = SecureGaussian().add(np.zeros(size), sigma, grid_step(sigma) * math.sqrt(size))
    assert abs(released.std() / (2 * sigma) - 1) < 6 / math.sqrt(2 * size)


def test_the_cost_of_arithmetic_matters_at_large_epsilon() -> None:
    epsilon, delta = arithmetic_cost(203_530, epsilon=8)
    assert epsilon < 1e-7
    assert delta < 1e-28
    assert arithmetic_cost(203_530, epsilon=50)[1] < 1e-10
    assert arithmetic_cost(203_530, epsilon=65)[1] == pytest.approx(4e-5, rel=0.1)
    assert arithmetic_cost(203_530, epsilon=100)[1] > 1


@given(
    epsilon=st.floats(1e-3, 50),
    share=st.floats(1e-9, 0.4),
    mu=st.floats(1e-3, 30),
)
@settings(max_examples=400, deadline=None, derandomize=True)
def test_wider_noise_pays_for_what_precision_adds_to_epsilon(epsilon: float, share: float, mu: float) -> None:
    """delta(epsilon - e; mu/s) <= delta(epsilon; mu) with s = epsilon/(epsilon - e), whatever mu."""
    widening = 1 / (1 - share)
    assert gdp_delta(epsilon * (1 - share), mu / widening) <= gdp_delta(epsilon, mu) * (1 + 1e-12)


def test_precision_is_paid_for_or_refused() -> None:
    paid = precision(203_530, 400, 51, 1.0, 1e-5)
    assert paid.epsilon == pytest.approx(51 * 2 * 203_530 * 2.0**-44)
    assert paid.widening == pytest.approx(1 / (1 - 400 * paid.epsilon))
    with pytest.raises(Refused, match="epsilon 65 is too large"):
        precision(203_530, 1, 1, 65.0, 1e-5)
    with pytest.raises(Refused, match="epsilon 1e-09 is too small"):
        precision(203_530, 1, 1, 1e-9, 1e-5)


def test_a_seed_is_refused() -> None:
    with pytest.raises(Refused, match="seed must be absent, got 0"):
        SecureGaussian(seed=0)


@pytest.mark.parametrize("sigma", [1e-200, 1e-8, 1e6, 1e200])
def test_extreme_scales_follow_the_same_law(sigma: float) -> None:
    """Up to the largest coordinate the grid takes, nothing is lost to rounding or overflow."""
    count, largest = 200_000, largest_coordinate(sigma)
    assert largest / sigma > 2.0**20
    for centre in (0.0, largest, -largest):
        noise = (SecureGaussian().add(np.full(count, centre), sigma, sigma) - centre) / sigma
        assert stats.kstest(noise, "norm").pvalue > ALARM


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf, 5e-324, 1e308])
def test_no_release_without_noise(sigma: float) -> None:
    with pytest.raises(UsageError, match="sigma must be a positive number"):
        SecureGaussian().add(np.zeros(3), sigma, 1.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_what_the_grid_cannot_hold_is_refused(value: float) -> None:
    with pytest.raises(Refused, match="the vector must be finite and below"):
        SecureGaussian().add(np.array([0.0, value]), 1.0, 1.0)
