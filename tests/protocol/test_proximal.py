"""The `proximal` rule against an independent solver and against its bounds; `client` and `paper` beside it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor, nn

from nbafl.errors import Refused, UsageError
from nbafl.privacy import sensitivity
from nbafl.protocol import Training, flatten, load, proximal
from nbafl.rules import upload


def softmax_model(features: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(features, classes)).double()


def bound(training: Training, records: int) -> float:
    """Delta_U as the privacy core states it."""
    assert training.feature_norm is not None
    lipschitz, smoothness = sensitivity.softmax_constants(training.feature_norm)
    stepped = training.tolerance is None
    found = sensitivity.proximal(
        training.clip,
        [records],
        lipschitz=lipschitz,
        mu=training.mu,
        tolerance=training.tolerance,
        steps=training.steps if stepped else None,
        lr=training.lr if stepped else None,
        smoothness=smoothness if stepped else None,
    )
    return float(found.uplink[0])


def largest_step(feature_norm: float, mu: float, loss: str = "cross_entropy") -> float:
    return 2 / (feature_norm**2 / (2 if loss == "cross_entropy" else 1) + 2 * mu)


def test_the_solution_is_that_of_another_solver() -> None:
    torch.manual_seed(0)
    model, features, classes = softmax_model(6, 3), 6, 3
    x, y = torch.randn(20, features, dtype=torch.float64), torch.randint(classes, (20,))
    training = Training(rule="proximal", mu=0.05, clip=1e6, tolerance=1e-8, feature_norm=4.0)
    start = flatten(model)
    ours = proximal.proximal_upload(model, x, y, start, training)
    clipped = x * (math.sqrt(15) / x.norm(dim=1, keepdim=True)).clamp(max=1)

    def objective(values: np.ndarray) -> tuple[float, np.ndarray]:
        weights = torch.tensor(values, requires_grad=True)
        output = clipped @ weights[:18].view(3, 6).T + weights[18:]
        loss = nn.functional.cross_entropy(output, y) + 0.025 * (weights - start).square().sum()
        loss.backward()
        return loss.item(), weights.grad.numpy()

    theirs = minimize(objective, start.numpy(), jac=True, method="BFGS", options={"gtol": 1e-9}).x
    assert np.allclose(ours, theirs, atol=1e-6)


def test_numbers_are_learned_with_hubers_loss() -> None:
    torch.manual_seed(0)
    model = softmax_model(4, 1)
    x, y = torch.randn(20, 4, dtype=torch.float64), 3 * torch.randn(20, dtype=torch.float64)
    training = Training(rule="proximal", mu=0.5, clip=1e6, tolerance=1e-7, feature_norm=6.0, loss="squared")
    assert float(x.norm(dim=1).max()) ** 2 < 35, "nothing is clipped"
    start = flatten(model)

    def objective(values: np.ndarray) -> tuple[float, np.ndarray]:
        weights = torch.tensor(values, requires_grad=True)
        loss = (
            nn.functional.huber_loss(x @ weights[:4] + weights[4], y)
            + 0.25 * (weights - start).square().sum()
        )
        loss.backward()
        return loss.item(), weights.grad.numpy()

    theirs = minimize(objective, start.numpy(), jac=True, method="BFGS", options={"gtol": 1e-9}).x
    assert np.allclose(proximal.proximal_upload(model, x, y, start, training), theirs, atol=1e-6)


def test_clients_side_by_side_get_what_each_gets_alone() -> None:
    torch.manual_seed(1)
    model = softmax_model(5, 4)
    sizes = [3, 9, 6]
    x, y = torch.randn(3, 9, 5, dtype=torch.float64), torch.randint(4, (3, 9))
    share = torch.tensor(
        [[1 / n if row < n else 0.0 for row in range(9)] for n in sizes], dtype=torch.float64
    )
    for tolerance in (1e-4, None):
        training = Training(
            rule="proximal", steps=7, lr=0.2, mu=0.3, clip=2.0, tolerance=tolerance, feature_norm=2.0
        )
        together = proximal.uploads(model, x, y, share, flatten(model), training)
        for row, n in enumerate(sizes):
            alone = upload(model, x[row, :n], y[row, :n], flatten(model), training)
            assert torch.allclose(together[row], alone, atol=1e-12)


def test_plain_steps_are_those_of_the_reference_path() -> None:
    torch.manual_seed(2)
    model = softmax_model(5, 4)
    x, y = 0.1 * torch.randn(11, 5, dtype=torch.float64), torch.randint(4, (11,))
    training = Training(rule="proximal", steps=9, lr=0.4, mu=0.2, clip=0.7, feature_norm=1.5)
    reference = Training(rule="paper", steps=9, lr=0.4, mu=0.2, clip=0.7)
    theirs = upload(model, x, y, flatten(model), reference)
    assert torch.allclose(proximal.proximal_upload(model, x, y, flatten(model), training), theirs, atol=1e-12)


@pytest.mark.parametrize("norm", [0.01, 0.5, 1e6])
def test_features_are_held_to_the_bound(norm: float) -> None:
    x = norm * nn.functional.normalize(torch.randn(4, 5, 8, dtype=torch.float64), dim=-1)
    held = proximal.bounded(x, 1.25)
    assert held.norm(dim=-1).max() <= 1.25 * (1 + 1e-12)
    assert torch.allclose(held[..., :-1], x) == (norm <= 0.5)


def test_what_is_not_proven_is_refused() -> None:
    x, y = torch.randn(4, 5), torch.randint(3, (4,))
    mlp = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    line = softmax_model(5, 3).float()
    solve = Training(rule="proximal", mu=0.1, tolerance=1e-3, feature_norm=2.0)
    step = Training(rule="proximal", mu=0.1, lr=1.5, feature_norm=2.0)
    cases = [
        ("model", mlp, solve),
        ("feature_norm", line, Training(rule="proximal", mu=0.1, tolerance=1e-3)),
        ("mu", line, Training(rule="proximal", mu=0.0, tolerance=1e-3, feature_norm=2.0)),
        ("lr", line, step),
        ("model", line, Training(rule="proximal", mu=0.1, tolerance=1e-3, feature_norm=2.0, loss="squared")),
    ]
    for field, model, training in cases:
        with pytest.raises(UsageError, match=f"^{field} "):
            proximal.proximal_upload(model, x, y, flatten(model), training)


def test_nothing_is_released_when_the_tolerance_might_be_missed() -> None:
    model = softmax_model(5, 3)
    x, y = torch.zeros(4, 5, dtype=torch.float64), torch.zeros(4, dtype=torch.int64)
    for mu, message in ((1e-9, "200000 are made"), (1e-4, "float64 cannot be sure of less")):
        training = Training(rule="proximal", mu=mu, tolerance=1e-9, feature_norm=3.0)
        with pytest.raises(UsageError, match=message):  # these records would be solved at once
            proximal.proximal_upload(model, x, y, flatten(model), training)
    training = Training(rule="proximal", mu=0.1, tolerance=1e-3, feature_norm=3.0)
    broken = torch.full((18,), math.nan, dtype=torch.float64)
    with pytest.raises(Refused, match="not finite"):
        proximal.proximal_upload(model, x, y, broken, training)


def worst_change(
    training: Training, seed: int, records: int, features: int, classes: int, scale: float
) -> float:
    """The largest change of the upload over 40 replacements of one record: neighbours are solved side by side."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    model = softmax_model(features, classes if training.loss == "cross_entropy" else 1)
    start = scale * normal(flatten(model).numel())
    x = training.feature_norm * normal(1, records, features).repeat(41, 1, 1)
    y = torch.randint(classes, (1, records), generator=random).repeat(41, 1)
    if training.loss == "squared":
        y = 20 * normal(1, records).repeat(41, 1)
    # Opposite, enlarged, or fresh records, and other classes, as an attacker would try.
    x[1:11, 0] *= -1
    x[11:21, 0] *= 100
    x[31:, 0] = training.feature_norm * normal(10, features)
    y[1:, 0] = (
        20 * normal(40) if training.loss == "squared" else torch.randint(classes, (40,), generator=random)
    )
    share = torch.full((41, records), 1 / records, dtype=torch.float64)
    found = proximal.uploads(model, x, y, share, start, training)
    return float((found[1:] - found[0]).norm(dim=1).max())


