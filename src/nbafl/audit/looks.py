"""Looks at what the mechanism really did, each with its own account, its own proof and its share of the error.

A look compares one number that was measured (`proof`) with the most that a sound mechanism shows (`account`), and refutes
when the proof is larger. Bounds on uploads hold always: such a look has no error. The looks at the noise rest on exact
distributions of independent standard Gaussians, and a sound mechanism passes each with probability 1 − error:

* size: the sum of n squares is chi-squared with n degrees of freedom, for all rows, each client, round, trial, coordinate;
* sum: the same for the weighted sum over the clients of a round, which noise of opposite signs makes too small;
* twice: the squared cosine of two rows of n numbers is Beta(1/2, (n−1)/2), for every pair of rows, whatever their places;
* rounds, clients: with a and b rows that lie a fixed number of rounds (or clients) apart, each used once,
  Σ⟨a,b⟩/sqrt(Σ|a|²) is a standard Gaussian: it finds noise that is only partly shared;
* shape: Kolmogorov and Smirnov's distance between the numbers and a Gaussian.

Tests within a look share its error equally (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from nbafl.audit.noise_sample import SERVER, NoiseSample

LAGS = 8
"""Rounds (and clients) that are compared one by one lie at most so far apart; full repetition shows at any distance."""
_SHAPE = 20_000  # numbers of the test of shape: enough to see what matters, and the exact law is quick
_BLOCK = 1024


@dataclass(frozen=True)
class Look:
    """One comparison of what was measured with the most that a sound mechanism shows."""

    name: str
    measures: str
    account: float
    proof: float
    error: float
    """Probability that a sound mechanism is refuted by this look; 0 for a bound that always holds."""

    @property
    def refuted(self) -> bool:
        return not self.proof <= self.account  # not a number counts as refuted

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "measures": self.measures,
            "account": self.account if math.isfinite(self.account) else None,
            "proof": self.proof if math.isfinite(self.proof) else None,
            "error": self.error,
            "refuted": self.refuted,
        }


def at_noise(sample: NoiseSample, source: str, error: float) -> list[Look]:
    """All looks at one sample of noise; they share `error` equally."""
    if not len(sample):
        return []
    share = error / len(_NOISE)
    return [
        Look(f"{source}: {name}", measures, *test(sample, share), share)
        for name, (measures, test) in _NOISE.items()
    ]


def _size(sample: NoiseSample, error: float) -> tuple[float, float]:
    squares = np.square(sample.rows)
    sums = [np.array([squares.sum()]), squares.sum(0)]
    counts = [np.array([squares.size]), np.full(squares.shape[1], squares.shape[0])]
    for labels in (sample.client, sample.round, sample.trial):
        _, place, number = np.unique(labels, return_inverse=True, return_counts=True)
        sums.append(np.bincount(place, squares.sum(1)))
        counts.append(number * squares.shape[1])
    return _too_small(np.concatenate(sums), np.concatenate(counts), error)


def _sum(sample: NoiseSample, error: float) -> tuple[float, float]:
    own = sample.client != SERVER
    if not own.any():
        return 1.0, 1.0
    keys = np.stack([sample.trial[own], sample.round[own]], axis=1)
    _, place = np.unique(keys, axis=0, return_inverse=True)
    place = place.reshape(-1)
    totals = np.zeros((place.max() + 1, sample.rows.shape[1]))
    np.add.at(totals, place, sample.share[own, None] * sample.rows[own])
    variance = np.bincount(place, sample.share[own] ** 2)
    squares = np.square(totals) / variance[:, None]
    return _too_small(np.array([squares.sum()]), np.array([squares.size]), error)


def _too_small(sums: np.ndarray, counts: np.ndarray, error: float) -> tuple[float, float]:
    """(account, proof) as planned over measured standard deviation, of the group that stands out most."""
    allowed = np.sqrt(counts / stats.chi2.ppf(error / len(sums), counts))
    with np.errstate(divide="ignore"):
        found = np.sqrt(counts / sums)
    worst = int(np.argmax(found / allowed))
    return float(allowed[worst]), float(found[worst])


def _twice(sample: NoiseSample, error: float) -> tuple[float, float]:
    lengths = np.linalg.norm(sample.rows, axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        units = np.nan_to_num(sample.rows / lengths).astype(np.float32)
    highest = 0.0
    for first in range(0, len(units), _BLOCK):
        cosines = np.abs(units[first : first + _BLOCK] @ units[first:].T)
        cosines[np.arange(len(cosines)), np.arange(len(cosines))] = 0.0
        highest = max(highest, float(cosines.max()))
    pairs = max(1, len(units) * (len(units) - 1) // 2)
    numbers = units.shape[1]
    allowed = 1.0 if numbers < 2 else math.sqrt(stats.beta.isf(error / pairs, 0.5, (numbers - 1) / 2))
    return min(1.0, allowed), min(1.0, highest)


def _rounds(sample: NoiseSample, error: float) -> tuple[float, float]:
    return _apart(sample, 1, error)


def _clients(sample: NoiseSample, error: float) -> tuple[float, float]:
    return _apart(sample, 2, error)


def _apart(sample: NoiseSample, axis: int, error: float) -> tuple[float, float]:
    """(account, proof) of the largest normalised sum of products of rows that lie 1, 2, … places apart along an axis."""
    scores = [_score(sample.rows[one], sample.rows[other]) for one, other in _partners(sample, axis)]
    allowed = float(stats.norm.isf(error / (2 * max(1, len(scores)))))
    return allowed, max(scores, default=0.0)


def _partners(sample: NoiseSample, axis: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For every distance and either way to pair them up: rows and their partners, no row twice."""
    grid = np.moveaxis(sample.grid(), axis, 0)
    for lag in range(1, min(LAGS, len(grid) - 1) + 1):
        for start in (0, 1):
            places = np.arange(len(grid) - lag)
            places = places[(places // lag) % 2 == start]
            one, other = grid[places].ravel(), grid[places + lag].ravel()
            both = (one >= 0) & (other >= 0)
            if both.any():
                yield one[both], other[both]


def _score(one: np.ndarray, other: np.ndarray) -> float:
    length = float(np.linalg.norm(one))
    return abs(float(np.sum(one * other))) / length if length > 0 else 0.0


def _shape(sample: NoiseSample, error: float) -> tuple[float, float]:
    values = sample.rows.ravel()
    values = values[:: max(1, len(values) // _SHAPE)]
    return float(stats.kstwo.isf(error, len(values))), float(stats.kstest(values, "norm").statistic)


_NOISE: dict[str, tuple[str, Callable[[NoiseSample, float], tuple[float, float]]]] = {
    "size": ("planned over real standard deviation of the noise, in the group where it is largest", _size),
    "sum": ("the same of the weighted sum of the noise of a round's uploads", _sum),
    "twice": ("largest cosine between the noise at two places (trial, round, client)", _twice),
    "rounds": ("standardised correlation of one client's noise in rounds a fixed number apart", _rounds),
    "clients": ("standardised correlation of two clients' noise in the same round", _clients),
    "shape": ("distance of the distribution of the noise from a Gaussian", _shape),
}
