"""The engine of the `proximal` rule against clients that solve one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from nbafl.data.federation import Federation
from nbafl.errors import UsageError
from nbafl.protocol import Training, aggregate, flatten
from nbafl.rules import upload
from nbafl.simulation.device_data.records import Records
from nbafl.simulation.engines import solve
from nbafl.simulation.job import Job
from nbafl.simulation.models import build
from nbafl.simulation.simulator import Simulator


def federation(sizes: list[int]) -> Federation:
    random = np.random.default_rng(5)
    clients = [(random.normal(size=(n, 6)).astype(np.float32), random.integers(3, size=n)) for n in sizes]
    return Federation.from_arrays(clients, test=clients[0], outputs=3)


@pytest.mark.parametrize("tolerance", [None, 1e-5])
@pytest.mark.parametrize("chunk_bytes", [1, 2**29])
def test_a_round_is_the_average_of_what_each_client_uploads(
    tolerance: float | None, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solve, "CHUNK_BYTES", chunk_bytes)
    data, model = federation([4, 9, 6]), build("softmax", (6,), 3, seed=0)
    training = Training(
        rule="proximal", steps=6, lr=0.3, mu=0.1, clip=0.5, tolerance=tolerance, feature_norm=2.0
    )
    engine = solve.SolveEngine(Records(data, torch.device("cpu"), torch.float32), model, training, seed=0)
    start = 0.1 * torch.ones_like(flatten(model))
    clients, weights = np.array([0, 1, 2]), np.array([0.2, 0.5, 0.3])
    found = engine.round(start, clients, weights, 1)
    uploads = [upload(model, *map(torch.from_numpy, data.client(i)), start, training) for i in range(3)]
    assert torch.allclose(found.vector, aggregate(torch.stack(uploads), weights), atol=1e-6)
    assert found.norm is not None
    assert float(found.norm) == pytest.approx(np.mean([float(u.norm()) for u in uploads]), rel=1e-5)
    assert int(found.clipped) == sum(float(u.norm()) > 0.4999 for u in uploads)


def test_a_run_learns() -> None:
    data, model = federation([30, 30]), build("softmax", (6,), 3, seed=0)
    training = Training(rule="proximal", mu=0.5, clip=20, tolerance=1e-4, feature_norm=3.0)
    simulator = Simulator(data, model, Job(training, rounds=10))
    losses = [simulator.step().train_loss for _ in range(10)]
    assert losses[-1] is not None
    assert losses[0] is not None
    assert losses[-1] < losses[0] < np.log(3)


def test_a_network_is_refused() -> None:
    data, model = federation([4, 4]), build("mlp", (6,), 3, seed=0)
    training = Training(rule="proximal", mu=0.5, tolerance=1e-4, feature_norm=3.0)
    with pytest.raises(UsageError, match="softmax"):
        Simulator(data, model, Job(training, rounds=1))


def test_a_linear_model_in_disguise_is_refused() -> None:
    class Squared(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).square()

    hooked = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
    hooked.register_forward_hook(lambda module, inputs, output: output.square())  # noqa: ARG005
    training = Training(rule="proximal", mu=0.5, tolerance=1e-4, feature_norm=3.0)
    for model in (Squared(6, 3), nn.Sequential(nn.Flatten(), Squared(6, 3)), hooked):
        with pytest.raises(UsageError, match="softmax"):
            Simulator(federation([4, 4]), model, Job(training, rounds=1))


def test_numbers_are_learned_too() -> None:
    random = np.random.default_rng(1)
    x = random.normal(size=(3, 20, 4)).astype(np.float32)
    y = (x @ np.array([1.0, -2.0, 0.5, 0.0]) + 0.3).astype(np.float32)
    data = Federation.from_arrays(list(zip(x, y, strict=True)), test=(x[0], y[0]))
    training = Training(rule="proximal", mu=0.2, clip=20, tolerance=1e-4, feature_norm=20.0, loss="squared")
    simulator = Simulator(data, build("softmax", (4,), 1, seed=0), Job(training, rounds=20))
    losses = [simulator.step().test_loss for _ in range(20)]
    assert losses[0] is not None
    assert losses[-1] is not None
    assert losses[-1] < 1e-3 < losses[0]
