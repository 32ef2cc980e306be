"""A local problem that is accepted is solved whatever the data: iterations, errors of arithmetic, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.paper_setting import Plan

from nbafl.errors import UsageError
from nbafl.privacy.sensitivity import constants_of
from nbafl.privacy.solving import MOST_ITERATIONS, Solve
from nbafl.protocol import proximal
from nbafl.protocol.losses import CROSS_ENTROPY
from nbafl.protocol.training import Training

PROXIMAL = {"clients": 3, "samples": 20, "sensitivity": "proximal", "model": "softmax", "features": "raw"}


def iterations_made(curvatures: np.ndarray, pull: np.ndarray, problem: Solve, error: float, chance) -> int:
    """Nesterov's method on sum c_i w_i²/2 - pull·w + (mu/2)|w|² with gradients off by `error`, until |∇J| ≤ tau."""
    weights = ahead = np.zeros_like(pull)
    root = math.sqrt(problem.mu / problem.largest)
    turned = chance.normal(size=pull.shape)
    for made in range(MOST_ITERATIONS):
        gradient = (curvatures + problem.mu) * ahead - pull
        if np.linalg.norm(gradient) <= problem.tolerance:
            return made
        if chance.random() < 0.1:  # errors that keep their direction for a while do more than fresh ones
            turned = chance.normal(size=pull.shape) * gradient
        wrong = gradient + error * turned / max(np.linalg.norm(turned), 1e-300)
        following = ahead - wrong / problem.largest
        ahead, weights = following + (1 - root) / (1 + root) * (following - weights), following
    raise AssertionError("it never ended")


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.floats(1, 1e4), st.floats(-9, -1), st.booleans())
def test_no_quadratic_takes_longer_than_promised(
    seed: int, condition: float, depth: float, off: bool
) -> None:
    """Also where every gradient is off by as much as (2.9) allows."""
    chance = np.random.default_rng(seed)
    problem = Solve(1.0, condition - 1, 1.0, 10.0**depth)
    curvatures = problem.smoothness * np.sort(chance.beta(0.3, 0.3, 12))
    pull = chance.normal(size=12) * chance.random(12) ** 4
    pull /= np.linalg.norm(pull)  # |∇F| ≤ G = 1 where it begins
    error = problem.tolerance / (80 * problem.root) if off else 0.0
    assert iterations_made(curvatures, pull, problem, error, chance) <= problem.iterations


def test_a_tolerance_that_some_data_might_miss_is_refused_by_the_plan() -> None:
    """Whether a client gave up depended on its data: separable records took longer than overlapping ones."""
    with pytest.raises(UsageError, match=r"tolerance must be larger.*200000 are made"):
        Plan(**PROXIMAL, feature_norm=1e3, mu=1e-7, tolerance=1e-6)
    with pytest.raises(UsageError, match=r"tolerance must be at least .*float64 cannot be sure of less"):
        Plan(**PROXIMAL, feature_norm=2.0, mu=1.0, tolerance=1e-15)
    Plan(**PROXIMAL, feature_norm=2.0, mu=0.01, tolerance=1e-6)


def training_of(mu: float, norm: float, tolerance: float) -> Training:
    return Training(rule="proximal", clip=1e6, mu=mu, feature_norm=norm, tolerance=tolerance)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.integers(0, 2**32), st.sampled_from([1e-3, 0.1, 3.0]), st.sampled_from([1.5, 10.0]), st.floats(0, 1.0)
)
def test_what_is_accepted_is_solved_below_the_tolerance(
    seed: int, mu: float, norm: float, near: float
) -> None:
    """Data of every kind, down to the least tolerance: the true gradient, in long doubles, is below it."""
    chance = np.random.default_rng(seed)
    records, features = int(chance.integers(1, 12)), int(chance.integers(1, 6))
    lipschitz, smoothness = constants_of(CROSS_ENTROPY, norm)
    model = torch.nn.Linear(features, 3)
    start = torch.from_numpy(chance.normal(size=3 * features + 3) * 10.0 ** chance.uniform(-2, 2))
    spread = float(proximal._as_matrix(start, model).norm())
    free = Solve(lipschitz, smoothness, mu, 1.0)
    error = max(free.rounding(records, features + 1, norm, 1.0, spread), 2.0**-53 * lipschitz)
    least = 80 * free.root * error
    tolerance = least * 1.01 * (1e-2 / least) ** near
    x = torch.from_numpy(chance.normal(size=(1, records, features)) * 10.0 ** chance.uniform(-2, 2))
    y = torch.from_numpy(chance.integers(0, 3, (1, records)) * int(chance.integers(0, 2)))
    training = training_of(mu, norm, tolerance)
    found = proximal.uploads(
        model, x, y, torch.full((1, records), 1 / records, dtype=torch.float64), start, training
    )
    exact = np.longdouble
    rows = proximal.bounded(x, norm)[0].double().numpy().astype(exact)
    weights = proximal._as_matrix(found[0], model).numpy().astype(exact)
    centre = proximal._as_matrix(start, model).numpy().astype(exact)
    scores = rows @ weights.T
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    slope = chances - np.eye(3, dtype=exact)[y[0].numpy()]
    gradient = slope.T @ rows / records + exact(mu) * (weights - centre)
    assert float(np.sqrt((gradient**2).sum())) <= tolerance


def test_below_the_least_tolerance_a_solve_is_refused_by_sizes_and_broadcast_alone() -> None:
    model, share = torch.nn.Linear(4, 3), torch.full((1, 5), 0.2, dtype=torch.float64)
    x, y = torch.zeros(1, 5, 4, dtype=torch.float64), torch.zeros(1, 5, dtype=torch.int64)
    training = training_of(0.1, 2.0, 1e-9)
    proximal.uploads(model, x, y, share, torch.zeros(15, dtype=torch.float64), training)
    far = torch.full((15,), 1e6, dtype=torch.float64)
    with pytest.raises(UsageError, match="float64 cannot be sure of less"):
        proximal.uploads(model, x, y, share, far, training)
