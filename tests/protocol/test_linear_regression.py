"""The small client's step, written out in numpy, beside the one that torch differentiates."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from nbafl.protocol.gradient import gradient_step
from nbafl.protocol.linear_regression import ROWS, LinearRegression
from nbafl.protocol.training import Training
from nbafl.simulation.models import build


def settings(seed: int) -> tuple[LinearRegression, np.ndarray, np.ndarray, np.ndarray, Training]:
    """A random model, random records (some of them long) and a random clip."""
    source = np.random.default_rng(seed)
    loss = ("cross_entropy", "squared", "logistic")[seed % 3]
    shape = ((5,), (1, 4, 3))[seed // 2 % 2]
    outputs = int(source.integers(2, 7)) if loss == "cross_entropy" else 1
    records = int(source.integers(1, 40))
    x = (source.normal(size=(records, *shape)) * 10 ** source.uniform(-3, 3)).astype(np.float32)
    y = (
        source.normal(size=records).astype(np.float32)
        if loss == "squared"
        else source.integers(0, max(2, outputs), records)
    )
    start = source.normal(size=outputs * (int(np.prod(shape)) + 1)) * 10 ** source.uniform(-3, 2)
    clip = float(10 ** source.uniform(-3, 3))
    weights = (
        None if loss == "squared" or seed % 2 else tuple(source.uniform(0.1, 9, max(2, outputs)).tolist())
    )
    training = Training(
        "gradient",
        steps=1,
        lr=float(source.uniform(0.01, 5)),
        record_clip=clip,
        loss=loss,
        class_weights=weights,
    )
    return LinearRegression(shape, outputs), x, y, start, training


def by_torch(
    model: LinearRegression, x: np.ndarray, y: np.ndarray, start: np.ndarray, training: Training
) -> np.ndarray:
    module = build("softmax", model.shape, model.outputs, 0).double()
    given = (torch.from_numpy(x).double(), torch.from_numpy(y), torch.from_numpy(start))
    return gradient_step(module, *given, training).numpy()


@pytest.mark.parametrize("seed", range(60))
def test_the_step_is_the_one_of_torch(seed: int) -> None:
    model, x, y, start, training = settings(seed)
    ours, theirs = model.gradient_step(x, y, start, training), by_torch(model, x, y, start, training)
    reach = training.lr * training.record_clip * training.largest_weight
    np.testing.assert_allclose(
        ours - start, theirs - start, rtol=1e-9, atol=1e-12 * max(reach, np.abs(start).max())
    )


def test_many_records_take_several_passes() -> None:
    model, _, _, start, training = settings(0)
    source = np.random.default_rng(1)
    x = source.normal(size=(2 * ROWS + 3, *model.shape)).astype(np.float32)
    y = source.integers(0, model.outputs, len(x))
    np.testing.assert_allclose(
        model.gradient_step(x, y, start, training),
        by_torch(model, x, y, start, training),
        rtol=1e-9,
        atol=1e-12,
    )


@pytest.mark.parametrize("seed", range(0, 60, 7))
def test_replacing_any_record_moves_the_step_by_at_most_its_bound(seed: int) -> None:
    """2·eta·G·W/m, math.md (2.1), also for records that are no numbers, and for opposite gradients of full length."""
    model, x, y, start, training = settings(seed)
    before = model.gradient_step(x, y, start, training)
    bound = 2 * training.lr * training.record_clip * training.largest_weight / len(x)
    rounding = 4 * float(np.spacing(np.abs(start).max() + bound)) * start.size
    for record in (np.nan, np.inf, -np.inf, 1e30, -3e38, 0.0):
        other, target = x.copy(), y.copy()
        other[0], target[0] = (
            record,
            (y[0] + 1) % max(2, model.outputs) if training.loss != "squared" else -1e30,
        )
        after = model.gradient_step(other, target, start, training)
        assert np.isfinite(after).all()
        assert np.linalg.norm(after - before) <= bound + rounding


def test_a_record_without_a_finite_gradient_counts_as_zero_beside_its_neighbours() -> None:
    model, x, y, start, training = settings(0)
    x = np.concatenate([x, x[:1] * np.nan])
    y = np.concatenate([y, y[:1]])
    share = len(x) / (len(x) - 1)
    alone = model.gradient_step(x[:-1], y[:-1], start, training) - start
    np.testing.assert_allclose((model.gradient_step(x, y, start, training) - start) * share, alone, rtol=1e-9)


def test_parameters_are_those_of_the_model_that_torch_builds() -> None:
    small = LinearRegression((1, 2, 3), 4).parameters()
    module: nn.Module = build("softmax", (1, 2, 3), 4, 0)
    built = {name: value.detach().numpy() for name, value in module.named_parameters()}
    assert list(small) == list(built)
    for name, value in small.items():
        assert value.dtype == built[name].dtype
        np.testing.assert_array_equal(value, built[name])


def test_joining_loads_no_torch() -> None:
    """And neither pandas nor matplotlib: a client's process stays small."""
    code = (
        "import sys, nbafl.flower.joining, nbafl.protocol.linear_regression;"
        "print([name for name in ('torch', 'pandas', 'matplotlib', 'pyarrow') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
