"""Secrecy of who took part, when whole clients are protected and K of N are drawn each round.

Replacing one client of N changes a round's broadcast only if that client was drawn. Whoever cannot tell
faces, for a draw without replacement and a round that is μ-GDP (Balle, Barthe and Gaboardi 2018, Theorem
9),

    δ_round(ε) = q·δ(ln(1 + (e^ε − 1)/q); μ)   for ε ≥ 0,   q = K/N,                  math.md (6.2)

and, replacement being symmetric, δ_round(−ε) = 1 − e^{−ε} + e^{−ε}δ_round(ε). That curve has a dominating
pair (Zhu, Dong and Wang 2022), which dp-accounting's connect-the-dots discretises from above and composes
over T rounds.

Who is amplified, and who is not:
- `broadcast` is: it sees no upload. The premise is that the draw is kept secret from it.
- `colluders:a` is, with q = K/(N − a): colluders know in which rounds they themselves were drawn, so the
  target competes with the other N − a only; their noise is subtracted besides.
- `targeted`, `eavesdropper` and `curious-server` are not: whoever sees an upload of a client knows that
  it took part, and whoever can tap a channel may see that it is silent. Against them the number of
  participations is averaged over as for records (`accounting`), which holds even if every draw is public.
- Rounds in which somebody was offline are not: the noise level shows how many answered, and whoever knows who was
  away knows another q than K/N. They count as public draws (`Rounds.secret`), which holds whatever is known.
- Clients of unequal weight or noise are not: the theorem compares the target with whoever fills its slot,
  and that changes all weights of the round.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from nbafl.privacy.adversary import Adversary
from nbafl.privacy.gaussian import gdp_epsilon, log_gdp_delta
from nbafl.privacy.release import Noise, Release, round_costs

# Mass beyond the grid of one round counts as lost outright; this keeps the sum over T rounds far below any δ in use.
_TAIL = 1e-15
# Composing by Fourier transform raises rounded numbers to the T-th power: δ may come out lower by about T·3e-17 (measured
# where it is known), and this much is added to it for every round.
_ROUNDING = float(np.finfo(float).eps)
_MOST = 1e3  # μ of one round beyond which a secret helps nobody, and e^ε is no number
_HALF_GRID = 10_000  # steps of the grid on each side of zero: ε comes out about 1e-5 too high at most


def amplifies(release: Release, noise: Noise, adversary: Adversary) -> bool:
    """Whether the secrecy of the draw protects the unit of this release against the adversary."""
    return rests_on_the_draw(release, adversary) and bool(np.ptp(noise.sigma_uplink) == 0)


def rests_on_the_draw(release: Release, adversary: Adversary) -> bool:
    """The same for noise that is as large at every client, which calibration gives to clients that are equal."""
    return (
        release.sensitivity.unit == "client"
        and not release.everyone
        and not adversary.sees_participation
        and release.equal
        and release.per_round < release.clients - adversary.colluders
        and not release.earlier
    )


def epsilon(release: Release, noise: Noise, adversary: Adversary, delta: float) -> float:
    """ε at δ of T rounds with a secret draw, all N clients online in each."""
    return epsilon_of((Rounds(*_round(release, noise, adversary), release.rounds), *scores(release)), delta)


def delta(release: Release, noise: Noise, adversary: Adversary, epsilon: float) -> float:
    """δ at ε of T rounds with a secret draw, all N clients online in each."""
    return delta_of((Rounds(*_round(release, noise, adversary), release.rounds), *scores(release)), epsilon)


@dataclass(frozen=True)
class Rounds:
    """So many rounds, each μ-GDP for those drawn, who are drawn with probability q without replacement."""

    mu: float
    q: float
    count: int
    secret: bool = True
    """Whether the adversary cannot tell who was drawn; else a round tells with probability q, and it knows when."""

    def highest(self, tail: float) -> float:
        """The privacy loss beyond which at most `tail` of one round lies."""
        loss = gdp_epsilon(self.mu, min(tail / self.q, 0.5))
        return _amplified(loss, self.q) if self.secret else loss

    def one(self, step: float, half: int) -> PrivacyLossDistribution:
        """One of them, discretised from above."""
        grid = step * np.arange(half + 1)
        losses = _unamplified(grid, self.q) if self.secret else grid
        positive = np.exp(math.log(self.q) + log_gdp_delta(losses, self.mu))
        negative = -np.expm1(-grid) + np.exp(-grid) * positive
        curve = np.concatenate([negative[:0:-1], positive])
        return PrivacyLossDistribution(
            pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(step, -half, half, curve)
        )


def scores(release: Release) -> tuple[Rounds, ...]:
    """Scores released beside the training: every client's, drawn or not, so all of them together are one certain round."""
    return (Rounds(math.sqrt(release.scores), 1.0, 1, secret=False),) if release.scores else ()


@functools.lru_cache(maxsize=8)
def composed(*kinds: Rounds) -> PrivacyLossDistribution:
    """The privacy loss of all these rounds together."""
    tail = _TAIL / sum(each.count for each in kinds)
    highest = [each.highest(tail) for each in kinds]
    step = max(highest) / _HALF_GRID
    parts = [
        each.one(step, math.ceil(high / step - 1e-9)).self_compose(each.count)
        for each, high in zip(kinds, highest, strict=True)
    ]
    return functools.reduce(lambda one, other: one.compose(other), parts)


def epsilon_of(kinds: tuple[Rounds, ...], delta: float) -> float:
    """ε at δ of all these rounds together; 0 where there are none."""
    told = _telling(kinds)
    if told is None:
        return math.inf
    left = delta - sum(each.count for each in told) * _ROUNDING
    if not told or left <= 0:
        return 0.0 if not told else math.inf
    losses = composed(*told)
    return 0.0 if losses.get_delta_for_epsilon(0.0) <= left else float(losses.get_epsilon_for_delta(left))


def delta_of(kinds: tuple[Rounds, ...], epsilon: float) -> float:
    """δ at ε of all these rounds together."""
    told = _telling(kinds)
    if told is None:
        return 1.0
    spent = float(composed(*told).get_delta_for_epsilon(epsilon)) if told else 0.0
    return min(1.0, max(0.0, spent) + sum(each.count for each in told) * _ROUNDING)


def _telling(kinds: tuple[Rounds, ...]) -> tuple[Rounds, ...] | None:
    """Those that tell anything; None where one of them tells too much for any ε."""
    told = tuple(each for each in kinds if each.count > 0 and each.mu > 0)
    return None if any(each.mu > _MOST for each in told) else told


def _round(release: Release, noise: Noise, adversary: Adversary) -> tuple[float, float]:
    """(μ of a round for a client that was drawn, chance of being drawn as the adversary knows it)."""
    cost = float(round_costs(release, noise, adversary.colluders).broadcast.max())
    return math.sqrt(cost), release.per_round / (release.clients - adversary.colluders)


def _amplified(epsilon: float, q: float) -> float:
    """ln(1 + q(e^ε − 1)), without overflow."""
    return epsilon + math.log(q + (1 - q) * math.exp(-epsilon))


def _unamplified(epsilon: np.ndarray, q: float) -> np.ndarray:
    """ln(1 + (e^ε − 1)/q), the inverse of `_amplified`, without overflow or cancellation."""
    small = np.log1p(np.expm1(np.minimum(epsilon, 1.0)) / q)
    large = epsilon - math.log(q) + np.log1p(-(1 - q) * np.exp(-epsilon))
    return np.where(epsilon < 1, small, large)
