"""Noise on integers: the theorem against exact divergences, the sampler against its law, calibration against inversion."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from scipy.special import logsumexp, ndtr, ndtri
from scipy.stats import chi2

from nbafl.errors import UsageError
from nbafl.privacy import integers
from nbafl.privacy.gaussian import gdp_delta
from nbafl.privacy.integers import ROUNDING, Grid, IntegerSums
from nbafl.privacy.noise import SecureGaussian


def sums(
    dimension: int = 1, rounds: int = 1, clients: int = 3, delta: float = 1.0, weight: float = 1.0
) -> IntegerSums:
    return IntegerSums(np.full(clients, weight), np.full(clients, delta), 1.0, dimension, rounds)


# --- (1) exact convolutions -----------------------------------------------------------------------------------------


def log_law(spread: float, honest: int) -> tuple[np.ndarray, np.ndarray]:
    """(integers, log probabilities) of the sum of `honest` draws of D(s), convolved exactly."""
    reach = int(14 * spread)
    support = np.arange(-reach, reach + 1)
    weights = np.exp(-(support**2) / (2 * spread**2))
    one = weights / weights.sum()
    total = one
    for _ in range(honest - 1):
        total = np.convolve(total, one)
    half = len(total) // 2
    with np.errstate(divide="ignore"):
        return np.arange(-half, half + 1), np.log(total)


def divergence(log_p: np.ndarray, log_q: np.ndarray, epsilon: float) -> float:
    """The hockey-stick divergence sum max(0, p - e^epsilon q)."""
    with np.errstate(invalid="ignore"):
        more = log_p > log_q + epsilon
    return float(np.sum(np.exp(log_p[more]) - np.exp(log_q[more] + epsilon)))


def exact_delta(spread: float, honest: int, shifts: tuple[int, ...], epsilon: float) -> float:
    """delta(epsilon) of the sum's law against itself moved by integers, one coordinate each; both directions."""
    _, law = log_law(spread, honest)
    log_p, log_q = np.zeros(1), np.zeros(1)
    for shift in shifts:
        first, second = np.full(len(law) + shift, -np.inf), np.full(len(law) + shift, -np.inf)
        first[: len(law)], second[shift:] = law, law
        log_p, log_q = np.add.outer(log_p, first).ravel(), np.add.outer(log_q, second).ravel()
    return divergence(log_p, log_q, epsilon)


def bound(spread: float, honest: int, moved: float, dimension: int, epsilon: float) -> float:
    """The theorem's: math.md (9.1) and (9.2) for one round, with Delta/gamma = `moved` before rounding."""
    of = sums(dimension, delta=moved)
    return gdp_delta(epsilon, math.sqrt(of.cost(Grid(1.0, spread, 32), honest)))


SETTINGS = list(itertools.product((3.0, 3.7, 6.0), (1, 2, 3), (0.0, 0.3, 1.0, 2.0)))


def check_theorem(dimension: int) -> float:
    """The worst ratio of exact divergence to bound, half-integer inputs included: they round apart by one more step."""
    worst = 0.0
    for spread, honest, epsilon in SETTINGS:
        for shift in (1, 2, 4) if dimension == 1 else (1, 2):
            # u and u' half a step either side of a rounding edge: distance (shift - 1) + almost 0 before rounding
            before = math.sqrt(dimension) * max(1e-9, shift - 1)
            exact = exact_delta(spread, honest, (shift,) * dimension, epsilon)
            claimed = bound(spread, honest, before, dimension, epsilon)
            worst = max(worst, exact / max(claimed, 1e-300))
    return worst


@pytest.mark.parametrize("dimension", [1, 2])
def test_exact_divergence_is_at_most_the_bound(dimension: int) -> None:
    assert 0.8 < check_theorem(dimension) <= 1 + 1e-9


def test_the_four_and_the_root_of_d_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_four(self: IntegerSums, grid: Grid, honest: int) -> float:
        return self.reach(grid.step) ** 2 / (honest * grid.spread**2)

    def without_root(self: IntegerSums, step: float) -> float:
        return float(np.max(self.weights * self.sensitivities / step))

    with monkeypatch.context() as planted:
        planted.setattr(IntegerSums, "cost", without_four)
        assert check_theorem(1) > 1.001
    with monkeypatch.context() as planted:
        planted.setattr(IntegerSums, "reach", without_root)
        assert check_theorem(1) > 1.001


