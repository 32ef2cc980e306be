"""Clipping, averaging, momentum and the top-up after dropouts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nbafl.protocol import add_noise, aggregate, clip, generator, summed_sigma


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20),
    st.floats(1e-3, 1e3),
)
def test_clipping_bounds_the_norm_and_keeps_the_direction(entries: list[float], bound: float) -> None:
    vector = torch.tensor(entries, dtype=torch.float64)
    clipped = clip(vector, bound)
    norm = float(vector.norm())
    assert float(clipped.norm()) <= bound * (1 + 1e-12)
    if norm <= bound:
        assert torch.equal(clipped, vector)
    else:
        torch.testing.assert_close(clipped * norm, vector * bound)


def test_clipping_works_row_by_row() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0], [30.0, 40.0]])
    torch.testing.assert_close(clip(rows, 10.0), torch.tensor([[3.0, 4.0], [0.0, 0.0], [6.0, 8.0]]))


def test_the_average_is_over_those_who_answered() -> None:
    uploads = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    torch.testing.assert_close(aggregate(uploads, np.array([1.0, 3.0])), torch.tensor([0.25, 0.75]))
    with pytest.raises(ValueError, match="not all zero"):
        aggregate(uploads, np.zeros(2))


def test_no_noise_leaves_the_vector_alone() -> None:
    vector = torch.ones(5)
    assert torch.equal(add_noise(vector, 0.0, generator(0, 1, "noise")), vector)


def test_noise_has_the_scale_asked_for() -> None:
    """chi-square of 400,000 draws; five standard deviations, false alarm below 1e-6."""
    count, sigma = 400_000, 0.3
    noise = add_noise(torch.zeros(count, dtype=torch.float64), sigma, generator(3, 1, "noise"))
    assert abs(float(noise.square().sum()) / sigma**2 - count) < 5 * math.sqrt(2 * count)
    assert abs(float(noise.sum())) < 5 * sigma * math.sqrt(count)


def test_one_draw_has_the_variance_of_all_draws() -> None:
    weights, sigma = np.array([0.2, 0.3, 0.5]), np.array([1.0, 2.0, 0.1])
    draws, size = 3000, 64
    summed = torch.zeros(draws, size, dtype=torch.float64)
    for client in range(3):
        noise = torch.randn(draws, size, generator=generator(0, 1, client), dtype=torch.float64)
        summed += weights[client] * sigma[client] * noise
    summed += 0.4 * torch.randn(draws, size, generator=generator(0, 1, "server"), dtype=torch.float64)
    expected = summed_sigma(weights, sigma, 0.4) ** 2
    count = draws * size
    assert abs(float(summed.square().mean()) / expected - 1) < 5 * math.sqrt(2 / count)
