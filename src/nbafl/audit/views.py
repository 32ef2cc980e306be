"""What attackers see of a run, and how they score it.

A view is one attacker: it looks at a round of many trials at once (`Round`) and adds to a running log-likelihood ratio of
the two worlds (`Tally`), given the broadcasts before. `Attack` is the view of the adversaries of a plan:

* the target's upload: a shift of Delta in noise sigma_i;
* the broadcast, less all other uploads, which it tapped: p_i·Delta in noise p_i·sigma_i and sigma_D;
* the broadcast alone: p_i·Delta in all clients' noise and sigma_D; colluders subtract their own.

Another kind of view (the last uploads without a broadcast, sums of uploads) is another class with the same two methods.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from nbafl.audit.bounds import Outcomes
from nbafl.audit.pairs import Pair
from nbafl.privacy.adversary import Adversary


@dataclass(frozen=True)
class GameSetting:
    """A federation as the attacker of one client sees it."""

    rounds: int
    exposures: int
    drawn: float
    """K/N, the chance that the target takes part in a round."""
    weight: float
    """p of the target among a round's participants."""
    sigma: float
    """sigma_U of the target."""
    other_weights: np.ndarray
    """p of the other participants, the colluders first."""
    other_sigmas: np.ndarray
    sigma_downlink: float
    colluding: int = 0
    """How many of the other participants, from the first on, work together."""

    @property
    def variance(self) -> float:
        """sigma_A²."""
        others = np.sum((self.other_weights * self.other_sigmas) ** 2)
        return float((self.weight * self.sigma) ** 2 + others + self.sigma_downlink**2)


@dataclass
class Tally:
    """Running log-likelihood ratio and information of one attacker over the rounds of a chunk of trials."""

    ratio: Tensor
    information: Tensor

    def add(self, residual: Tensor, shift: float, variance: float, where: Tensor) -> None:
        """A Gaussian of this variance, centred at ∓shift/2, was seen in the trials `where`."""
        self.ratio += torch.where(where, residual * (shift / variance), 0.0)
        self.information += where * (shift**2 / variance)

    def outcomes(self) -> Outcomes:
        """The standardised scores; trials alternate between the worlds."""
        spread = self.information.sqrt()
        score = torch.where(spread > 0, self.ratio / spread.clamp(min=1e-30), 0.0).numpy()
        information = self.information.numpy()
        return Outcomes((score[::2], score[1::2]), (information[::2], information[1::2]))


@dataclass(frozen=True)
class Round:
    """One round of a chunk of trials; rows are trials."""

    pair: Pair
    setting: GameSetting
    number: int
    sign: int
    broadcast: Tensor
    """What the clients started from."""
    clean: Tensor
    """What a client other than the target uploads before its noise."""
    uploads: Tensor
    """All uploads with their noise, the target's (or whoever took its place) first."""
    following: Tensor
    """The next broadcast."""
    believed: Tensor
    """Whether the attacker holds the target to have taken part."""
    seen: Tensor
    """How many times it has, this round included."""

    def middle(self) -> Tensor:
        """Half-way between the target's two possible uploads, along the direction in which they differ."""
        return self.pair.follow * (self.broadcast @ self.pair.direction) + self.pair.middle


class View(Protocol):
    """One attacker."""

    @property
    def name(self) -> str: ...

    @property
    def gaussian(self) -> bool:
        """Whether its scores are Gaussian where the noise is (not if it must guess who took part)."""
        ...

    def score(self, tally: Tally, seen: Round) -> None:
        """Add what it learns from one round."""
        ...

    def information(self, setting: GameSetting, pair: Pair, taken_part: np.ndarray) -> np.ndarray:
        """mu² that it expects of a target that takes part so many times."""
        ...


