"""What leaves a federation, the noise on it, and what one round of it costs a client.

A round costs a target client one of three amounts of μ², by what somebody sees of it (math.md (4.1) to (4.3)): the
target's own upload (a), the broadcast and every other upload (c), or the broadcast alone (b), with a ≥ c ≥ b.
Clients may differ in Δ, weight and noise; equal ones are grouped, so a million clients cost no more than a few.
Where K of N clients are drawn, the participants that protect the target least are assumed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from nbafl.errors import UsageError
from nbafl.privacy.sensitivity import Sensitivity, check_count


@dataclass(frozen=True)
class Earlier:
    """A finished run that another one goes on with: its releases are about the same data, so their prices add up."""

    plan: str
    """sha256 of its plan."""
    model: str
    """sha256 of the model file it ended with."""
    rounds: int
    exposures: int
    """L that its cost was computed for."""
    cost: Mapping[str, float]
    """mu^2 that it cost, by the name of the adversary."""
    init: str = ""
    """sha256 of the public weights it started from; empty if it did not."""

    def __post_init__(self) -> None:
        check_count("continues: rounds", self.rounds)
        check_count("continues: exposures", self.exposures)
        for name, value in self.cost.items():
            if not 0 <= value < math.inf:
                raise UsageError(f"continues: cost against {name}", value, "a finite number of at least 0")


@dataclass(frozen=True)
class Release:
    """What leaves the federation, apart from the noise."""

    sensitivity: Sensitivity
    weights: np.ndarray
    rounds: int
    per_round: int
    exposures: int
    earlier: tuple[Earlier, ...] = ()
    """Runs that this one goes on with."""
    scores: float = 0.0
    """mu^2 of noisy scores that the clients released beside the training, seen by everybody (math.md (10.3))."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", np.asarray(self.weights, dtype=float))
        if self.weights.shape != self.sensitivity.uplink.shape:
            raise UsageError("weights", self.weights.shape, f"one number for each of {self.clients} clients")
        if not (np.all(self.weights > 0) and abs(self.weights.sum() - 1) < 1e-6):
            raise UsageError("weights", float(self.weights.sum()), "positive numbers that sum to 1")
        check_count("rounds", self.rounds)
        check_count("per_round", self.per_round)
        check_count("exposures", self.exposures)
        if self.per_round > self.clients:
            raise UsageError("per_round", self.per_round, f"at most the number of clients, {self.clients}")
        if self.exposures > self.rounds:
            raise UsageError("exposures", self.exposures, f"at most the number of rounds, {self.rounds}")

    @property
    def clients(self) -> int:
        """N."""
        return self.sensitivity.clients

    def before(self, adversary: str) -> float:
        """mu^2 before a round is counted, of earlier runs and of scores, by adversary: squares add up, math.md (3.2)."""
        return self.scores + sum(each.cost.get(adversary, math.inf) for each in self.earlier)

    @property
    def everyone(self) -> bool:
        """Whether every client takes part in every round (K = N)."""
        return self.per_round == self.clients

    @property
    def uplink(self) -> np.ndarray:
        """Δ_U of each client as it counts here: a dropped client's slot is filled by another when K < N, so 2C."""
        filled = self.sensitivity.adjacency == "drop" and not self.everyone
        return self.sensitivity.uplink * (2.0 if filled else 1.0)

    @property
    def downlink(self) -> float:
        """Δ_D = max_j p_jΔ_U(j), the weights shared among the K participants that leave j the largest share."""
        first, _, counts = self.kinds
        weight, uplink = self.weights[first], self.uplink[first]
        return float(np.max(weight * uplink / (weight + smallest_others(weight, counts, self.per_round - 1))))

    @functools.cached_property
    def kinds(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Clients of equal Δ_U and weight as one kind: (one client of each kind, kind of each client, how many)."""
        return _kinds(self.weights, self.uplink)

    @property
    def equal(self) -> bool:
        """Whether all clients have the same Δ_U and the same weight."""
        return bool(np.ptp(self.weights) < 1e-12 * self.weights[0] and np.ptp(self.uplink) == 0)


@dataclass(frozen=True)
class Noise:
    """Standard deviations: σ_i of each client's upload, σ_D of the server."""

    sigma_uplink: np.ndarray
    sigma_downlink: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma_uplink", np.asarray(self.sigma_uplink, dtype=float))
        if self.sigma_uplink.ndim != 1 or not np.all(self.sigma_uplink >= 0):
            raise UsageError("sigma_uplink", self.sigma_uplink, "one number of at least 0 for each client")
        if not self.sigma_downlink >= 0:
            raise UsageError("sigma_downlink", self.sigma_downlink, "a number of at least 0")

    def aggregate(self, release: Release) -> float:
        """σ_A of the broadcast: σ_A² = (N/K)·Σp_i²σ_i² + σ_D², a mean over draws where clients differ and K < N."""
        drawn = release.clients / release.per_round
        return float(
            np.sqrt(drawn * np.sum((release.weights * self.sigma_uplink) ** 2) + self.sigma_downlink**2)
        )


@dataclass(frozen=True)
class RoundCosts:
    """μ² that one round adds, for each kind of client that might be the worst target."""

    upload: np.ndarray  # a: the target's upload is seen
    tapped: np.ndarray  # c: the broadcast and all other uploads are seen
    broadcast: np.ndarray  # b: the broadcast is seen, and colluders know their own noise
    spread: np.ndarray  # rounds that can be tapped fully per tap of each other client; 1 when K = N

    def worst(self) -> RoundCosts:
        """Without the clients that cost no more than another one in every respect."""
        keep = np.ones(len(self.upload), dtype=bool)
        columns = np.stack([self.upload, self.tapped, self.broadcast, self.spread])
        for champion in {int(np.argmax(column)) for column in columns}:
            dominated = np.all(columns <= columns[:, [champion]], axis=0)
            dominated[champion] = False
            keep &= ~dominated | ~keep[champion]
        return RoundCosts(*(column[keep] for column in columns))


def check_coalition(release: Release, coalition: int) -> None:
    """Colluders need a client to attack."""
    if coalition >= release.clients:
        raise UsageError(
            "adversary", f"colluders:{coalition}", f"fewer colluders than {release.clients} clients"
        )


def round_costs(release: Release, noise: Noise, coalition: int = 0) -> RoundCosts:
    """a, b and c of every kind of client in a planned round, each with the participants that hide it least."""
    check_coalition(release, coalition)
    if len(noise.sigma_uplink) != release.clients:
        raise UsageError(
            "sigma_uplink", len(noise.sigma_uplink), f"one number for each of {release.clients} clients"
        )
    sigma = noise.sigma_uplink
    first, kind, counts = release.kinds
    if not np.array_equal(sigma[first][kind], sigma):
        first, kind, counts = _kinds(release.weights, release.uplink, sigma)
    return costs_among(
        release.uplink[first],
        release.weights[first],
        sigma[first],
        counts,
        release.per_round,
        coalition,
        noise.sigma_downlink,
        float(np.sum((release.weights * sigma) ** 2)),
    )


def costs_among(
    delta: np.ndarray,
    weight: np.ndarray,
    sigma: np.ndarray,
    counts: np.ndarray,
    participants: int,
    coalition: int,
    sigma_downlink: float,
    everyone: float,
) -> RoundCosts:
    """The costs when so many of these clients take part; `everyone` is Σp_i²σ_i² over the whole federation.

    With P the participants and W = Σ_P p_i, the broadcast moves by p_jΔ_j/W under noise Σ_P p_i²σ_i²/W² + σ_D²: the
    smallest sums over the others bound both. Colluders take out the largest of the others' noises.

    `spread`: a round in which noise x of the others' V is tapped costs A/(D + V − x), which is convex in x, so at most
    b + (c − b)·x/V; and all taps of the other clients together, L each, take out L·Σ_{i≠j} p_i²σ_i² at most.
    """
    others = participants - 1
    variance = (weight * sigma) ** 2
    hiding = smallest_others(variance, counts, others)
    honest = smallest_others(variance, counts, max(0, others - coalition))
    server = (sigma_downlink * (weight + smallest_others(weight, counts, others))) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        return RoundCosts(
            upload=(delta / sigma) ** 2,
            tapped=(weight * delta) ** 2 / (variance + server),
            broadcast=(weight * delta) ** 2 / (variance + honest + server),
            spread=np.where(hiding > 0, (everyone - variance) / hiding, 0.0),
        )


def smallest_others(values: np.ndarray, counts: np.ndarray, take: int) -> np.ndarray:
    """For each group the sum of the `take` smallest values over all clients but one of that group."""
    if take == 0:
        return np.zeros(len(values))
    order = np.argsort(values)
    last = np.cumsum(counts[order])
    sums = np.cumsum(counts[order] * values[order])

    def smallest(number: int) -> tuple[float, float]:
        group = int(np.searchsorted(last, number))
        return float(sums[group] - (last[group] - number) * values[order][group]), float(values[order][group])

    total, largest = smallest(take)
    with_one_more, _ = smallest(take + 1)
    return np.where(values <= largest, with_one_more - values, total)


def _kinds(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The distinct rows of the columns: (an index of each, which of them each row is, how often it occurs)."""
    order = np.lexsort(columns)
    fresh = np.any([np.diff(column[order], prepend=np.nan) != 0 for column in columns], axis=0)
    starts = np.flatnonzero(fresh)
    kind = np.empty(len(order), dtype=np.int64)
    kind[order] = np.cumsum(fresh) - 1
    return order[starts], kind, np.diff(np.r_[starts, len(order)])
