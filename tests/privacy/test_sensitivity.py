"""Each sensitivity model against a search for the neighbouring data that move an upload most."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbafl.errors import UsageError
from nbafl.privacy import sensitivity


def softmax_gradients(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Per-record gradients of cross-entropy, one (features × classes) matrix each; weights (cases, F, K)."""
    scores = np.einsum("cmf,cfk->cmk", x, weights)
    scores -= scores.max(axis=-1, keepdims=True)
    probabilities = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    return np.einsum("cmf,cmk->cmfk", x, probabilities - np.eye(weights.shape[-1])[y])


def neighbours(rng: np.random.Generator, cases: int, records: int, norm: float) -> tuple[np.ndarray, ...]:
    """Random data sets with records of norm ≤ R, hard cases included, and copies with one record replaced."""
    x = rng.standard_normal((cases, records, 3))
    x *= norm * rng.choice([1.0, 0.3], (cases, records, 1)) / np.linalg.norm(x, axis=-1, keepdims=True)
    y = rng.integers(0, 3, (cases, records))
    other_x, other_y = x.copy(), y.copy()
    other_x[:, 0] = -x[:, 0] * rng.choice([1.0, -1.0], (cases, 1))
    other_y[:, 0] = (y[:, 0] + rng.integers(0, 3, cases)) % 3
    return x, y, other_x, other_y


def plain_steps(
    start: np.ndarray, x: np.ndarray, y: np.ndarray, mu: float, lr: float, steps: int
) -> np.ndarray:
    weights = start.copy()
    for _ in range(steps):
        weights -= lr * (softmax_gradients(weights, x, y).mean(axis=1) + mu * (weights - start))
    return weights


def clipped(weights: np.ndarray, bound: float) -> np.ndarray:
    flat = weights.reshape(len(weights), -1)
    return flat / np.maximum(1, np.linalg.norm(flat, axis=1, keepdims=True) / bound)