@dataclass(frozen=True)
class Attack:
    """An adversary of a plan: how many of the target's rounds it sees how, and whom it works with."""

    name: str
    uploads: int
    taps: int
    colluding: bool = False
    """Whether it knows the noise of the setting's colluders."""
    blind: bool = False
    """Whether it cannot tell if the target took part in a round."""

    @classmethod
    def of(cls, adversary: Adversary, setting: GameSetting, blind: bool) -> Attack:
        """The adversary's attack; of taps spread over rounds only those count that are certain to meet in one."""
        uploads = {"none": 0, "exposed": setting.exposures, "all": setting.rounds}[adversary.uploads]
        taps = 0 if adversary.others == "none" else setting.exposures
        hidden = blind and not adversary.sees_participation
        return cls(adversary.name, uploads, taps, adversary.colluders > 0, hidden)

    @property
    def gaussian(self) -> bool:
        return not self.blind

    def score(self, tally: Tally, seen: Round) -> None:
        if self.blind:
            _score_blind(tally, seen)
            return
        upload = seen.believed & (seen.seen <= self.uploads)
        tapped = seen.believed & ~upload & (seen.seen <= self.uploads + self.taps)
        if self.uploads:
            tally.add(*_from_upload(seen), upload)
        if self.taps:
            tally.add(*_from_taps(seen), tapped)
        if self.uploads < seen.setting.rounds:
            tally.add(*_from_broadcast(seen, self.colluding), seen.believed & ~upload & ~tapped)

    def information(self, setting: GameSetting, pair: Pair, taken_part: np.ndarray) -> np.ndarray:
        """Rounds of each kind times what one tells (math.md (4.4) to (4.8))."""
        uploads = np.minimum(taken_part, self.uploads)
        taps = np.minimum(taken_part - uploads, self.taps)
        mates = slice(setting.colluding if self.colluding else 0)
        hidden = setting.variance - np.sum((setting.other_weights[mates] * setting.other_sigmas[mates]) ** 2)
        own = (setting.weight * setting.sigma) ** 2 + setting.sigma_downlink**2
        share = (setting.weight * pair.shift) ** 2
        return (
            _times(uploads, pair.shift**2, setting.sigma**2)
            + _times(taps, share, own)
            + _times(taken_part - uploads - taps, share, hidden)
        )


def _from_upload(seen: Round) -> tuple[Tensor, float, float]:
    """(how far the target's upload lies from the middle, shift between the worlds, variance)."""
    residual = seen.uploads[0] @ seen.pair.direction - seen.middle()
    return seen.sign * residual, seen.pair.shift, seen.setting.sigma**2


def _from_taps(seen: Round) -> tuple[Tensor, float, float]:
    """The same for the broadcast less all other uploads: p_i(w_i + n_i) + n_D is left."""
    setting, direction = seen.setting, seen.pair.direction
    weights = torch.as_tensor(setting.other_weights, dtype=seen.uploads.dtype)
    known = (seen.uploads[1:] @ direction).T @ weights
    residual = seen.following @ direction - known - setting.weight * seen.middle()
    variance = (setting.weight * setting.sigma) ** 2 + setting.sigma_downlink**2
    return seen.sign * residual, setting.weight * seen.pair.shift, variance


def _from_broadcast(seen: Round, colluding: bool) -> tuple[Tensor, float, float]:
    """The same for the broadcast less what the others would have uploaded without noise, or did if they collude."""
    setting, direction = seen.setting, seen.pair.direction
    residual = seen.following @ direction - setting.weight * seen.middle()
    residual = residual - (1 - setting.weight) * (seen.clean @ direction)
    variance = setting.variance
    if colluding and setting.colluding:
        mates = setting.colluding
        weights, sigmas = setting.other_weights[:mates], setting.other_sigmas[:mates]
        noise = (seen.uploads[1 : 1 + mates] - seen.clean) @ direction
        residual = residual - noise.T @ torch.as_tensor(weights, dtype=residual.dtype)
        variance -= float(np.sum((weights * sigmas) ** 2))
    return seen.sign * residual, setting.weight * seen.pair.shift, variance


def _score_blind(tally: Tally, seen: Round) -> None:
    """The broadcast when nobody can tell whether the target took part: a mixture of taking part and not."""
    setting, pair = seen.setting, seen.pair
    residual = (seen.following - seen.clean) @ pair.direction
    halves = pair.middle + torch.tensor([-0.5, 0.5]) * seen.sign * pair.shift
    logs = []
    for half in (setting.weight * halves).tolist():
        exponent = (residual * half - half**2 / 2) / setting.variance
        absent = torch.full_like(exponent, _log(1 - setting.drawn))
        logs.append(torch.logaddexp(absent, _log(setting.drawn) + exponent))
    tally.ratio += logs[1] - logs[0]
    tally.information = torch.ones_like(tally.ratio)


def _times(number: np.ndarray, shift: float, variance: float) -> np.ndarray:
    """number·shift/variance, and 0 where the number is, even without any noise."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(number > 0, number * (np.float64(shift) / np.float64(variance)), 0.0)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