def test_lemma_b_holds_at_every_integer() -> None:
    """In 50 digits at random points: a sum of two discrete Gaussians is nearly one."""
    source = np.random.default_rng(5)
    with mpmath.workdps(50):

        def weight(distance: mpmath.mpf, spread: mpmath.mpf) -> mpmath.mpf:
            return mpmath.exp(-(distance**2) / (2 * spread**2))

        def norm(spread: mpmath.mpf) -> mpmath.mpf:
            return mpmath.fsum(weight(mpmath.mpf(k), spread) for k in range(-90, 91))

        def xi(spread: mpmath.mpf) -> mpmath.mpf:
            return 2 * mpmath.exp(-2 * mpmath.pi**2 * spread**2) * mpmath.mpf("1.0001")

        for value in source.integers(-12, 12, 3).tolist():
            first, second = (mpmath.mpf(float(each)) for each in source.uniform(3, 4, 2))
            both = mpmath.sqrt(first**2 + second**2)
            found = mpmath.fsum(weight(k, first) * weight(value - k, second) for k in range(-70, 71))
            found /= norm(first) * norm(second)
            error, target = xi(first * second / both), weight(value, both) / norm(both)
            assert (1 - error) / (1 + error) <= found / target <= (1 + error) / (1 - error)


def test_lemma_a_holds_at_every_integer() -> None:
    """A discrete Gaussian around a continuous one, by trapezoids; r = 1 makes the error, 5e-9, large enough to see."""
    inner, outer, step = 1.0, 3.0, 1 / 64
    whole = math.hypot(inner, outer)
    places, lattice = np.arange(-40, 40, step), np.arange(-90, 91)
    density = np.exp(-(places**2) / (2 * outer**2)) / (outer * math.sqrt(2 * math.pi))
    norms = np.exp(-((lattice[:, None] - places) ** 2) / (2 * inner**2)).sum(axis=0)
    error = 2 * math.exp(-2 * math.pi**2 * inner**2) * 1.0001
    for value in range(-6, 7):
        found = step * float(np.sum(density * np.exp(-((value - places) ** 2) / (2 * inner**2)) / norms))
        target = math.exp(-(value**2) / (2 * whole**2)) / np.exp(-(lattice**2) / (2 * whole**2)).sum()
        assert 1 / (1 + error) - 1e-13 <= found / target <= 1 / (1 - error) + 1e-13


def test_a_sum_modulo_2_to_the_b_tells_no_more() -> None:
    """Wrapping around is post-processing: the divergence of the wrapped laws is at most that of the laws."""
    support, law = log_law(6.0, 2)
    modulus = 32
    for shift in (1, 3):
        wrapped = [
            np.array([logsumexp(law[(support + move) % modulus == value]) for value in range(modulus)])
            for move in (0, shift)
        ]
        for epsilon in (0.0, 0.2):
            assert divergence(wrapped[0], wrapped[1], epsilon) <= bound(6.0, 2, shift, 1, epsilon)


def test_leaving_out_one_clients_noise_breaks_the_bound() -> None:
    """What a plan for H honest clients claims is false when one of them adds none."""
    broken = [
        exact_delta(spread, honest - 1, (4,), 0.3) > bound(spread, honest, 3.0, 1, 0.3) * 1.01
        for spread in (3.0, 4.0)
        for honest in (2, 3)
    ]
    assert all(broken)


# --- (2) the sampler ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [2.0**10, 2.0**18.87, 2.0**26])
def test_draws_follow_the_discrete_gaussian(spread: float) -> None:
    """Chi-squared over 64 cells of equal chance; false alarm below 1e-7."""
    draws = SecureGaussian().integers(spread, 400_000)
    edges = np.round(spread * ndtri(np.arange(1, 64) / 64)).astype(np.int64)
    counts = np.histogram(draws, bins=np.r_[-(2**62), edges, 2**62])[0]
    expected = np.diff(np.r_[0.0, ndtr((edges - 0.5) / spread), 1.0]) * len(draws)
    statistic = float(np.sum((counts - expected) ** 2 / expected))
    assert statistic < chi2.isf(1e-7, 63)
    assert abs(draws.mean()) < 6 * spread / math.sqrt(len(draws))


