"""The empirical planner: which T and K suit, from a pilot of a few rounds.

The loss after T rounds is read as (loss without noise) + (curvature) * sigma_A^2, math.md (12.1): the first is its curve
continued beyond its end, the second is measured by training the same rounds with noise of a known size. It needs no
constant of Assumption 1, so it works where the paper's formulas have no domain (small mu, few local steps).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares
from torch import nn

from nbafl.data.federation import Federation
from nbafl.errors import UsageError
from nbafl.protocol import Training, flatten
from nbafl.simulation.batch import simulate_batch
from nbafl.simulation.job import Job
from nbafl.simulation.scoring.metrics import RoundMetrics
from nbafl.theory.bounds import finite_population

Tail = Callable[[float], float]

PILOT_ROUNDS = 10
MOST_PILOT_ROUNDS = 100
COORDINATES = 2000
"""A small model is trained with several draws of noise, of so many coordinates together: one draw would say little."""
INJECTED = 0.25
"""Injected noise, as a share of the norm of the weights: large enough to measure, small enough to be proportional."""
LEAST_ROUNDS = 6
LATE = 4
"""The fit weighs round t by (t/last)^4: what comes next resembles the end of the pilot, not its start."""


@dataclass(frozen=True)
class Pilot:
    """What a pilot measured; plain numbers, saved beside the constants."""

    losses: tuple[float, ...]  # without noise, after rounds 1, 2, ...
    response: tuple[float, ...]  # loss added per sigma_A^2, after the same rounds
    sampling: float  # loss added per unit of phi = (N-K)/(K(N-1))
    clients: int
    per_round: int
    dimension: int
    clipped: float  # largest share of uploads that clipping shortened in a round without noise

    def curvature(self, rounds: int) -> float:
        """Loss added per sigma_A^2 after T rounds; beyond the pilot its growth goes on, geometrically slower."""
        known = self.response
        if rounds <= len(known):
            return max(0.0, known[rounds - 1])
        span = max(2, len(known) // 5)
        before = known[-1 - span] - known[-1 - 2 * span]
        now = known[-1] - known[-1 - span]
        if before <= 0 or now <= 0:
            return max(0.0, known[-1])
        ratio = min((now / before) ** (1 / span), 1.0)  # of one round's growth to the next
        last = now / float((ratio ** -np.arange(span)).sum())
        steps = ratio ** np.arange(1, rounds - len(known) + 1)
        return max(0.0, known[-1] + last * float(steps.sum()))


@dataclass(frozen=True)
class Prediction:
    """Loss predicted for T rounds of K clients under noise sigma_A."""

    pilot: Pilot
    tails: tuple[Tail, Tail]

    def __call__(self, rounds: int, per_round: int, sigma_aggregate: float) -> float:
        """Measured where the pilot went; beyond it, the middle between a geometric and a harmonic tail."""
        pilot = self.pilot
        if rounds <= len(pilot.losses):
            noise_free = pilot.losses[rounds - 1]
        else:
            noise_free = sum(tail(rounds) for tail in self.tails) / 2
        drawn = finite_population(pilot.clients, per_round) - finite_population(
            pilot.clients, pilot.per_round
        )
        return noise_free + pilot.curvature(rounds) * sigma_aggregate**2 + pilot.sampling * drawn


def predict(pilot: Pilot) -> Prediction:
    """Continue the pilot's curve: a + b exp(-(t-n)/c) is the fastest tail to expect, a + b/(t-n+c) the slowest."""
    return Prediction(pilot, (_fit(pilot.losses, _geometric, 0.5), _fit(pilot.losses, _harmonic, None)))


def _geometric(ahead: np.ndarray, scale: float) -> np.ndarray:
    return np.exp(-ahead / scale)


def _harmonic(ahead: np.ndarray, scale: float) -> np.ndarray:
    return 1 / (ahead + scale)


