"""Uploads on one grid: exact sums, and a sum that hides as much as that of exact vectors, math.md (8.4)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr
from tests.paper_setting import Plan

from nbafl.errors import Refused
from nbafl.privacy.common_grid import FEWEST_STEPS, HELD, SPREADS, CommonGrid
from nbafl.privacy.gaussian import gdp_delta
from nbafl.privacy.noise import SecureGaussian, grid_step
from nbafl.privacy.release import Noise, Release

PLANS = [
    {"clients": 5, "sensitivity": "gradient", "lr": 0.01, "samples": 100_000},
    {"clients": 3, "sizes": (70, 900, 5000), "sensitivity": "gradient", "lr": 30.0, "adversary": "curious-server"},
    {"clients": 4, "sensitivity": "client", "clip": 2.0, "per_round": 2, "rounds": 5, "adversary": "broadcast"},
    {"clients": 50, "sensitivity": "paper"},
    {"clients": 6, "sizes": (10, 20, 30, 40, 50, 60), "per_round": 3, "sensitivity": "paper", "adversary": "targeted"},
]  # fmt: skip


def grid_of(plan: Plan) -> tuple[CommonGrid, Release, Noise, float]:
    release, noise, radius = plan.release(), plan.noise_scales(), plan.rule.reach(plan).radius
    return CommonGrid.of(release, noise, radius), release, noise, radius


@pytest.mark.parametrize("fields", PLANS)
def test_the_step_is_small_beside_all_noise_and_large_enough_for_float32(fields: dict) -> None:
    grid, release, noise, radius = grid_of(Plan(**{"epsilon": 2.0, "delta": 1e-5, **fields}))
    scaled = release.weights * noise.sigma_uplink
    assert math.frexp(grid.step)[0] == 0.5, "a power of two"
    assert grid.step * FEWEST_STEPS <= scaled.min()
    if noise.sigma_downlink:
        assert (
            grid.step * FEWEST_STEPS
            <= np.sort(release.weights)[: release.per_round].sum() * noise.sigma_downlink
        )
    assert grid.holds(float(np.max(release.weights * (radius + SPREADS * noise.sigma_uplink))))
    # c is a multiple of every finer grid that noise is drawn on, and the server's noise adds to sums without rounding.
    steps = [
        grid_step(float(each))
        for each in (*scaled, *([noise.sigma_downlink] if noise.sigma_downlink else []))
    ]
    assert all((grid.step / each).is_integer() for each in steps)


@pytest.mark.parametrize("fields", PLANS)
def test_what_was_sent_is_read_back_exactly_and_sums_are_exact(fields: dict) -> None:
    grid, release, noise, radius = grid_of(Plan(**{"epsilon": 2.0, "delta": 1e-5, **fields}))
    total, read = 0, 0.0
    for client in range(release.clients):
        share, sigma = release.weights[client], noise.sigma_uplink[client]
        offset = share * np.linspace(-radius, radius, 500)
        noisy = SecureGaussian().add(offset, share * sigma, share * release.uplink[client])
        noisy[:2] = (HELD * grid.step, -HELD * grid.step)
        sent = grid.rounded(noisy, client)
        assert sent.dtype == np.float32
        whole = [math.floor(each / grid.step + 0.5) for each in noisy]  # exact: a quotient of powers of two
        np.testing.assert_array_equal(grid.multiples(sent.astype(np.float64), client), whole)
        total += np.array(whole, dtype=object)
        read = read + grid.multiples(sent.astype(np.float64), client)
    assert [int(each) for each in read] == list(total)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(-(2**60), 2**60), st.integers(-1000, 1000))
def test_rounding_commutes_with_whole_steps(fine: int, steps: int) -> None:
    """The sum of one fine and many whole parts is the whole part of their fine sum: ties go one way, always up."""
    grid = CommonGrid(1.0, np.array([0.5]))
    value = (fine % 2**21) * 2.0**-20  # ties included
    shifted = grid.multiples(grid.rounded(np.array([value + steps]), 0).astype(np.float64), 0)
    assert shifted == grid.multiples(grid.rounded(np.array([value]), 0).astype(np.float64), 0) + steps


def law_of_a_sum(centres: list[float], sigma: float) -> np.ndarray:
    """P(S = s), s from -200 to 200: cell by cell from the normal distribution, convolved; no formula of (8.4)."""
    cells, law = np.arange(-100, 101), np.ones(1)
    for centre in centres:
        law = np.convolve(law, ndtr((cells + 0.5 - centre) / sigma) - ndtr((cells - 0.5 - centre) / sigma))
    return law


def excess(centres: list[float], shift: float, sigma: float, epsilon: float) -> float:
    """How far the exact divergence of a rounded sum is above that of the exact sum."""
    moved = [centres[0] + shift, *centres[1:]]
    first, second = law_of_a_sum(centres, sigma), law_of_a_sum(moved, sigma)
    worst = max(np.maximum(a - math.exp(epsilon) * b, 0).sum() for a, b in ((first, second), (second, first)))
    return float(worst - gdp_delta(epsilon, abs(shift) / (math.sqrt(len(centres)) * sigma)))


def test_a_sum_on_the_grid_hides_as_much_as_the_exact_sum() -> None:
    chance = np.random.default_rng(3)
    for _ in range(200):
        centres = list(chance.uniform(-3, 3, chance.integers(1, 6)))
        shift, epsilon = chance.uniform(-9, 9), chance.uniform(0, 2)
        assert excess(centres, shift, FEWEST_STEPS, epsilon) < 1e-12


def test_steps_as_large_as_the_noise_would_not_do() -> None:
    """What float32 alone made of uploads whose noise is below its spacing."""
    assert excess([0.4, 0.0, 0.0, 0.0], 0.2, 0.05, 1.0) > 0.4


def test_noise_that_float32_cannot_hold_is_refused() -> None:
    plan = Plan(clients=5, sensitivity="gradient", samples=10**8, epsilon=2.0, delta=1e-9)
    with pytest.raises(Refused, match="rounded to float32, uploads would not hide each other"):
        grid_of(plan)


@pytest.mark.parametrize("clip", [1e-44, 1e-41, 1e37])
def test_a_clipping_norm_that_float32_has_no_digits_for_is_refused(clip: float) -> None:
    """Multiples below its normal numbers came back as others: each upload was rounded on a grid of its own again."""
    plan = Plan(clients=3, sensitivity="client", clip=clip, epsilon=1.0, delta=1e-5)
    with pytest.raises(Refused, match="out of the range of float32"):
        grid_of(plan)
