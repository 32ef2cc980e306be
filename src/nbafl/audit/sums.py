"""The audit of secure aggregation: what a server with accomplices learns from sums of integers with noise.

Under secure aggregation nobody sees a single upload. Client i sends z_i = round(q_i·u_i/gamma) + n_i, n_i a draw of the
discrete Gaussian of spread s, and only sums over at least M clients are opened. The server picks who drops out, so as to
have as little noise in a sum as it can, and subtracts what its k accomplices sent: noise of M − k honest clients is left.
Each view plays the same game as the rest of the audit: runs in two worlds, in which the target's vector lies A steps apart,
and the likelihood ratio of all opened sums as the score. `account` is what the accountant of integer sums says of a view.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from nbafl.audit import looks
from nbafl.audit.bounds import Outcomes, distribution_free, gaussian_mu
from nbafl.audit.looks import Look
from nbafl.audit.noise_sample import NoiseSample
from nbafl.audit.shares import NOISE, OTHERS, Shares
from nbafl.privacy.gaussian import gdp_epsilon
from nbafl.privacy.noise import SecureGaussian

_KEPT = 64  # trials whose noise is kept for the looks at it


@dataclass(frozen=True)
class SumSetting:
    """A federation whose uploads are only opened as sums."""

    clients: int
    fewest: int
    """M: a sum over fewer clients is never opened."""
    accomplices: int
    """k clients that tell the server what they sent."""
    rounds: int
    spread: float
    """s, in steps of the grid."""
    shift: int
    """A: how far apart the target's two possible vectors are, in steps."""


@dataclass(frozen=True)
class SumView:
    """A server: whether it makes clients drop out, and what the accountant grants it (epsilon at delta)."""

    name: str
    drops: bool
    account: float


def _fresh(round: int, client: int, spread: float, size: int) -> np.ndarray:  # noqa: ARG001
    return SecureGaussian().integers(spread, size)


def _enough(answered: np.ndarray, fewest: int) -> np.ndarray | None:
    return answered if len(answered) >= fewest else None


@dataclass(frozen=True)
class SumMechanism:
    """The code under attack."""

    noise: Callable[[int, int, float, int], np.ndarray] = field(default=_fresh)
    """(round, client, spread, how many): integers."""
    opened: Callable[[np.ndarray, int], np.ndarray | None] = field(default=_enough)
    """(who answered, M): whose sum is opened; None: no sum."""


@dataclass
class _Seen:
    """What one view gathers over the rounds."""

    ratio: np.ndarray
    information: float = 0.0
    missing: int = 0
    """Most clients that were missing from an opened sum."""


class SumGame:
    """Runs of one setting, half of them in each world; client 0 to k−1 are the accomplices, the last one is the target."""

    def __init__(self, setting: SumSetting, views: list[SumView], mechanism: SumMechanism) -> None:
        self.setting, self.views, self.mechanism = setting, views, mechanism
        self.noise: list[NoiseSample] = []

    def play(self, trials: int) -> dict[str, _Seen]:
        """So many trials in each world, which take turns."""
        setting = self.setting
        side = np.where(np.arange(2 * trials) % 2, 0.5, -0.5)
        found = {view.name: _Seen(np.zeros(2 * trials)) for view in self.views}
        for number in range(setting.rounds):
            noise = np.stack(
                [
                    self.mechanism.noise(number, client, setting.spread, 2 * trials)
                    for client in range(setting.clients)
                ]
            )
            self._keep(number, noise)
            sign = 1 if number % 2 == 0 else -1  # noise that is used again cancels out
            sent = noise.astype(np.float64)
            sent[-1] += sign * side * setting.shift
            for view in self.views:
                self._score(found[view.name], view, sent, sign)
        return found

    def _score(self, seen: _Seen, view: SumView, sent: np.ndarray, sign: int) -> None:
        setting = self.setting
        members = self._opened(view)
        if members is None:
            return
        honest = members[members >= setting.accomplices]
        variance = len(honest) * setting.spread**2
        seen.ratio += sign * sent[honest].sum(0) * (setting.shift / variance)
        seen.information += setting.shift**2 / variance
        seen.missing = max(seen.missing, setting.clients - len(members))

    def _opened(self, view: SumView) -> np.ndarray | None:
        """The smallest sum with the target in it that the mechanism opens; honest clients are dropped first."""
        setting = self.setting
        everyone = np.arange(setting.clients)
        sizes = range(2, setting.clients + 1) if view.drops else [setting.clients]
        for size in sizes:
            kept = np.append(everyone[: size - 1], setting.clients - 1)
            members = self.mechanism.opened(kept, setting.fewest)
            if members is not None:
                return members
        return None

    def _keep(self, number: int, noise: np.ndarray) -> None:
        spreads = np.full(self.setting.clients, self.setting.spread)
        few = torch.from_numpy(noise[:, :_KEPT].astype(np.float64))
        self.noise.append(NoiseSample.of_round(0, number, few, spreads, np.ones(len(spreads))))


def audit_sums(
    setting: SumSetting,
    views: list[SumView],
    delta: float,
    trials: int,
    confidence: float = 0.95,
    mechanism: SumMechanism | None = None,
) -> list[Look]:
    """Every view's proof, the size of the sums, the looks at the noise; all errors together: a fifth of 1 − confidence."""
    game = SumGame(setting, views, mechanism or SumMechanism())
    found = game.play(trials)
    shares = Shares.of(confidence, len(views), samples=1)
    # There is no claim beside the views here, so its share is theirs.
    error = shares.other * (1 - NOISE) / OTHERS
    said = [_proof(view, found[view.name], delta, error) for view in views]
    said += [
        Look(
            f"{view.name}: members",
            "clients missing from an opened sum",
            float(setting.clients - setting.fewest),
            float(found[view.name].missing),
            0.0,
        )
        for view in views
    ]
    return said + looks.at_noise(NoiseSample.join(game.noise), "noise of the sums", shares.noise)


def _proof(view: SumView, seen: _Seen, delta: float, error: float) -> Look:
    mu = math.sqrt(seen.information)
    if mu == 0:
        return Look(view.name, "epsilon proved at the plan's delta", view.account, 0.0, 2 * error)
    scores, information = seen.ratio / mu, np.full(len(seen.ratio) // 2, seen.information)
    outcomes = Outcomes((scores[::2], scores[1::2]), (information, information))
    gaussian = gdp_epsilon(mu * gaussian_mu(outcomes, 1 - error), delta)
    proved = max(gaussian, distribution_free(outcomes, delta, 1 - error))
    return Look(view.name, "epsilon proved at the plan's delta", view.account, proved, 2 * error)
