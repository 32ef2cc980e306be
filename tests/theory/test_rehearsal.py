"""What the planner predicts for tables is what happens, or it says that it does not know."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import datasets
from tests.paper_setting import Plan

import nbafl
from nbafl.simulation.models import build
from nbafl.theory.planning import explore, plan_bounds
from nbafl.theory.rehearsal import affordable, rehearse


def clients_of(x: np.ndarray, y: np.ndarray, count: int) -> nbafl.Federation:
    low, high = x.min(axis=0), x.max(axis=0)
    scaled = (2 * (x - low) / np.maximum(high - low, 1e-9) - 1).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(y))
    return nbafl.Federation.from_arrays([(scaled[rows], y[rows]) for rows in np.array_split(order, count)])


def tables() -> dict[str, tuple[np.ndarray, np.ndarray, int]]:
    found = {}
    for name, load, count in (
        ("breast cancer", datasets.load_breast_cancer, 4),
        ("wine", datasets.load_wine, 3),
        ("digits", datasets.load_digits, 5),
    ):
        found[name] = (*load(return_X_y=True), count)
    x, y = datasets.load_diabetes(return_X_y=True)
    found["diabetes"] = (x, ((y - 186) / 161).astype(np.float32), 3)
    rng = np.random.default_rng(1)
    x = rng.normal(size=(600, 5))
    found["made"] = (x, (x @ rng.normal(size=(5, 3))).argmax(axis=1), 4)
    x = rng.normal(size=(2000, 6))
    found["imbalance"] = (x, (x @ [1, -1, 0.5, 0, 0, 0] + 0.7 * rng.normal(size=2000) > 2).astype(int), 5)
    return found


@pytest.mark.parametrize("name", ["breast cancer", "digits", "diabetes", "made", "imbalance"])
def test_the_predicted_loss_is_within_a_fifth_of_the_measured_one(name, tmp_path):
    x, y, count = tables()[name]
    federation = clients_of(x, y, count)
    task = "regression" if y.dtype.kind == "f" else None
    plan = Plan(
        sizes=tuple(federation.sizes.tolist()), sensitivity="gradient", model="softmax", epsilon=8.0, delta=1e-5,
        adversary="curious-server", task=task, feature_norm=(1 + x.shape[1]) ** 0.5, eval_every=1000,
    )  # fmt: skip
    model = build("softmax", federation.shape, federation.outputs, 0)
    assert affordable(plan, federation, model)
    told = rehearse(plan, federation, model)
    runs = [
        nbafl.simulate(
            plan.with_fields(seed=seed), federation, out=tmp_path / str(seed), report=False
        ).summary()
        for seed in range(3)
    ]
    measured = float(np.mean([run["train_loss"] for run in runs]))
    assert told.certain
    assert told.loss == pytest.approx(measured, rel=0.2)
    if task is None:
        assert told.accuracy == pytest.approx(np.mean([run["train_accuracy"] for run in runs]), abs=0.1)


def test_where_the_noise_decides_the_planner_does_not_know():
    x, y, count = tables()["wine"]
    federation = clients_of(x, y, count)
    plan = Plan(
        sizes=tuple(federation.sizes.tolist()), sensitivity="gradient", model="softmax", epsilon=1.0, delta=1e-5,
        adversary="curious-server", feature_norm=14**0.5,
    )  # fmt: skip
    assert not rehearse(plan, federation, build("softmax", federation.shape, federation.outputs, 0)).certain


def test_without_a_rehearsal_a_far_future_is_not_guessed_at():
    x, y, count = tables()["made"]
    federation = clients_of(x, y, count)
    plan = Plan(
        sizes=tuple(federation.sizes.tolist()),
        sensitivity="gradient",
        model="softmax",
        lr=0.5,
        rounds=25,
        epsilon=8,
        delta=1e-5,
    )
    known = explore(plan, federation)
    here = plan_bounds(plan, known, federation)
    assert here["predicted_loss"] == here["rehearsal"]["loss"]
    assert 0 < here["predicted_accuracy"] <= 1
    told = plan_bounds(plan.with_fields(rounds=400), known)
    assert told["predicted_loss"] is None
    assert "does not know" in told["reasons"]["empirical"]
    assert all(
        told["bound"]["reason"][form] for form in ("printed", "repaired") if told["bound"][form] is None
    )