@pytest.mark.parametrize("spread", [0.0, 3.0, 1023.9, float("nan"), 2.0**41])
def test_spreads_the_sampler_is_not_made_for_are_refused(spread: float) -> None:
    with pytest.raises(UsageError, match="spread must be"):
        SecureGaussian().integers(spread, 4)


# --- calibration ----------------------------------------------------------------------------------------------------


def test_reference_grids() -> None:
    """The plan of the private preset at N = 50: gamma = 2^-26, s = 2^18.8, and what rounding costs."""
    for dimension, price in ((2_570, 0.0012), (203_530, 0.0101)):
        of = IntegerSums(np.ones(50), np.full(50, 6.7e-4), 0.4, dimension, 400)
        grid = of.calibrate(1.0, 1e-5, 50)
        assert (grid.step, grid.bits) == (2.0**-26, 32)
        assert 18.8 < math.log2(grid.spread) < 18.9
        assert of.price_of_rounding(grid.step) == pytest.approx(price, rel=0.1)
    assert 2 * of.tau == pytest.approx(4.6e-4, rel=0.02)
    assert of.tail(50) == pytest.approx(2.6e-7, rel=0.02)
    assert of.tail(60) == pytest.approx(5.7e-3, rel=0.02)


def test_calibration_is_the_inverse_of_accounting_over_random_plans() -> None:
    source = np.random.default_rng(11)
    seen_bits = set()
    for _ in range(200):
        clients = int(source.integers(2, 200))
        of = IntegerSums(
            weights=source.uniform(0.1, 1.0, clients),
            sensitivities=10 ** source.uniform(-1, 0, clients) * 10 ** source.uniform(-5, 0),
            largest=float(10 ** source.uniform(-1, 1)),
            dimension=int(10 ** source.uniform(0, 6)),
            rounds=int(source.integers(1, 1000)),
        )
        epsilon, delta = float(10 ** source.uniform(-1, 1.4)), float(10 ** source.uniform(-8, -2))
        honest = int(source.integers(1, clients + 1))
        try:
            grid = of.calibrate(epsilon, delta, honest)
        except UsageError:
            continue
        seen_bits.add(grid.bits)
        assert of.epsilon(of.cost(grid, honest), delta) == pytest.approx(epsilon, rel=1e-6)
        assert of.fits(grid)
        assert not of.fits(replace(grid, step=grid.step / 2, spread=2 * grid.spread))
        assert math.frexp(grid.step)[0] == 0.5
        assert grid.spread >= integers.SMALLEST_SPREAD
    assert seen_bits == {32, 40}


def test_epsilon_is_monotone_in_noise_and_honest_clients() -> None:
    of = IntegerSums(np.ones(10), np.full(10, 0.01), 0.5, 1000, 50)
    grid = of.calibrate(2.0, 1e-5, 5)
    spent = [of.epsilon(of.cost(grid, honest), 1e-5) for honest in range(1, 11)]
    assert all(more > less for more, less in itertools.pairwise(spent))
    assert of.epsilon(of.cost(grid, 0), 1e-5) == math.inf


def test_an_epsilon_whose_tail_passes_a_hundredth_of_delta_is_refused() -> None:
    of = IntegerSums(np.ones(50), np.full(50, 6.7e-4), 0.4, 203_530, 400)
    with pytest.raises(UsageError, match="tail"):
        of.calibrate(60.0, 1e-5, 50)
    with pytest.raises(UsageError, match="precision"):
        of.calibrate(1e-4, 1e-5, 50)


def test_no_grid_is_said_in_a_sentence() -> None:
    of = IntegerSums(np.ones(3), np.full(3, 1e-9), 1e6, 10, 1)
    with pytest.raises(UsageError, match="bits a coordinate"):
        of.calibrate(8.0, 1e-3, 3)


def test_rho_covers_float64_below_the_largest_broadcast() -> None:
    assert np.spacing(np.nextafter(integers.LARGEST_BROADCAST, 0)) == ROUNDING
