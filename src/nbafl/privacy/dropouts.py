"""Rounds as they happened: some clients stayed silent, so the others weigh more and hide each other less.

The server can restore the plan by adding noise (`top_up_variance`); where it did not, or where rounds had
different numbers of participants, `realised_cost` recomputes what the run cost. Who answered may depend
on everything broadcast before, but not on the private data beyond that: a client that drops out because
of its own data is not covered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nbafl.errors import UsageError
from nbafl.privacy.adversary import Adversary, Noise, Release, costs_among
from nbafl.privacy.gaussian import gdp_epsilon


@dataclass(frozen=True)
class Round:
    """Who answered: their indices, or only how many (then any of the clients may have); and the server's top-up."""

    answered: np.ndarray | int
    extra_variance: float = 0.0


def top_up_variance(
    weights: np.ndarray, sigma_uplink: np.ndarray, sigma_downlink: float, answered: np.ndarray
) -> float:
    """Server variance to add so that no client is hidden less than if all those drawn had answered.

    `weights` and `sigma_uplink` are of the clients drawn, `answered` says which of them did. Their weights grow by
    1/W, W = Σ_S p_i/Σp_i, so for every target at once Σ_S p_i²σ_i² + (σ_D² + x)W² must reach Σp_i²σ_i² + σ_D². With
    equal weights and σ_D = 0 this is x = σ_U²(N − |S|)/|S|² (MATH.md, section 3); a server noise has to grow as well.
    """
    share = np.asarray(weights, dtype=float) / np.sum(weights)
    mask = np.asarray(answered, dtype=bool)
    if mask.shape != share.shape or not mask.any():
        raise UsageError(
            "answered", int(mask.sum()), f"a mask over the {len(share)} clients drawn, at least one true"
        )
    kept = float(np.sum(share[mask]))
    missing = float(np.sum((share * sigma_uplink)[~mask] ** 2))
    return (missing + sigma_downlink**2 * (1 - kept**2)) / kept**2 if not mask.all() else 0.0


def epsilon_of_rounds(
    release: Release, noise: Noise, adversary: Adversary, rounds: Sequence[Round], delta: float
) -> float:
    """ε at δ of the rounds as they happened, the draw of clients taken as known."""
    return gdp_epsilon(math.sqrt(realised_cost(release, noise, adversary, rounds)), delta)


def realised_cost(release: Release, noise: Noise, adversary: Adversary, rounds: Sequence[Round]) -> float:
    """An upper bound on μ² over all target clients, exact where all rounds cost the same.

    Of its n rounds with the target the adversary sees some uploads, at the price of the cheapest broadcasts, and taps
    the others where that adds most; every other broadcast costs what it costs.
    """
    tally = _Tally.empty(release.clients)
    for happened in rounds:
        _add(tally, release, noise, adversary, happened)
    uploads, _, _ = adversary.views(release.exposures, tally.rounds, np.ones(1))
    unseen = tally.rounds - uploads
    gain_of_taps: np.ndarray = {
        "none": np.zeros(release.clients),
        "same": tally.gain,
        "spread": tally.spread_gain,
    }[adversary.others]
    with np.errstate(invalid="ignore"):
        broadcasts = np.minimum(tally.broadcast - uploads * tally.cheapest, unseen * tally.dearest)
        total = (
            np.where(uploads > 0, uploads * tally.upload, 0.0)
            + np.where(unseen > 0, broadcasts, 0.0)
            + np.where(unseen > 0, np.minimum(release.exposures * gain_of_taps, unseen * tally.gain), 0.0)
        )
    return float(np.max(np.where(np.isnan(total), np.inf, total)))


@dataclass
class _Tally:
    """Per client over its rounds: how many, a, Σb, the smallest and largest b, the most a tap adds to a round."""

    rounds: np.ndarray
    upload: np.ndarray
    broadcast: np.ndarray
    cheapest: np.ndarray
    dearest: np.ndarray
    gain: np.ndarray
    spread_gain: np.ndarray

    @classmethod
    def empty(cls, clients: int) -> _Tally:
        tally = cls(*(np.zeros(clients) for _ in range(7)))
        tally.cheapest[:] = np.inf
        return tally


def _add(tally: _Tally, release: Release, noise: Noise, adversary: Adversary, happened: Round) -> None:
    """Enter one round into the tally of everyone who took part, or may have."""
    if isinstance(happened.answered, int):
        members, count = np.arange(release.clients), happened.answered
    else:
        members, count = np.unique(happened.answered), len(np.unique(happened.answered))
    if not 1 <= count <= release.clients:
        raise UsageError("answered", count, f"from 1 to {release.clients} clients")
    costs = costs_among(
        release.uplink[members],
        release.weights[members],
        noise.sigma_uplink[members],
        np.ones(len(members), dtype=np.int64),
        count,
        adversary.colluders,
        math.sqrt(noise.sigma_downlink**2 + happened.extra_variance),
        float(np.sum((release.weights * noise.sigma_uplink) ** 2)),
    )
    with np.errstate(invalid="ignore"):
        gain = np.where(np.isinf(costs.broadcast), 0.0, costs.tapped - costs.broadcast)
        spread_gain = np.where(gain > 0, gain * costs.spread, 0.0)
    tally.rounds[members] += 1
    tally.upload[members] = costs.upload
    tally.broadcast[members] += costs.broadcast
    tally.cheapest[members] = np.minimum(tally.cheapest[members], costs.broadcast)
    tally.dearest[members] = np.maximum(tally.dearest[members], costs.broadcast)
    tally.gain[members] = np.maximum(tally.gain[members], gain)
    tally.spread_gain[members] = np.maximum(tally.spread_gain[members], spread_gain)