@given(
    seed=st.integers(0, 2**32 - 1),
    records=st.integers(1, 6),
    norm=st.floats(0.3, 3),
    mu=st.floats(0.05, 3),
    clip=st.floats(0.5, 20),
    scale=st.floats(0, 20),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_proximal_bounds_hold_for_softmax_regression(
    seed: int, records: int, norm: float, mu: float, clip: float, scale: float
) -> None:
    """100 pairs of neighbouring data sets in each example: S plain steps, and a solve to a tolerance."""
    rng = np.random.default_rng(seed)
    lipschitz, smoothness = sensitivity.softmax_constants(norm)
    lr = 2 / (smoothness + 2 * mu)
    x, y, other_x, other_y = neighbours(rng, 100, records, norm)
    start = scale * rng.standard_normal((100, 3, 3))
    for steps in (1, 3, 12):
        moved = plain_steps(start, x, y, mu, lr, steps) - plain_steps(start, other_x, other_y, mu, lr, steps)
        bound = sensitivity.proximal(1e9, [records], lipschitz, mu, steps=steps, lr=lr, smoothness=smoothness)
        assert np.linalg.norm(moved.reshape(100, -1), axis=1).max() <= bound.uplink[0] * (1 + 1e-9)
    solutions = [
        plain_steps(start, *data, mu, 1 / (smoothness + mu), 200) for data in ((x, y), (other_x, other_y))
    ]
    tolerance = max(
        np.linalg.norm(
            (softmax_gradients(w, *data).mean(axis=1) + mu * (w - start)).reshape(100, -1), axis=1
        ).max()
        for w, data in zip(solutions, ((x, y), (other_x, other_y)), strict=True)
    )
    bound = sensitivity.proximal(clip, [records], lipschitz, mu, tolerance=float(tolerance))
    moved = clipped(solutions[0], clip) - clipped(solutions[1], clip)
    assert np.linalg.norm(moved, axis=1).max() <= bound.uplink[0] * (1 + 1e-9)


@pytest.mark.parametrize("steps", [1, 5, 40])
def test_proximal_bound_is_nearly_attained(steps: int) -> None:
    """Two confidently wrong records that differ across the weights' direction push in almost opposite ways."""
    mu, norm, records = 0.5, 1.0, 4
    lipschitz, smoothness = sensitivity.softmax_constants(norm)
    lr = 2 / (smoothness + 2 * mu)
    start = np.zeros((1, 2, 2))
    start[0, 0] = [4000.0, -4000.0]
    x = np.zeros((1, records, 2))
    x[:, :, 0] = 1.0
    x[0, 0] = [0.05, math.sqrt(1 - 0.05**2)]
    other = x.copy()
    other[0, 0, 1] *= -1
    y = np.zeros((1, records), dtype=int)
    y[0, 0] = 1
    moved = plain_steps(start, x, y, mu, lr, steps) - plain_steps(start, other, y, mu, lr, steps)
    bound = sensitivity.proximal(1e9, [records], lipschitz, mu, steps=steps, lr=lr, smoothness=smoothness)
    assert np.linalg.norm(moved) >= 0.95 * bound.uplink[0]


@given(seed=st.integers(0, 2**32 - 1), norm=st.floats(0.1, 5), scale=st.floats(0, 30))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_softmax_constants_bound_gradient_and_curvature(seed: int, norm: float, scale: float) -> None:
    rng = np.random.default_rng(seed)
    lipschitz, smoothness = sensitivity.softmax_constants(norm)
    x, y, _, _ = neighbours(rng, 50, 2, norm)
    first, second = scale * rng.standard_normal((2, 50, 3, 3))
    gradients = [softmax_gradients(w, x, y) for w in (first, second)]
    assert np.linalg.norm(gradients[0], axis=(2, 3)).max() <= lipschitz * (1 + 1e-12)
    change = np.linalg.norm(gradients[0] - gradients[1], axis=(2, 3)).max(axis=1)
    assert np.all(change <= smoothness * np.linalg.norm(first - second, axis=(1, 2)) * (1 + 1e-9) + 1e-12)


def test_constants_of_the_huber_loss_are_attained() -> None:
    lipschitz, smoothness = sensitivity.huber_constants(2.0, threshold=0.5, outputs=9)
    residuals = np.full(9, 100.0)
    assert 2 * np.linalg.norm(np.clip(residuals, -0.5, 0.5)) == pytest.approx(lipschitz)
    assert smoothness == 4


@given(
    seed=st.integers(0, 2**32 - 1),
    records=st.integers(1, 20),
    bound=st.floats(0.01, 5),
    lr=st.floats(0.01, 2),
)
@settings(max_examples=50, deadline=None, derandomize=True)
def test_gradient_bound_holds_and_is_attained(seed: int, records: int, bound: float, lr: float) -> None:
    rng = np.random.default_rng(seed)
    gradients = clipped(10 * bound * rng.standard_normal((100 * records, 7)), bound).reshape(100, records, 7)
    other = gradients.copy()
    other[:, 0] = clipped(10 * bound * rng.standard_normal((100, 7)), bound)
    other[0, 0] = -gradients[0, 0] * bound / np.linalg.norm(gradients[0, 0])
    gradients[0, 0] = -other[0, 0]
    moved = np.linalg.norm(lr * (gradients.mean(axis=1) - other.mean(axis=1)), axis=1)
    uplink = sensitivity.gradient(bound, [records], lr).uplink[0]
    assert moved.max() <= uplink * (1 + 1e-9)
    assert moved.max() == pytest.approx(uplink)


def test_paper_has_a_counter_example() -> None:
    """Least squares: every record's own solution has norm ≤ C, yet one of 100 records moves the fit by almost 2C."""
    clip, records = 1.0, 100
    x = np.full(records, 0.001)
    x[0] = 1.0
    fits = []
    for last in (1.0, -1.0):
        own = np.full(records, 1.0)
        own[0] = last
        fits.append(float(x @ (x * own) / (x @ x)))
    claimed = sensitivity.paper(clip, [records])
    assert abs(fits[0] - fits[1]) > 50 * claimed.uplink[0]
    assert abs(fits[0] - fits[1]) <= sensitivity.unconditional(clip, [records]).uplink[0]
    assert claimed.conditional
    assert "conditional" in claimed.premise


def test_paper_holds_where_its_premise_does() -> None:
    """The mean of records of norm ≤ C is the one case of equation 4; there 2C/m is attained."""
    first = np.tile([[3.0, 4.0]], (10, 1))
    other = first.copy()
    other[0] *= -1
    assert np.linalg.norm(first.mean(0) - other.mean(0)) == pytest.approx(
        sensitivity.paper(5.0, [10]).uplink[0]
    )


def test_client_replace_and_drop() -> None:
    replaced, dropped = sensitivity.client(3.0, 4), sensitivity.client(3.0, 4, "drop")
    assert list(replaced.uplink) == [6.0] * 4
    assert list(dropped.uplink) == [3.0] * 4
    assert "sends noise" in dropped.premise
    assert (replaced.unit, replaced.adjacency, dropped.adjacency) == ("client", "replace", "drop")


def test_unequal_sizes_cost_nothing_with_weights_by_records() -> None:
    sizes = np.array([10, 100, 1000])
    uplink = sensitivity.paper(10, sizes).uplink
    assert list(uplink) == [2.0, 0.2, 0.02]
    assert sensitivity.downlink(uplink, sizes / sizes.sum()) == pytest.approx(20 / 1110)
    assert sensitivity.downlink(uplink, np.full(3, 1 / 3)) == pytest.approx(2 / 3)


def test_proximal_values_and_limits() -> None:
    solved = sensitivity.proximal(10, [100], 1.5, 0.1, tolerance=1e-3)
    assert solved.uplink[0] == pytest.approx(2 * 1.5 / (100 * 0.1) + 2e-3 / 0.1)
    assert sensitivity.proximal(0.01, [100], 1.5, 0.1, tolerance=1e-3).uplink[0] == pytest.approx(0.02)
    common = {"clip": 1e9, "sizes": [50], "lipschitz": 1.5, "lr": 0.2, "smoothness": 0.5}
    assert sensitivity.proximal(mu=0.0, steps=7, **common).uplink[0] == pytest.approx(2 * 0.2 * 1.5 * 7 / 50)
    barely = sensitivity.proximal(mu=1e-12, steps=7, **common).uplink[0]
    assert barely == pytest.approx(sensitivity.proximal(mu=0.0, steps=7, **common).uplink[0], rel=1e-9)
    many = sensitivity.proximal(mu=0.3, steps=10_000, **common).uplink[0]
    assert many == pytest.approx(2 * 1.5 / (50 * 0.3))


BAD = [
    ("clip", lambda: sensitivity.paper(0, [1])),
    ("clip", lambda: sensitivity.paper(math.inf, [1])),
    ("sizes", lambda: sensitivity.paper(1, [])),
    ("sizes", lambda: sensitivity.paper(1, [3, 0])),
    ("lr", lambda: sensitivity.gradient(1, [1], 0)),
    ("record_clip", lambda: sensitivity.gradient(-1, [1], 1)),
    ("adjacency", lambda: sensitivity.client(1, 3, "add")),
    ("clients", lambda: sensitivity.client(1, 0)),
    ("tolerance", lambda: sensitivity.proximal(1, [1], 1, 1)),
    ("tolerance", lambda: sensitivity.proximal(1, [1], 1, 1, tolerance=0.1, steps=3)),
    ("tolerance", lambda: sensitivity.proximal(1, [1], 1, 1, tolerance=-0.1)),
    ("mu", lambda: sensitivity.proximal(1, [1], 1, 0, tolerance=0.1)),
    ("mu", lambda: sensitivity.proximal(1, [1], 1, -1, steps=1, lr=0.1, smoothness=1)),
    ("lr", lambda: sensitivity.proximal(1, [1], 1, 0.5, steps=1, lr=1.1, smoothness=1)),
    ("lr", lambda: sensitivity.proximal(1, [1], 1, 0.5, steps=1, smoothness=1)),
    ("smoothness", lambda: sensitivity.proximal(1, [1], 1, 0.5, steps=1, lr=0.1)),
    ("steps", lambda: sensitivity.proximal(1, [1], 1, 0.5, steps=0, lr=0.1, smoothness=1)),
    ("lipschitz", lambda: sensitivity.proximal(1, [1], 0, 0.5, tolerance=0.1)),
    ("feature_norm", lambda: sensitivity.softmax_constants(math.inf)),
]


@pytest.mark.parametrize(("field", "call"), BAD)
def test_a_broken_premise_is_refused_by_name(field: str, call: object) -> None:
    with pytest.raises(UsageError) as refusal:
        call()  # type: ignore[operator]
    assert refusal.value.field == field


def test_the_largest_step_that_contracts_is_allowed() -> None:
    sensitivity.proximal(1, [1], 1, 0.5, steps=1, lr=1.0, smoothness=1)


@pytest.mark.parametrize("clip", [1e-200, 1e-99, 1e200])
def test_a_sensitivity_whose_square_is_no_number_is_refused(clip: float) -> None:
    with pytest.raises(UsageError, match="from 1e-100 to 1e100"):
        sensitivity.paper(clip, [10, 100_000])
    with pytest.raises(UsageError, match="from 1e-100 to 1e100"):
        sensitivity.gradient(clip, [10, 100_000], clip)
