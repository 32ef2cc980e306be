"""Losses record by record: one output for two classes, public class weights, losses of one's own, and their bounds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.nn import functional

from nbafl import class_weights
from nbafl.errors import UsageError
from nbafl.plan import Plan
from nbafl.privacy import sensitivity
from nbafl.protocol import Training, flatten, likeliest, probabilities, record_losses
from nbafl.protocol.losses import check_loss, weighted
from nbafl.protocol.proximal import proximal_upload
from nbafl.rules import upload

R, FEATURES = 3.0, 4


def one_logit() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, 1)).double()


def bound(training: Training, records: int) -> float:
    """Delta_U as the privacy core states it."""
    assert training.feature_norm is not None
    constants = sensitivity.logistic_constants(training.feature_norm)
    lipschitz, smoothness = (training.largest_weight * each for each in constants)
    steps = training.steps if training.tolerance is None else None
    found = sensitivity.proximal(
        training.clip, [records], lipschitz, training.mu, training.tolerance, steps, training.lr, smoothness
    )
    return float(found.uplink[0])


def test_two_classes_with_one_output_are_two_outputs_seen_from_their_difference() -> None:
    output, target = torch.randn(9, dtype=torch.float64), torch.arange(9) % 2
    pair = torch.stack([torch.zeros(9), output], dim=1)
    assert torch.allclose(
        record_losses(output[:, None], target, "logistic"), record_losses(pair, target, "cross_entropy")
    )
    assert torch.allclose(probabilities(output[:, None]), probabilities(pair))
    assert torch.equal(likeliest(output[:, None]), likeliest(pair))


def test_constants_of_logistic_regression_hold_and_are_attained() -> None:
    lipschitz, smoothness = sensitivity.logistic_constants(R)
    random = torch.Generator().manual_seed(0)
    longest, steepest = 0.0, 0.0
    for _ in range(400):
        record = torch.randn(FEATURES + 1, generator=random, dtype=torch.float64)
        record *= R * float(torch.rand(1, generator=random)) ** 0.1 / record.norm()
        weights = 10 ** float(4 * torch.rand(1, generator=random) - 3) * torch.randn(
            FEATURES + 1, generator=random, dtype=torch.float64
        )
        target = torch.randint(2, (1,), generator=random)

        def loss(w: Tensor, record: Tensor = record, target: Tensor = target) -> Tensor:
            return record_losses((record @ w)[None, None], target, "logistic")[0]

        gradient = torch.autograd.functional.jacobian(loss, weights)
        curvature = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, weights)).max()
        longest, steepest = max(longest, float(gradient.norm())), max(steepest, float(curvature))
    assert 0.95 * lipschitz < longest <= lipschitz * (1 + 1e-12)
    assert 0.95 * smoothness < steepest <= smoothness * (1 + 1e-12)


@pytest.mark.parametrize("weights", [None, (1.0, 4.0)])
def test_the_one_output_solution_is_that_of_another_solver(weights: tuple[float, float] | None) -> None:
    torch.manual_seed(0)
    model, x, y = one_logit(), torch.randn(20, FEATURES, dtype=torch.float64), torch.randint(2, (20,))
    training = Training(
        rule="proximal", mu=0.5, clip=1e6, tolerance=2e-7, feature_norm=8.0, loss="logistic",
        class_weights=weights,
    )  # fmt: skip
    start = flatten(model)
    share = torch.ones(20) if weights is None else torch.tensor(weights)[y]

    def objective(values: np.ndarray) -> tuple[float, np.ndarray]:
        w = torch.tensor(values, requires_grad=True)
        each = functional.binary_cross_entropy_with_logits(x @ w[:-1] + w[-1], y.double(), reduction="none")
        # divided by m, not by the weights
        loss = (share * each).sum() / 20 + 0.25 * (w - start).square().sum()
        loss.backward()
        return loss.item(), w.grad.numpy()

    theirs = minimize(objective, start.numpy(), jac=True, method="BFGS", options={"gtol": 1e-9}).x
    assert np.allclose(proximal_upload(model, x, y, start, training), theirs, atol=1e-6)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**20), solved=st.booleans(), records=st.integers(1, 4),
    scale=st.floats(-2, 2), heavy=st.sampled_from([None, (1.0, 6.0), (0.25, 0.5)]),
)  # fmt: skip
def test_one_record_never_moves_a_one_output_upload_beyond_its_bound(
    seed: int, solved: bool, records: int, scale: float, heavy: tuple[float, float] | None
) -> None:
    random = torch.Generator().manual_seed(seed)
    model = one_logit()
    start = 10**scale * torch.randn(FEATURES + 1, generator=random, dtype=torch.float64)
    x = 10 * torch.randn(records, FEATURES, generator=random, dtype=torch.float64)
    y = torch.randint(2, (records,), generator=random)
    training = Training(
        rule="proximal", mu=0.1, clip=1e6, feature_norm=R, loss="logistic", class_weights=heavy, steps=5,
        tolerance=1e-7 if solved else None, lr=2 / (max([1.0, *(heavy or ())]) * R**2 / 4 + 0.2),
    )  # fmt: skip
    here = upload(model, x, y, start, training)
    moved, other = x.clone(), y.clone()
    moved[0], other[0] = -1e3 * x[0], 1 - y[0]
    there = upload(model, moved, other, start, training)
    assert float((there - here).norm()) <= bound(training, records) * (1 + 1e-9)


def test_the_bound_of_one_output_is_nearly_reached() -> None:
    """A record of class 0 that a broadcast sure of class 1 is wrong about, turned around; the others pull nowhere."""
    start = torch.tensor([0.0] * FEATURES + [40.0], dtype=torch.float64)
    x, y = torch.zeros(5, FEATURES, dtype=torch.float64), torch.ones(5, dtype=torch.int64)
    x[0, 0], y[0] = 1e3, 0
    training = Training(
        rule="proximal", mu=0.5, clip=1e6, feature_norm=R, loss="logistic", steps=1, lr=0.5, tolerance=None
    )
    apart = upload(one_logit(), x, y, start, training) - upload(one_logit(), -x, y, start, training)
    part = math.sqrt(1 - 1 / R**2)  # the bias's input is 1 in both
    assert float(apart.norm()) == pytest.approx(part * bound(training, 5), rel=1e-6)


def test_weights_multiply_clipped_gradients_and_the_sum_is_divided_by_the_records() -> None:
    torch.manual_seed(1)
    model, weights = nn.Linear(FEATURES, 3).double(), (1.0, 0.5, 7.0)
    x, y, start = torch.randn(8, FEATURES).double(), torch.arange(8) % 3, flatten(model)
    training = Training(rule="gradient", steps=1, lr=0.7, record_clip=0.4, class_weights=weights)
    expected = torch.zeros_like(start)
    for record, target in zip(x, y, strict=True):
        loss = functional.cross_entropy(model(record), target)
        gradient = torch.cat([each.flatten() for each in torch.autograd.grad(loss, model.parameters())])
        expected += weights[target] * gradient * min(1.0, 0.4 / float(gradient.norm())) / 8
    assert torch.allclose(upload(model, x, y, start, training), start - 0.7 * expected, atol=1e-9)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**20), records=st.integers(1, 5), persons=st.booleans())
def test_with_class_weights_one_record_or_person_stays_within_the_scaled_bound(
    seed: int, records: int, persons: bool
) -> None:
    random = torch.Generator().manual_seed(seed)
    model = nn.Linear(FEATURES, 2).double()
    rows = np.array([2] * records) if persons else np.ones(records, dtype=int)
    count = int(rows.sum())
    x = 100 * torch.randn(count, FEATURES, generator=random, dtype=torch.float64)
    y = torch.randint(2, (count,), generator=random)
    training = Training(rule="gradient", steps=1, lr=0.3, record_clip=0.2, class_weights=(0.1, 9.0))
    moved, other = x.clone(), y.clone()
    moved[: rows[0]], other[: rows[0]] = -x[: rows[0]], torch.randint(2, (int(rows[0]),), generator=random)
    who = {"persons": rows} if persons else {}
    here, there = (upload(model, a, b, flatten(model), training, **who) for a, b in ((x, y), (moved, other)))
    allowed = sensitivity.gradient(0.2, [records], 0.3, training.largest_weight).uplink[0]
    assert float((there - here).norm()) <= allowed * (1 + 1e-12)


def test_a_person_with_one_row_weighs_what_the_row_weighs() -> None:
    torch.manual_seed(2)
    model = nn.Linear(FEATURES, 2).double()
    x, y = torch.randn(6, FEATURES).double(), torch.arange(6) % 2
    training = Training(rule="gradient", steps=1, lr=0.3, record_clip=0.2, class_weights=(0.5, 3.0))
    alone = upload(model, x, y, flatten(model), training)
    as_persons = upload(model, x, y, flatten(model), training, persons=np.ones(6, dtype=int))
    assert torch.allclose(alone, as_persons, atol=1e-12)


def test_weights_are_read_written_and_put_in_the_order_of_the_classes() -> None:
    assert class_weights.parse("ill=5, well = 0.5") == {"ill": 5.0, "well": 0.5}
    assert class_weights.parse(class_weights.written({"a=b": 0.1})) == {"a=b": 0.1}
    assert class_weights.in_order("c=3", ("a", "b", "c")) == (1.0, 1.0, 3.0)
    assert (class_weights.largest([0.5]), class_weights.largest([0.5, 4])) == (1.0, 4.0)
    for wrong in ("ill", "ill=", "ill=x", "=3", "ill=-1", "ill=0", "ill=nan", "ill=inf", "ill=1,ill=2", ","):
        with pytest.raises(UsageError, match="class_weights must be like ill=5,well=1"):
            class_weights.parse(wrong)
    with pytest.raises(UsageError, match=r"for classes of the data \(a, b\); 'sick' is not one"):
        class_weights.in_order("sick=2", ("a", "b"))
    assert torch.equal(
        weighted(torch.ones(3), torch.tensor([1, 0, 1]), (2.0, 5.0)), torch.tensor([5.0, 2.0, 5.0])
    )


@pytest.mark.parametrize("rule", ["gradient", "paper", "client"])
def test_a_plan_refuses_weights_it_cannot_read_whatever_its_rule(rule: str) -> None:
    for fields, told in (
        ({"class_weights": "ill"}, "class_weights must be like ill=5,well=1"),
        ({"class_weights": "ill=2", "task": "regression"}, "unset where the target is a number"),
    ):
        with pytest.raises(UsageError, match=told):
            Plan(sensitivity=rule, features="raw", rounds=3, lr=0.1, **fields)


def focal(output: Tensor, target: Tensor) -> Tensor:
    """A loss of one's own: records that are already right count less."""
    log = functional.cross_entropy(output, target, reduction="none")
    return (1 - torch.exp(-log)) ** 2 * log


