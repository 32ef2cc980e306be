"""The engine of the `gradient` rule against clients that step one by one, and through whole runs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from nbafl.data.federation import Federation
from nbafl.errors import UsageError
from nbafl.protocol import Training, aggregate, flatten
from nbafl.rules import upload
from nbafl.simulation.cores import Cores
from nbafl.simulation.device_data.records import Records
from nbafl.simulation.engines.one_step import OneStepEngine
from nbafl.simulation.job import Job
from nbafl.simulation.models import build
from nbafl.simulation.simulator import Simulator


def federation(sizes: list[int], seed: int = 0) -> Federation:
    random = np.random.default_rng(seed)
    clients = [
        (random.normal(size=(n, 1, 4, 4)).astype(np.float32), random.integers(3, size=n)) for n in sizes
    ]
    return Federation.from_arrays(clients, test=clients[0], outputs=3)


def conv() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3))


def one_by_one(
    data: Federation, model: nn.Module, training: Training, clients: list[int], weights: np.ndarray
) -> torch.Tensor:
    uploads = []
    for client in clients:
        x, y = (torch.from_numpy(part) for part in data.client(client))
        uploads.append(upload(model, x, y, flatten(model), training))
    return aggregate(torch.stack(uploads), weights)


@pytest.mark.parametrize("name", ["softmax", "mlp", "conv"])
@pytest.mark.parametrize("sizes", [[5, 5, 5, 5], [2, 9, 4, 7]])
@pytest.mark.parametrize("clients", [[0, 1, 2, 3], [1, 3]])
def test_a_round_is_the_average_of_what_each_client_uploads(
    name: str, sizes: list[int], clients: list[int]
) -> None:
    data = federation(sizes)
    model = conv() if name == "conv" else build(name, (1, 4, 4), 3, seed=1)
    training = Training(rule="gradient", steps=1, lr=0.7, record_clip=0.8)
    weights = np.asarray(sizes, dtype=float)[clients]
    weights /= weights.sum()
    records = Records(data, torch.device("cpu"), torch.float32)
    for cores in (None, Cores(2)):
        engine = OneStepEngine(records, model, training, seed=0, cores=cores)
        found = engine.round(flatten(model), np.array(clients), weights, 1)
        assert torch.allclose(found.vector, one_by_one(data, model, training, clients, weights), atol=1e-6)
        assert 0 < float(found.clipped) <= len(clients)


def test_the_participants_may_change_from_round_to_round() -> None:
    data, model = federation([4, 6, 8]), build("mlp", (1, 4, 4), 3, seed=1)
    training = Training(rule="gradient", steps=1, lr=0.7, record_clip=0.8)
    engine = OneStepEngine(Records(data, torch.device("cpu"), torch.float32), model, training, seed=0)
    for clients in ([0, 1], [1, 2], [0, 1], [0, 1, 2]):
        weights = np.full(len(clients), 1 / len(clients))
        found = engine.round(flatten(model), np.array(clients), weights, 1)
        assert torch.allclose(found.vector, one_by_one(data, model, training, clients, weights), atol=1e-6)


def test_a_run_learns_and_resumes_to_the_same_model() -> None:
    data, model = federation([20, 20, 20]), build("softmax", (1, 4, 4), 3, seed=0)
    training = Training(rule="gradient", steps=1, lr=0.5, record_clip=1.0)
    job = Job(training, rounds=30, sigma_uplink=1e-3, server_momentum=0.5)
    whole, first = Simulator(data, model, job), Simulator(data, model, job)
    losses = [whole.step().train_loss for _ in range(30)]
    assert losses[-1] is not None
    assert losses[-1] < 0.8 * np.log(3)
    for _ in range(10):
        first.step()
    second = Simulator(data, model, job)
    second.restore(first.state())
    for _ in range(20):
        second.step()
    assert torch.equal(second.vector, whole.vector)


def test_two_steps_or_another_engine_are_refused() -> None:
    data, model = federation([4, 4]), build("softmax", (1, 4, 4), 3, seed=0)
    job = Job(Training(rule="gradient", steps=1), rounds=1)
    with pytest.raises(UsageError, match="local_steps must be 1"):
        Simulator(data, model, dataclasses.replace(job, training=Training(rule="gradient", steps=2)))
    with pytest.raises(UsageError, match="engine must be auto"):
        Simulator(data, model, job, engine="vmap")
