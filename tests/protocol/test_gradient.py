"""The `gradient` rule against per-record gradients computed one by one, and against its own sensitivity bound."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nbafl.errors import UsageError
from nbafl.privacy.sensitivity import gradient as gradient_sensitivity
from nbafl.protocol import Training, descend, flatten, load
from nbafl.protocol.chain import linear_chain
from nbafl.protocol.gradient import clipped_gradient, gradient_step
from nbafl.rules import upload


def one_by_one(
    model: nn.Module, x: Tensor, y: Tensor, shares: Tensor, training: Training
) -> tuple[Tensor, list[bool]]:
    """Sum of shares times clipped gradients, each from a backward pass of its own, and which were too long."""
    total, clipped = torch.zeros_like(flatten(model)), []
    for record, target, share in zip(x, y, shares, strict=True):
        model.zero_grad()
        output = model(record[None])
        if training.loss == "squared":
            (output.squeeze() - target).square().backward()
        else:
            nn.functional.cross_entropy(output, target[None]).backward()
        each = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
        total += share * each / max(1.0, float(each.norm()) / training.record_clip)
        clipped.append(float(each.norm()) > training.record_clip)
    return total, clipped


class Residual(nn.Module):
    """A small network that is no chain of layers, with a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1)
        self.head = nn.Linear(3 * 16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((torch.tanh(self.conv(x)) + x).flatten(1))


MODELS = {
    "softmax": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 4)),
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4)),
    "deep": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(16, 8, bias=False), nn.Tanh(), nn.Linear(8, 6), nn.SiLU(), nn.Linear(6, 4)
    ),
    "residual": Residual,
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("record_clip", [0.05, 1.0, 1e6])
def test_equals_gradients_taken_one_by_one(name: str, record_clip: float) -> None:
    torch.manual_seed(3)
    model = MODELS[name]().double()
    x, y = torch.randn(23, 1, 4, 4, dtype=torch.float64), torch.randint(4, (23,))
    shares = torch.rand(23, dtype=torch.float64)
    training = Training(rule="gradient", steps=1, record_clip=record_clip)
    ours, clipped = clipped_gradient(model, x, y, flatten(model), shares, training)
    theirs, too_long = one_by_one(model, x, y, shares, training)
    assert torch.allclose(ours, theirs, atol=1e-12)
    assert clipped.tolist() == too_long
    assert (linear_chain(model, x) is None) == (name == "residual")


def test_regression_and_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 3), nn.Sigmoid(), nn.Linear(3, 1)).double()
    x, y = torch.randn(50, 5, dtype=torch.float64), torch.randn(50, dtype=torch.float64)
    shares = torch.full((50,), 0.02, dtype=torch.float64)
    training = Training(rule="gradient", steps=1, record_clip=0.7, loss="squared")
    monkeypatch.setattr("nbafl.protocol.chain.GHOST_ROWS", 7)
    ours, clipped = clipped_gradient(model, x, y, flatten(model), shares, training)
    theirs, too_long = one_by_one(model, x, y, shares, training)
    assert torch.allclose(ours, theirs, atol=1e-12)
    assert clipped.tolist() == too_long


def test_without_clipping_it_is_a_plain_step_and_mu_has_no_say() -> None:
    torch.manual_seed(1)
    model = MODELS["mlp"]().double()
    x, y = torch.randn(30, 16, dtype=torch.float64), torch.randint(4, (30,))
    training = Training(rule="gradient", steps=1, lr=0.3, mu=5.0, record_clip=1e9)
    plain = descend(model, x, y, flatten(model), Training(steps=1, lr=0.3, mu=0.0))
    assert torch.allclose(gradient_step(model, x, y, flatten(model), training), plain, atol=1e-12)
    assert torch.equal(
        upload(model, x, y, flatten(model), training), gradient_step(model, x, y, flatten(model), training)
    )


@pytest.mark.parametrize("name", ["mlp", "residual"])
def test_a_record_without_a_finite_gradient_counts_as_zero(name: str) -> None:
    torch.manual_seed(2)
    model = MODELS[name]()
    x, y = torch.randn(6, 1, 4, 4), torch.randint(4, (6,))
    training = Training(rule="gradient", steps=1, record_clip=0.5)
    shares = torch.full((6,), 1 / 6)
    x[2] = torch.inf
    kept = torch.tensor([0, 1, 3, 4, 5])
    ours, _ = clipped_gradient(model, x, y, flatten(model), shares, training)
    without, _ = clipped_gradient(model, x[kept], y[kept], flatten(model), shares[kept], training)
    assert torch.allclose(ours, without, atol=1e-6)


@pytest.mark.parametrize(("field", "value"), [("steps", 2), ("batch", 5)])
def test_what_the_bound_does_not_cover_is_refused(field: str, value: int) -> None:
    model = MODELS["softmax"]()
    training = Training(**{"rule": "gradient", "steps": 1, field: value})
    with pytest.raises(UsageError, match="under sensitivity gradient"):
        gradient_step(model, torch.randn(9, 16), torch.randint(4, (9,)), flatten(model), training)


def worst_change(name: str, seed: int, records: int, training: Training, size: float) -> float:
    """The largest change of the upload over 24 replacements of one record, as found by random search."""
    torch.manual_seed(seed)
    model = MODELS[name]().double()
    load(flatten(model) * (0.2 + 10 * torch.rand(1, dtype=torch.float64)), model)
    x = size * torch.randn(records, 1, 4, 4, dtype=torch.float64)
    y = torch.randint(4, (records,))
    base = gradient_step(model, x, y, flatten(model), training)
    worst = 0.0
    for attempt in range(24):
        other, target = x.clone(), y.clone()
        # Opposite, enlarged, or fresh records, and other classes: what moves a clipped gradient most.
        other[0] = (-x[0], 100 * x[0], x[0], size * torch.randn(1, 4, 4, dtype=torch.float64))[attempt % 4]
        target[0] = torch.randint(4, (1,))
        change = gradient_step(model, other, target, flatten(model), training) - base
        worst = max(worst, float(change.norm()))
    return worst


@settings(max_examples=120, derandomize=True, deadline=None)
@given(
    name=st.sampled_from(list(MODELS)),
    seed=st.integers(0, 10_000),
    records=st.integers(1, 12),
    record_clip=st.floats(1e-3, 1e3),
    lr=st.floats(1e-2, 10),
    size=st.floats(1e-2, 1e2),
)
def test_one_record_never_moves_the_upload_further_than_its_sensitivity(
    name: str, seed: int, records: int, record_clip: float, lr: float, size: float
) -> None:
    training = Training(rule="gradient", steps=1, lr=lr, record_clip=record_clip)
    bound = float(gradient_sensitivity(record_clip, [records], lr).uplink[0])
    assert worst_change(name, seed, records, training, size) <= bound * (1 + 1e-9)


@pytest.mark.parametrize("records", [1, 10, 100])
def test_the_sensitivity_is_attained(records: int) -> None:
    """Two classes, weights zero: the same record with the other class has the opposite gradient."""
    model = nn.Linear(3, 2).double()
    load(torch.zeros(8, dtype=torch.float64), model)
    x, y = 5 * torch.ones(records, 3, dtype=torch.float64), torch.zeros(records, dtype=torch.int64)
    other = y.clone()
    other[0] = 1
    training = Training(rule="gradient", steps=1, lr=0.3, record_clip=0.25)
    change = gradient_step(model, x, other, flatten(model), training) - gradient_step(
        model, x, y, flatten(model), training
    )
    assert math.isclose(float(change.norm()), 2 * 0.3 * 0.25 / records, rel_tol=1e-9)
