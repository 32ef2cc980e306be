"""Rounds as they happened: some clients stayed silent, so the others weigh more and hide each other less.

The server can restore the plan by adding noise (`top_up_variance`); where it did not, or where rounds had
different numbers of participants, `realised_cost` recomputes what the run cost. Who answered may depend
on everything broadcast before, but not on the private data beyond that: a client that drops out because
of its own data is not covered.

The top-up keeps what a round costs those who take part, not the secret of who they are. The noise level shows how many
answered, and with somebody known to be offline the others are drawn with another chance than K/N. So q = K/N counts
only in rounds for which all N were online; all others count as if the draw were public (`epsilon_of_rounds`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nbafl.errors import UsageError
from nbafl.privacy import accounting, subsampling
from nbafl.privacy.adversary import Adversary
from nbafl.privacy.gaussian import check_delta, gdp_delta, gdp_epsilon
from nbafl.privacy.release import Noise, Release, RoundCosts, costs_among


@dataclass(frozen=True)
class AnsweredRound:
    """Who answered: their indices, or only how many (then any of the clients may have); and the server's top-up."""

    answered: np.ndarray | int
    extra_variance: float = 0.0
    everyone_online: bool = True
    """Whether all N clients were online from the draw to the end and able to answer, and everyone drawn answered."""

    @property
    def answers(self) -> int:
        return self.answered if isinstance(self.answered, int) else len(self.answered)


def top_up_variance(
    weights: np.ndarray, sigma_uplink: np.ndarray, sigma_downlink: float, answered: np.ndarray
) -> float:
    """Server variance to add so that no client is hidden less than if all those drawn had answered.

    `weights` and `sigma_uplink` are of the clients drawn, `answered` says which of them did. Their weights grow by
    1/W, W = Σ_S p_i/Σp_i, so for every target at once Σ_S p_i²σ_i² + (σ_D² + x)W² must reach Σp_i²σ_i² + σ_D²:
    math.md (7.1). Equal weights and σ_D = 0 give x = σ_U²(N − |S|)/|S|², math.md (7.2).
    """
    share = np.asarray(weights, dtype=float) / np.sum(weights)
    mask = np.asarray(answered, dtype=bool)
    if mask.shape != share.shape or not mask.any():
        raise UsageError(
            "answered", int(mask.sum()), f"a mask over the {len(share)} clients drawn, at least one true"
        )
    kept = float(np.sum(share[mask]))
    missing = float(np.sum((share * sigma_uplink)[~mask] ** 2))
    return _top_up(missing, kept, 1.0, sigma_downlink) if not mask.all() else 0.0


def most_top_up(
    weights: np.ndarray,
    sigma_uplink: np.ndarray,
    sigma_downlink: float,
    drawn: int,
    answered: np.ndarray | int,
) -> float:
    """The most that `top_up_variance` can be, whoever else was drawn; `weights` and `sigma_uplink` are of all clients."""
    weights, others = np.asarray(weights, dtype=float), np.ones(len(weights), dtype=bool)
    if isinstance(answered, int):  # nobody tells who it was
        count, kept = answered, float(np.sort(weights)[:answered].sum())
    else:
        count, kept = len(answered), float(weights[answered].sum())
        others[answered] = False
    missing = drawn - count
    if not missing:
        return 0.0
    hidden = float(np.sort((weights * sigma_uplink)[others] ** 2)[-missing:].sum())
    whole = kept + float(np.sort(weights[others])[-missing:].sum())
    return _top_up(hidden, kept, whole, sigma_downlink)


def _top_up(missing: float, kept: float, whole: float, sigma_downlink: float) -> float:
    """math.md (7.1): `missing` is the variance that did not come; `kept`, `whole`: weights that came, and should have."""
    return (missing + sigma_downlink**2 * (whole**2 - kept**2)) / kept**2


def epsilon_of_rounds(
    release: Release, noise: Noise, adversary: Adversary, rounds: Sequence[AnsweredRound], delta: float
) -> float:
    """ε at δ of the rounds as they happened."""
    return RoundsMade.of(release, noise, adversary, rounds).epsilon(delta)