@settings(max_examples=250, derandomize=True, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    records=st.integers(1, 8),
    features=st.integers(1, 6),
    classes=st.integers(2, 5),
    feature_norm=st.floats(1.05, 5),
    mu=st.floats(0.03, 5),
    scale=st.sampled_from([0.0, 1.0, 30.0]),
    tolerance=st.sampled_from([None, 1e-1, 1e-3, 1e-6]),
    steps=st.integers(1, 30),
    part=st.floats(0.05, 1),
    clip=st.sampled_from([0.1, 1.0, 1e3]),
    loss=st.sampled_from(["cross_entropy", "squared"]),
)
def test_one_record_never_moves_the_upload_further_than_its_sensitivity(
    seed: int,
    records: int,
    features: int,
    classes: int,
    feature_norm: float,
    mu: float,
    scale: float,
    tolerance: float | None,
    steps: int,
    part: float,
    clip: float,
    loss: str,
) -> None:
    lr = part * largest_step(feature_norm, mu, loss)
    training = Training(
        rule="proximal",
        steps=steps,
        lr=lr,
        mu=mu,
        clip=clip,
        tolerance=tolerance,
        feature_norm=feature_norm,
        loss=loss,
    )
    found = worst_change(training, seed, records, features, classes, scale)
    assert found <= bound(training, records) * (1 + 1e-9)


