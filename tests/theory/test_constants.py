"""Constants measured in a pilot, against what linear algebra says about linear regression."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from nbafl.data.federation import Federation
from nbafl.errors import UsageError
from nbafl.protocol import Training, flatten
from nbafl.simulation.job import Job
from nbafl.simulation.simulator import Simulator
from nbafl.theory.constants import loss_and_gradient, measure

TRAINING = Training(rule="paper", steps=3, lr=0.02, mu=0.0, clip=1e6, loss="squared")


@pytest.fixture(scope="module")
def federation() -> Federation:
    rng = np.random.default_rng(3)
    clients = []
    for shift in range(6):
        x = rng.normal(size=(30, 4)).astype(np.float32)
        y = (x @ np.array([1.0, -2.0, 0.5, 0.0]) + 0.3 * shift + rng.normal(size=30)).astype(np.float32)
        clients.append((x, y))
    return Federation.from_arrays(clients=clients)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(4, 1)


def hessians(federation: Federation) -> np.ndarray:
    """2 X'X/m of every client, the bias as a last input of 1."""
    found = []
    for client in range(federation.clients):
        x = federation.client(client)[0].astype(float)
        wide = np.hstack([x, np.ones((len(x), 1))])
        found.append(2 * wide.T @ wide / len(x))
    return np.stack(found)


def test_estimates_lie_between_the_eigenvalues(federation: Federation, model: nn.Module) -> None:
    found = measure(federation, model, TRAINING, rounds=4)
    eigenvalues = np.linalg.eigvalsh(hessians(federation))
    assert eigenvalues.min() <= found.rho.low <= found.rho.mean <= found.rho.high
    assert found.rho.high <= eigenvalues.max() * (1 + 1e-3)
    assert found.dissimilarity.low >= 1
    assert found.beta.high <= found.divergence.high + 2 * np.sqrt(2 * found.rho.high * found.initial_gap)


def test_divergence_and_polyak_are_those_of_the_broadcasts(federation: Federation, model: nn.Module) -> None:
    """epsilon_i, B and l recomputed from the Hessians at the pilot's own broadcasts."""
    lowest = 0.1
    found = measure(federation, model, TRAINING, rounds=3, lowest_loss=lowest)
    simulator = Simulator(federation, model, Job(TRAINING, rounds=3), device="cpu", measure=())
    divergences, polyak = [], []
    for round in range(4):
        at = simulator.vector.double().numpy()
        losses, gradients = [], []
        for client, hessian in enumerate(hessians(federation)):
            x, y = (part.astype(float) for part in federation.client(client))
            wide = np.hstack([x, np.ones((len(x), 1))])
            losses.append(np.mean((wide @ at - y) ** 2))
            gradients.append(hessian @ at - 2 * wide.T @ y / len(y))
        mean = np.mean(gradients, axis=0)
        polyak.append(mean @ mean / (2 * (np.mean(losses) - lowest)))
        if round > 0:
            divergences.append(np.sqrt(np.mean(np.sum((np.array(gradients) - mean) ** 2, axis=1))))
        if round < 3:
            simulator.step()
    assert found.divergence.mean == pytest.approx(np.mean(divergences), rel=1e-3)
    assert found.polyak.low == pytest.approx(min(polyak), rel=1e-3)
    assert found.initial_gap + lowest == pytest.approx(
        np.mean([loss_at(model, *federation.client(c)) for c in range(6)]), rel=1e-5
    )


def loss_at(model: nn.Module, x: np.ndarray, y: np.ndarray) -> float:
    value, _ = loss_and_gradient(
        model, torch.from_numpy(x), torch.from_numpy(y), flatten(model), Training(loss="squared")
    )
    return value


def test_average_and_worst_take_the_right_side(federation: Federation, model: nn.Module) -> None:
    found = measure(federation, model, TRAINING, rounds=3)
    assert found.average().rho == found.rho.mean
    worst = found.worst()
    assert (worst.rho, worst.polyak, worst.divergence) == (
        found.rho.high,
        found.polyak.low,
        found.divergence.high,
    )


def test_a_client_alone_is_compared_with_where_it_started(federation: Federation, model: nn.Module) -> None:
    """Its aggregate is its own upload, so that comparison would measure rounding only."""
    alone = Federation.from_arrays(clients=[federation.client(0)])
    eigenvalues = np.linalg.eigvalsh(hessians(alone)[0])
    rho = measure(alone, model, TRAINING).rho
    assert eigenvalues[0] * (1 - 1e-3) <= rho.low <= rho.high <= eigenvalues[-1] * (1 + 1e-3)


@pytest.mark.parametrize("lr", [1e-30, 1e30])
def test_a_pilot_that_stands_still_or_diverges_is_refused(
    federation: Federation, model: nn.Module, lr: float
) -> None:
    with pytest.raises(UsageError, match=r"lr must be one with which .* weights move and stay finite"):
        measure(federation, model, dataclasses.replace(TRAINING, lr=lr))