def delta_of_rounds(
    release: Release, noise: Noise, adversary: Adversary, rounds: Sequence[AnsweredRound], epsilon: float
) -> float:
    """δ at ε of the rounds as they happened."""
    return RoundsMade.of(release, noise, adversary, rounds).delta(epsilon)


def attack_power_of_rounds(
    release: Release,
    noise: Noise,
    adversary: Adversary,
    rounds: Sequence[AnsweredRound],
    false_positive_rate: float,
) -> float:
    """The highest true positive rate of any test of the target's data at that false positive rate."""
    made = RoundsMade.of(release, noise, adversary, rounds)
    known = accounting.gaussian_power(made.cost(), false_positive_rate)
    if release.everyone or known == 1.0:
        return known
    return min(known, accounting.dual_power(made.delta, false_positive_rate))


def realised_cost(
    release: Release, noise: Noise, adversary: Adversary, rounds: Sequence[AnsweredRound]
) -> float:
    """An upper bound on μ² over all target clients, exact where all rounds cost the same; earlier runs included."""
    return RoundsMade.of(release, noise, adversary, rounds).cost()


class RoundsMade:
    """Rounds as they happened, entered one by one: what all of them cost so far is known without looking back."""

    def __init__(self, release: Release, noise: Noise, adversary: Adversary) -> None:
        self.release, self.noise, self.adversary = release, noise, adversary
        self.count = 0
        self._tally = _ViewCounts.empty(release.clients)
        self._kinds: dict[tuple[float, bool], int] = {}
        _, self._planned = _costs(release, noise, adversary, AnsweredRound(release.per_round))
        self._as_planned = True
        """Whether no round cost anybody more than planned: then the mean over draws is the plan's own."""

    @classmethod
    def of(
        cls, release: Release, noise: Noise, adversary: Adversary, rounds: Iterable[AnsweredRound]
    ) -> RoundsMade:
        made = cls(release, noise, adversary)
        for happened in rounds:
            made.add(happened)
        return made

    def add(self, happened: AnsweredRound) -> None:
        """Enter one more round."""
        members, costs = _costs(self.release, self.noise, self.adversary, happened)
        self.count += 1
        self._tally.add(members, costs)
        if self.release.everyone:
            return
        # Equal clients cost the same; the last digits are cut so that rounds of one kind are one.
        cost = float(f"{float(costs.broadcast.max()) * (1 + 1e-12):.12e}")
        kind = (math.sqrt(cost), happened.everyone_online)
        self._kinds[kind] = self._kinds.get(kind, 0) + 1
        for was, most in ((costs.tapped, self._planned.tapped), (costs.broadcast, self._planned.broadcast)):
            self._as_planned &= not np.any(was > most[members] * (1 + 1e-9))

    def epsilon(self, delta: float) -> float:
        """ε at δ of the rounds entered."""
        check_delta(delta)
        known = gdp_epsilon(math.sqrt(self.cost()), delta)
        return self._of_rounds(known, subsampling.epsilon_of, accounting.epsilon_spent, delta)

    def delta(self, epsilon: float) -> float:
        """δ at ε of the rounds entered."""
        known = gdp_delta(epsilon, math.sqrt(self.cost()))
        return self._of_rounds(known, subsampling.delta_of, accounting.delta_spent, epsilon)

    def _of_rounds(
        self,
        known: float,
        of_draw: Callable[[tuple[subsampling.Rounds, ...], float], float],
        as_planned: Callable[[Release, Noise, Adversary, float], float],
        other: float,
    ) -> float:
        """ε at δ or δ at ε (`other`): what holds for any draw, `known`, or less where the draw is a secret."""
        release, noise, adversary = self.release, self.noise, self.adversary
        if release.everyone or not self.count:
            return known
        if subsampling.amplifies(release, noise, adversary):
            return min(known, of_draw((*self._drawn(), *subsampling.scores(release)), other))
        if not self._as_planned:
            return known
        made = replace(release, rounds=self.count, exposures=min(release.exposures, self.count))
        return as_planned(made, noise, adversary, other)

    def _drawn(self) -> tuple[subsampling.Rounds, ...]:
        """The rounds by what they cost a participant and whether the draw stayed a secret."""
        drawn, clients = self.release.per_round, self.release.clients
        competing = clients - self.adversary.colluders
        return tuple(
            subsampling.Rounds(mu, drawn / (competing if secret else clients), count, secret)
            for (mu, secret), count in sorted(self._kinds.items())
        )

    def cost(self) -> float:
        """An upper bound on μ² over all target clients, exact where all rounds cost the same; earlier runs included.

        Of its n rounds with the target the adversary sees some uploads, at the price of the cheapest broadcasts, and
        taps the others where that adds most; every other broadcast costs what it costs.
        """
        tally, exposures, adversary = self._tally, self.release.exposures, self.adversary
        uploads, _, _ = adversary.views(exposures, tally.rounds, np.ones(1))
        unseen = tally.rounds - uploads
        gain_of_taps: np.ndarray = {
            "none": np.zeros(self.release.clients),
            "same": tally.gain,
            "spread": tally.spread_gain,
        }[adversary.others]
        with np.errstate(invalid="ignore"):
            broadcasts = np.minimum(tally.broadcast - uploads * tally.cheapest, unseen * tally.dearest)
            total = (
                np.where(uploads > 0, uploads * tally.upload, 0.0)
                + np.where(unseen > 0, broadcasts, 0.0)
                + np.where(unseen > 0, np.minimum(exposures * gain_of_taps, unseen * tally.gain), 0.0)
            )
        worst = float(np.max(np.where(np.isnan(total), np.inf, total)))
        return self.release.before(adversary.name) + worst


