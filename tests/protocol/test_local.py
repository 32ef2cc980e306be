"""The reference path itself, against steps written out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nbafl.errors import UsageError
from nbafl.protocol import Training, client_batches, descend, flatten, load, unflatten
from nbafl.rules import upload


def linear_problem() -> tuple[nn.Module, torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1, bias=False).double()
    return model, torch.randn(8, 3, dtype=torch.float64), torch.randn(8, dtype=torch.float64), flatten(model)


def test_two_proximal_steps_by_hand() -> None:
    model, x, y, start = linear_problem()
    lr, mu = 0.1, 0.7
    weights = start.clone()
    for _ in range(2):
        gradient = 2 * x.t() @ (x @ weights - y) / len(y)
        weights = weights - lr * (gradient + mu * (weights - start))
    training = Training(steps=2, lr=lr, mu=mu, loss="squared", clip=1e9)
    torch.testing.assert_close(upload(model, x, y, start, training), weights)


def test_minibatch_steps_by_hand() -> None:
    model, x, y, start = linear_problem()
    training = Training(steps=4, lr=0.1, mu=0.0, batch=3, loss="squared", clip=1e9)
    order = client_batches(0, 1, 5, 8, training)
    assert order is not None
    weights = start.clone()
    for rows in order:
        rows = rows[rows >= 0]
        weights = weights - 0.1 * 2 * x[rows].t() @ (x[rows] @ weights - y[rows]) / len(rows)
    torch.testing.assert_close(descend(model, x, y, start, training, order), weights)


def test_what_is_clipped() -> None:
    model, x, y, start = linear_problem()
    moved = descend(model, x, y, start, Training(steps=3, loss="squared"))
    paper = upload(model, x, y, start, Training(steps=3, loss="squared", clip=0.05))
    torch.testing.assert_close(paper, moved * 0.05 / moved.norm())
    client = upload(model, x, y, start, Training(rule="client", steps=3, loss="squared", clip=0.01))
    torch.testing.assert_close(client, start + (moved - start) * 0.01 / (moved - start).norm())


def test_a_rule_that_does_not_exist_is_refused() -> None:
    model, x, y, start = linear_problem()
    with pytest.raises(UsageError, match="sensitivity must be one of"):
        upload(model, x, y, start, Training(rule="none", loss="squared"))


@pytest.mark.parametrize(
    "field",
    [{"steps": 0}, {"lr": 0.0}, {"lr": float("nan")}, {"mu": -1.0}, {"batch": 0}, {"clip": 0.0},
     {"record_clip": -1.0}, {"tolerance": 0.0}],
)  # fmt: skip
def test_training_that_cannot_be_is_refused(field: dict) -> None:
    with pytest.raises(UsageError, match=next(iter(field))):
        Training(**field)


def test_a_loss_that_does_not_exist_is_refused() -> None:
    model, x, y, start = linear_problem()
    with pytest.raises(UsageError, match="loss"):
        upload(model, x, y, start, Training(loss="hinge"))


def test_a_vector_goes_into_a_model_and_back() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    model[2].weight.requires_grad_(False)  # frozen: not part of the vector
    vector = torch.arange(flatten(model).numel(), dtype=torch.float32)
    assert torch.equal(flatten(load(vector, model)), vector)
    assert "2.weight" not in unflatten(vector, model)
    with pytest.raises(ValueError, match="parameters"):
        unflatten(vector[:-1], model)