@pytest.mark.parametrize(
    "model", [nn.Linear(FEATURES, 3), nn.Sequential(nn.LayerNorm(FEATURES), nn.Linear(FEATURES, 3))]
)
def test_a_loss_of_ones_own_is_clipped_record_by_record(model: nn.Module) -> None:
    torch.manual_seed(3)
    model = model.double()
    x, y, start = torch.randn(7, FEATURES).double(), torch.arange(7) % 3, flatten(model)
    training = Training(rule="gradient", steps=1, lr=0.7, record_clip=0.05, loss=focal)
    expected = torch.zeros_like(start)
    for record, target in zip(x, y, strict=True):
        (loss,) = focal(model(record[None]), target[None])
        gradient = torch.cat([each.flatten() for each in torch.autograd.grad(loss, model.parameters())])
        expected += gradient * min(1.0, 0.05 / float(gradient.norm())) / 7
    assert torch.allclose(upload(model, x, y, start, training), start - 0.7 * expected, atol=1e-9)


def test_a_loss_that_would_mix_records_cannot() -> None:
    """It behaves while it is asked with three records and couples them beyond: under vmap it never sees a second one."""

    def sly(output: Tensor, target: Tensor) -> Tensor:
        losses = functional.cross_entropy(output, target, reduction="none")
        return losses if len(losses) <= 3 else losses + 100 * losses.sum()

    check_loss(sly, 2, "classification")
    model = nn.Linear(FEATURES, 2).double()
    training = Training(rule="gradient", steps=1, lr=1.0, record_clip=0.5, loss=sly)
    x, y = torch.randn(6, FEATURES).double(), torch.arange(6) % 2
    honest = upload(model, x, y, flatten(model), replace(training, loss="cross_entropy"))
    assert torch.allclose(upload(model, x, y, flatten(model), training), honest, atol=1e-12)


class Forgetful(nn.Module):
    """A loss that counts what it has seen."""

    seen = 0.0

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        self.seen += 1
        return self.seen * functional.cross_entropy(output, target, reduction="none")


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (functional.cross_entropy, r"three records gave \(\)"),
        (lambda o, t: functional.cross_entropy(o, t, reduction="none") - o.mean(), "with the records beside it"),
        (lambda *_: 3.0, "three records gave float"),
        (lambda *_: torch.zeros(3), r"can be differentiated; three records gave \(3,\)"),
        (lambda o, _: o[:, 0] / 0, "three ordinary records gave"),
        (lambda o, _: o.missing(), "it failed"),
        (Forgetful(), "beside it|remembers nothing"),
        (lambda o, _: torch.stack([r[0] if bool(r[0] > 0) else -r[0] for r in o]), "no branches on values"),
    ],
)  # fmt: skip
def test_a_loss_that_is_not_one_per_record_is_refused(loss: object, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        check_loss(loss, 2, "classification")  # type: ignore[arg-type]


def test_a_loss_is_found_by_name() -> None:
    check_loss(f"{__name__}:focal", 3, "classification")
    with pytest.raises(UsageError, match="importing it failed"):
        check_loss("nowhere:focal", 3, "classification")