@dataclass
class _ViewCounts:
    """Per client over its rounds: how many, a, Σb, the smallest and largest b, the most a tap adds to a round."""

    rounds: np.ndarray
    upload: np.ndarray
    broadcast: np.ndarray
    cheapest: np.ndarray
    dearest: np.ndarray
    gain: np.ndarray
    spread_gain: np.ndarray

    @classmethod
    def empty(cls, clients: int) -> _ViewCounts:
        tally = cls(*(np.zeros(clients) for _ in range(7)))
        tally.cheapest[:] = np.inf
        return tally

    def add(self, members: np.ndarray, costs: RoundCosts) -> None:
        """Enter one round for everyone who took part, or may have."""
        with np.errstate(invalid="ignore"):
            gain = np.where(np.isinf(costs.broadcast), 0.0, costs.tapped - costs.broadcast)
            spread_gain = np.where(gain > 0, gain * costs.spread, 0.0)
        self.rounds[members] += 1
        self.upload[members] = costs.upload
        self.broadcast[members] += costs.broadcast
        self.cheapest[members] = np.minimum(self.cheapest[members], costs.broadcast)
        self.dearest[members] = np.maximum(self.dearest[members], costs.broadcast)
        self.gain[members] = np.maximum(self.gain[members], gain)
        self.spread_gain[members] = np.maximum(self.spread_gain[members], spread_gain)


def _costs(
    release: Release, noise: Noise, adversary: Adversary, happened: AnsweredRound
) -> tuple[np.ndarray, RoundCosts]:
    """(those who took part, or may have; what the round cost each of them)."""
    if isinstance(happened.answered, int):
        members, count = np.arange(release.clients), happened.answered
    else:
        members, count = np.unique(happened.answered), len(np.unique(happened.answered))
    if not 1 <= count <= release.clients:
        raise UsageError("answered", count, f"from 1 to {release.clients} clients")
    return members, costs_among(
        release.uplink[members],
        release.weights[members],
        noise.sigma_uplink[members],
        np.ones(len(members), dtype=np.int64),
        count,
        adversary.colluders,
        math.sqrt(noise.sigma_downlink**2 + happened.extra_variance),
        float(np.sum((release.weights * noise.sigma_uplink) ** 2)),
    )