@pytest.mark.parametrize("tolerance", [None, 1e-6])
@pytest.mark.parametrize("records", [1, 20])
def test_the_sensitivity_is_attained_to_nine_tenths(tolerance: float | None, records: int) -> None:
    """The broadcast is sure of class 1 everywhere; a record of class 0 at x or at −x pulls with all its might."""
    model = softmax_model(3, 2)
    start = torch.zeros(8, dtype=torch.float64)
    start[-1] = 200.0  # bias of class 1
    training = Training(
        rule="proximal",
        steps=15,
        lr=largest_step(8.0, 2.0),
        mu=2.0,
        clip=1e6,
        tolerance=tolerance,
        feature_norm=8.0,
    )
    x, y = 100 * torch.ones(2, records, 3, dtype=torch.float64), torch.zeros(2, records, dtype=torch.int64)
    x[1, 0] *= -1
    share = torch.full((2, records), 1 / records, dtype=torch.float64)
    found = proximal.uploads(model, x, y, share, start, training)
    assert 0.9 < float((found[1] - found[0]).norm()) / bound(training, records) <= 1


@settings(max_examples=100, derandomize=True, deadline=None)
@given(
    seed=st.integers(0, 10_000), clip=st.floats(1e-3, 10), lr=st.floats(1e-3, 100), steps=st.integers(1, 5)
)
def test_a_whole_client_moves_its_upload_by_no_more_than_2c(
    seed: int, clip: float, lr: float, steps: int
) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    training = Training(rule="client", steps=steps, lr=lr, clip=clip, mu=0.0)
    start = flatten(model)
    replace = float(sensitivity.client(clip, 1, "replace").uplink[0])
    drop = float(sensitivity.client(clip, 1, "drop").uplink[0])
    found = []
    for _ in range(8):
        x, y = 5 * torch.randn(6, 4, dtype=torch.float64), torch.randint(3, (6,))
        found.append(upload(model, x, y, start, training))
    assert max(float((one - start).norm()) for one in found) <= drop * (1 + 1e-9)
    assert max(float((one - other).norm()) for one in found for other in found) <= replace * (1 + 1e-9)


def test_a_whole_client_attains_2c() -> None:
    model = nn.Linear(3, 2).double()
    load(torch.zeros(8, dtype=torch.float64), model)
    training = Training(rule="client", steps=1, lr=10.0, clip=0.5, mu=0.0)
    x, zeros = torch.ones(4, 3, dtype=torch.float64), torch.zeros(4, dtype=torch.int64)
    one, other = (upload(model, x, y, flatten(model), training) for y in (zeros, 1 - zeros))
    assert math.isclose(float((one - other).norm()), 2 * 0.5, rel_tol=1e-9)


def test_the_papers_sensitivity_fails_when_one_record_decides() -> None:
    """Softmax regression, 100 records of which one says anything: it turns the whole upload around."""
    records, clip = 100, 0.2
    model = nn.Linear(3, 2).double()
    load(torch.zeros(8, dtype=torch.float64), model)
    x = torch.zeros(records, 3, dtype=torch.float64)
    x[0] = 20.0
    y = torch.arange(records) % 2
    other = y.clone()
    y[0], other[0] = 0, 1
    training = Training(rule="paper", steps=200, lr=1.0, mu=0.0, clip=clip)
    one, two = (upload(model, x, target, flatten(model), training) for target in (y, other))
    assert float((one - two).norm()) > 1.5 * clip > 2 * clip / records


def test_the_papers_sensitivity_fails_for_its_own_network() -> None:
    """The paper's MLP on 100 digits: replacing one of them moves the upload further than 2C/m."""
    from nbafl.data import mnist
    from nbafl.simulation.models import build

    digits = mnist.train()
    x, y = torch.from_numpy(digits.pixels(np.arange(101))), torch.from_numpy(digits.classes(np.arange(101)))
    model = build("mlp", (1, 28, 28), 10, seed=0)
    training = Training(rule="paper", steps=300, lr=0.5, mu=0.0, clip=10.0)
    wrong = (y[100] + 1) % 10  # a mislabelled digit, as any client may hold
    targets = torch.cat([y[:99], wrong[None]])
    one = upload(model, x[:100], y[:100], flatten(model), training)
    other = upload(model, torch.cat([x[:99], x[100:]]), targets, flatten(model), training)
    assert float((one - other).norm()) > 2 * training.clip / 100
