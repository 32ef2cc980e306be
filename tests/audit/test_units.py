"""The canary is what a plan protects: a person with all rows, a record of the heaviest class, one of a binary task."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nbafl import rules
from nbafl.audit.auditor import audit, pair_of
from nbafl.audit.mechanism import Mechanism
from nbafl.audit.problems import Scene
from nbafl.plan import Plan

SAID: dict[str, Any] = {
    "clients": 4, "samples": 6, "rounds": 5, "epsilon": 2.0, "delta": 1e-3, "sensitivity": "gradient", "lr": 0.5
}  # fmt: skip


def test_a_person_is_a_canary_with_all_rows() -> None:
    scene = Scene(4, (1, 3), persons=True)
    assert scene.rows_each is not None
    assert scene.rows_each.tolist() == [2, 3, 1, 2]
    assert (scene.lines, scene.rows) == (8, (2, 3, 4, 6, 7))
    assert Scene(4, (1, 3)).rows == (1, 3)


@pytest.mark.parametrize(
    "fields",
    [
        {**SAID, "person": "patient"},
        {**SAID, "class_weights": "ill=5"},
        {**SAID, "person": "patient", "class_weights": "ill=5"},
        {**SAID, "sensitivity": "proximal", "model": "softmax", "feature_norm": 2.0, "task": "binary", "lr": 0.3,
         "local_steps": 3, "class_weights": "1=2"},
        {**SAID, "sensitivity": "proximal", "model": "softmax", "feature_norm": 2.0, "task": "binary", "mu": 1.0,
         "tolerance": 1e-4},
    ],
)  # fmt: skip
def test_sound_plans_stand_and_the_canary_reaches_the_bound(fields: dict[str, Any]) -> None:
    plan = Plan(**fields)
    found = audit(plan, trials=4000)
    assert not found.refuted, found.refuted_by
    assert found.attained > (0.99 if plan.sensitivity == "gradient" else 0.5)
    assert ("person" in found.problem) == (plan.person is not None)


def by_rows(
    model: Any, x: Tensor, y: Tensor, start: Tensor, training: Any, order: Any = None, persons: Any = None
) -> Tensor:
    """A mistake: rows of a person are clipped one by one, as if each stood for itself."""
    if persons is None:
        return rules.upload(model, x, y, start, training, order)
    step = rules.upload(model, x, y, start, training, order) - start
    return start + step * len(x) / len(persons)


def test_rows_that_are_clipped_one_by_one_are_refuted() -> None:
    plan = Plan(**SAID, person="patient")
    assert audit(plan, trials=4000, mechanism=Mechanism(upload=by_rows)).refuted


def test_weights_that_the_bound_forgets_are_refuted() -> None:
    plan = Plan(**SAID, class_weights="ill=5")
    forgotten = Mechanism(
        upload=lambda model, x, y, start, training, *rest, **more: (
            start + 5 * (rules.upload(model, x, y, start, training, *rest, **more) - start)
        )
    )
    assert audit(plan, trials=4000, mechanism=forgotten).refuted
    pair, _ = pair_of(plan, 0, Mechanism())
    assert pair.shift == pytest.approx(float(plan.release().uplink[0]), rel=1e-6)
    assert np.isclose(float(plan.release().uplink[0]), 2 * 0.5 * plan.record_clip * 5 / 6)
    assert torch.isfinite(pair.start).all()