def _fit(
    losses: tuple[float, ...], shape: Callable[[np.ndarray, float], np.ndarray], least_scale: float | None
) -> Tail:
    """Least squares of a + b shape(t - n, c), a >= 0, from the steepest drop of the curve to its end."""
    curve, last = np.asarray(losses), len(losses)
    first = min(int(np.argmax(curve[:-1] - curve[1:])), last - 4)
    rounds, tail = np.arange(first + 1, last + 1), curve[first:]
    weight = (rounds / last) ** LATE
    least = last - rounds[0] + 0.5 if least_scale is None else least_scale

    def residual(values: np.ndarray) -> np.ndarray:
        return weight * (values[0] + values[1] * shape(rounds - last, values[2]) - tail)

    drop = max(tail[0] - tail[-1], 1e-9)
    starts = [(0.5 * tail[-1], drop * scale, scale) for scale in (least + 0.5, least + 20.0)]
    limits = ([0.0, 0.0, least], [max(tail[-1], 1e-9), np.inf, 500.0])
    fits = [least_squares(residual, start, bounds=limits, x_scale="jac") for start in starts]
    level, height, scale = min(fits, key=lambda fit: fit.cost).x
    return lambda t: float(level + height * shape(np.asarray(float(t - last)), scale))


def pilot_rounds(server_momentum: float) -> int:
    """How long a pilot has to be: momentum v remembers 1/(1-v) rounds, and its effect shows after three times that."""
    return min(MOST_PILOT_ROUNDS, max(PILOT_ROUNDS, round(3 / (1 - server_momentum))))


def run_pilot(
    federation: Federation,
    model: nn.Module,
    training: Training,
    per_round: int | None = None,
    rounds: int = PILOT_ROUNDS,
    seed: int = 0,
    weights: str = "records",
    server_momentum: float = 0.0,
) -> Pilot:
    """Train a few rounds three ways: without noise, with injected noise, and with another K."""
    if rounds < LEAST_ROUNDS:
        raise UsageError("rounds of the pilot", rounds, f"at least {LEAST_ROUNDS}, for a curve to be fitted")
    clients = federation.clients
    drawn = per_round or clients

    def train(*kinds: tuple[float, int, int]) -> list[list[RoundMetrics]]:
        jobs = [
            Job(
                training,
                rounds,
                taking_part,
                sigma_downlink=sigma,
                weights=weights,
                server_momentum=server_momentum,
                seed=draw,
            )
            for sigma, taking_part, draw in kinds
        ]
        return simulate_batch(federation, model, jobs, device="cpu", measure={"train"})

    other = max(1, clients // 5) if drawn == clients else min(clients, 5 * drawn)
    dimension = flatten(model).numel()
    seeds = range(seed, seed + min(16, math.ceil(COORDINATES / dimension)))
    quiet_other, *quiet = train((0.0, other, seed), *((0.0, drawn, each) for each in seeds))
    losses = _losses(quiet[0])
    if not np.isfinite(losses).all():
        raise UsageError("lr", training.lr, "one with which training stays finite in a pilot without noise")
    sigma = INJECTED * float(quiet[0][-1].broadcast_norm or 0.0) / math.sqrt(dimension)
    noisy = train(*((sigma, drawn, each) for each in seeds))
    added = np.mean([_losses(loud) - _losses(calm) for loud, calm in zip(noisy, quiet, strict=True)], axis=0)
    change = finite_population(clients, other) - finite_population(clients, drawn)
    sampling = max(0.0, (_losses(quiet_other)[-1] - losses[-1]) / change) if change else 0.0
    return Pilot(
        losses=tuple(losses.tolist()),
        response=tuple((added / sigma**2).tolist()),
        sampling=float(sampling),
        clients=clients,
        per_round=drawn,
        dimension=dimension,
        clipped=max(each.clipped_fraction or 0.0 for each in quiet[0]),
    )


def _losses(metrics: list[RoundMetrics]) -> np.ndarray:
    return np.array([each.train_loss for each in metrics], dtype=float)
