"""The constants of Assumption 1, estimated from a short pilot without noise, for any model.

As in the paper's source for this (Wang et al., reference 8664630), a client compares its local parameters
with the aggregate: beta_i = |F_i(w_i) - F_i(w)| / |w_i - w|, rho_i = |grad F_i(w_i) - grad F_i(w)| / |w_i - w|
and epsilon_i = |grad F_i(w) - grad F(w)| (that source names the first rho and the second beta). l and B follow
from their definitions at every broadcast. These are values met on the way, not proven constants: the spread is
kept, the average is what the paper uses, and the worst value met is what the repaired bound uses.
A pilot reads the clients' data and nothing here protects it: use public data, or count it outside the guarantee.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from nbafl.data.federation import Federation
from nbafl.errors import UsageError
from nbafl.protocol import Training, descend, record_losses, unflatten
from nbafl.protocol.losses import weighted
from nbafl.simulation.cores import one_thread
from nbafl.simulation.job import Job
from nbafl.simulation.simulator import Simulator
from nbafl.theory.assumptions import Constants

NOT_COVERED = (
    "The constants and the pilot curve come from training without noise: "
    "on private data that pilot is outside the privacy guarantee."
)
SAME = 1e-3
"""Local parameters nearer to the aggregate than this share of their own way are compared with where they started."""
AT_MOST_CLIENTS = 20
"""So many clients are compared in each round; of a larger federation, an even selection."""


@dataclass(frozen=True)
class Estimate:
    """One constant over all rounds and clients of the pilot."""

    mean: float
    low: float
    high: float

    @staticmethod
    def of(values: list[float]) -> Estimate:
        """Mean and range of what was met."""
        return Estimate(float(np.mean(values)), float(np.min(values)), float(np.max(values)))


@dataclass(frozen=True)
class MeasuredConstants:
    """What a pilot of `rounds` rounds met; saved as JSON and read back."""

    rho: Estimate
    beta: Estimate
    polyak: Estimate
    dissimilarity: Estimate
    divergence: Estimate
    initial_gap: float
    rounds: int
    clients: int

    def average(self) -> Constants:
        """Averages over rounds and clients, as the paper's source uses them."""
        return self._pick(rho="mean", beta="mean", polyak="mean", dissimilarity="mean", divergence="mean")

    def worst(self) -> Constants:
        """The least favourable value met of each constant."""
        return self._pick(rho="high", beta="high", polyak="low", dissimilarity="high", divergence="high")

    def _pick(self, **which: str) -> Constants:
        chosen = {name: getattr(getattr(self, name), side) for name, side in which.items()}
        return Constants(**chosen, initial_gap=self.initial_gap)


def loss_and_gradient(
    model: nn.Module, x: Tensor, y: Tensor, vector: Tensor, training: Training
) -> tuple[float, Tensor]:
    """F_i(w) and its gradient at the flat parameter vector w."""
    at = vector.detach().clone().requires_grad_(True)
    losses = record_losses(functional_call(model, unflatten(at, model), (x,)), y, training.loss)
    value = weighted(losses, y, training.class_weights).mean()
    (gradient,) = torch.autograd.grad(value, at)
    return float(value.detach()), gradient


def measure(
    federation: Federation,
    model: nn.Module,
    training: Training,
    rounds: int = 5,
    seed: int = 0,
    lowest_loss: float = 0.0,
) -> MeasuredConstants:
    """Train `rounds` rounds without noise and note the constants at each aggregation.

    `lowest_loss` stands for F(w*); 0 is below every loss used here, which makes Theta too large and l too
    small: both on the safe side.
    """
    everyone = range(0, federation.clients, -(-federation.clients // AT_MOST_CLIENTS))
    clients = [_tensors(federation, index) for index in everyone]
    share = np.array([len(y) for _, y in clients], dtype=float)
    simulator = Simulator(
        federation, model, Job(training, rounds=rounds, seed=seed), device="cpu", measure=()
    )
    start_loss, slope = _broadcast(model, clients, share / share.sum(), simulator.vector, training)[:2]
    met: dict[str, list[float]] = {name: [] for name in ("rho", "beta", "dissimilarity", "divergence")}
    met["polyak"] = [slope**2 / (2 * (start_loss - lowest_loss))]
    with one_thread():  # the models are small: more threads would only wait for one another
        for _ in range(rounds):
            start = simulator.vector
            simulator.step()
            _compare(model, clients, share / share.sum(), start, simulator.vector, training, lowest_loss, met)
    estimates = {name: Estimate.of(values) for name, values in met.items()}
    return MeasuredConstants(
        **estimates, initial_gap=start_loss - lowest_loss, rounds=rounds, clients=federation.clients
    )


def _tensors(federation: Federation, client: int) -> tuple[Tensor, Tensor]:
    x, y = federation.client(client)
    return torch.from_numpy(x), torch.from_numpy(y)


def _broadcast(
    model: nn.Module,
    clients: list[tuple[Tensor, Tensor]],
    share: np.ndarray,
    vector: Tensor,
    training: Training,
) -> tuple[float, float, float, float, list[tuple[float, Tensor]]]:
    """F, |grad F|, Lemma 2's B and the root mean square of epsilon_i at a broadcast, and each client's part."""
    parts = [loss_and_gradient(model, x, y, vector, training) for x, y in clients]
    total = sum(weight * value for weight, (value, _) in zip(share, parts, strict=True))
    mean = torch.stack([weight * gradient for weight, (_, gradient) in zip(share, parts, strict=True)]).sum(0)
    norm = float(mean.norm())
    divergence = float(
        np.sqrt(sum(w * float((g - mean).square().sum()) for w, (_, g) in zip(share, parts, strict=True)))
    )
    return float(total), norm, float(np.hypot(1.0, divergence / norm)), divergence, parts


def _compare(
    model: nn.Module,
    clients: list[tuple[Tensor, Tensor]],
    share: np.ndarray,
    start: Tensor,
    aggregate: Tensor,
    training: Training,
    lowest_loss: float,
    met: dict[str, list[float]],
) -> None:
    """One round of Wang et al.'s comparison: every client's local parameters against the aggregate."""
    value, norm, dissimilarity, divergence, parts = _broadcast(model, clients, share, aggregate, training)
    met["dissimilarity"].append(dissimilarity)
    met["divergence"].append(divergence)
    met["polyak"].append(norm**2 / (2 * (value - lowest_loss)))
    full_batch = replace(training, batch=None)
    for (x, y), at_aggregate in zip(clients, parts, strict=True):
        local = descend(model, x, y, start, full_batch)
        moved = float((local - start).norm())
        if not 0 < moved < np.inf:
            raise UsageError(
                "lr", training.lr, "one with which a client's weights move and stay finite in a pilot"
            )
        other, (loss_there, gradient_there) = aggregate, at_aggregate
        if (
            float((local - aggregate).norm()) < SAME * moved
        ):  # a client alone: nothing to compare but rounding
            other, (loss_there, gradient_there) = start, loss_and_gradient(model, x, y, start, training)
        loss_here, gradient_here = loss_and_gradient(model, x, y, local, training)
        distance = float((local - other).norm())
        met["beta"].append(abs(loss_here - loss_there) / distance)
        met["rho"].append(float((gradient_here - gradient_there).norm()) / distance)
