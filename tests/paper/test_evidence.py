"""The statistics under the verdicts, on data whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from nbafl.paper.evidence import LEVEL, improves, p_smaller, valley, vertices


def test_the_comparison_is_a_paired_one_sided_t_test() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=5), rng.normal(size=5) + 0.5
    expected = stats.ttest_rel(first, second, alternative="less").pvalue
    assert p_smaller(first, second) == pytest.approx(expected, rel=1e-12)
    assert p_smaller(first, second) + p_smaller(second, first) == pytest.approx(1)


def test_one_seed_decides_nothing() -> None:
    assert p_smaller(np.array([0.0]), np.array([9.0])) == 1.0
    assert p_smaller(np.zeros(4), np.ones(4)) == 0.0
    assert p_smaller(np.ones(4), np.ones(4)) == 1.0


def test_order_needs_means_in_order_and_a_trend() -> None:
    rng = np.random.default_rng(1)
    base = rng.normal(size=5)
    falling = [base - step + 0.01 * rng.normal(size=5) for step in range(3)]
    assert improves(["a", "b", "c"], falling).supported
    rising = improves(["a", "b", "c"], falling[::-1])
    assert not rising.supported
    assert rising.refuted
    assert improves(["a", "b", "c"], falling[::-1], smaller_is_better=False).supported
    bent = improves(["a", "b", "c"], [falling[0], falling[2], falling[1]])
    assert not bent.supported
    assert not bent.refuted  # the trend still falls


def test_noise_alone_is_supported_no_more_often_than_the_level() -> None:
    """Under no effect, 2000 tries; 0.05 and four standard errors."""
    rng = np.random.default_rng(2)
    hits = sum(improves(["a", "b"], list(rng.normal(size=(2, 5)))).supported for _ in range(2000))
    assert hits / 2000 < LEVEL + 4 * np.sqrt(LEVEL * (1 - LEVEL) / 2000)


def test_valleys_have_a_bottom_inside_and_higher_ends() -> None:
    grid = (5, 10, 20, 40)
    rng = np.random.default_rng(3)
    curve = (np.log(grid) - np.log(18)) ** 2
    losses = curve + 0.01 * rng.normal(size=(5, 4))
    found = valley(grid, losses)
    assert found.supported
    assert found.details["best"] == 20
    assert np.allclose(vertices(grid, curve[None]), 18)
    slope = valley(grid, np.array([4.0, 3.0, 2.0, 1.0]) + 0.01 * rng.normal(size=(5, 4)))
    assert not slope.supported
    assert slope.refuted
    assert vertices(grid, np.array([[4.0, 3.0, 2.0, 1.0]])) == [40.0]
