"""The game an audit plays: whole runs of the mechanism in one of two worlds, watched by several attackers at once.

Every trial is a run of T rounds: each client's noise, the weighted average and the server's noise come from the protocol's
own functions, on vectors of many trials at a time. What each attacker may see of a round it scores by the likelihood
ratio of the two worlds, given the broadcasts before:

* the target's upload: a shift of Delta in noise sigma_i;
* the broadcast, less all other uploads, which it tapped: p_i·Delta in noise p_i·sigma_i and sigma_D;
* the broadcast alone: p_i·Delta in all clients' noise and sigma_D; colluders subtract their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nbafl import protocol
from nbafl.audit.bounds import Outcomes
from nbafl.audit.pairs import Pair
from nbafl.privacy.adversary import Adversary
from nbafl.simulation.crew import Crew, cores

VOICES = 256
"""Other clients that are drawn one by one; of more than so many, several are drawn as their exact sum."""
_CHUNK = 1_000_000  # numbers drawn at a time: what fits the cache of a core


@dataclass(frozen=True)
class Mechanism:
    """The code under attack; a test puts a broken part in its place."""

    upload: Callable[..., Tensor] = protocol.upload
    add_noise: Callable[..., Tensor] = protocol.add_noise
    aggregate: Callable[..., Tensor] = protocol.aggregate


@dataclass(frozen=True)
class Setting:
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


@dataclass(frozen=True)
class Attack:
    """One attacker: how many of the target's rounds it sees how, and whom it works with."""

    name: str
    uploads: int
    taps: int
    colluding: bool = False
    """Whether it knows the noise of the setting's colluders."""
    blind: bool = False
    """Whether it cannot tell if the target took part in a round."""

    @classmethod
    def of(cls, adversary: Adversary, setting: Setting, blind: bool) -> Attack:
        """The adversary's attack; of taps spread over rounds only those count that are certain to meet in one."""
        uploads = {"none": 0, "exposed": setting.exposures, "all": setting.rounds}[adversary.uploads]
        taps = 0 if adversary.others == "none" else setting.exposures
        hidden = blind and not adversary.sees_participation
        return cls(adversary.name, uploads, taps, adversary.colluders > 0, hidden)


@dataclass
class Tally:
    """Running log-likelihood ratio and information of one attack over the rounds of a chunk of trials."""

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
class View:
    """One round of a chunk of trials; rows are trials."""

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


class Game:
    """Trials of one setting against a list of attacks."""

    def __init__(self, pair: Pair, setting: Setting, attacks: list[Attack], mechanism: Mechanism) -> None:
        self.pair, self.setting, self.attacks, self.mechanism = pair, setting, attacks, mechanism
        self.guessed_right: list[float] = []
        """Of each chunk, how often an attacker saw from the broadcast alone whether the target took part."""

    def play(
        self, trials: int, seed: int, on_trials: Callable[[int], None] | None = None
    ) -> dict[str, Outcomes]:
        """So many trials in each world; one set of outcomes per attack.

        What a chunk draws depends on the seed and its number alone, so the number of cores changes nothing.
        """

        def chunk(item: tuple[int, int]) -> list[Outcomes]:
            number, count = item
            tallies = self._chunk(torch.arange(2 * count) % 2, protocol.generator(seed, number, "audit"))
            if on_trials:
                on_trials(count)
            return [tally.outcomes() for tally in tallies]

        found = Crew(cores()).map(chunk, list(enumerate(self._chunks(trials))))
        parts = zip(*found, strict=True)
        return {
            attack.name: Outcomes.join(list(part)) for attack, part in zip(self.attacks, parts, strict=True)
        }

    def sign(self, number: int) -> int:
        """Which way round the worlds differ in a round: turning every time, noise that is used twice cancels out."""
        return 1 if number % 2 == 0 else -1

    def _chunks(self, trials: int) -> Iterator[int]:
        width = (len(self.setting.other_weights) + 1) * len(self.pair.start)
        size = max(1, _CHUNK // (2 * width))
        for first in range(0, trials, size):
            yield min(size, trials - first)

    def _chunk(self, world: Tensor, generator: torch.Generator) -> list[Tally]:
        count, pair, setting = len(world), self.pair, self.setting
        tallies = [Tally(torch.zeros(count), torch.zeros(count)) for _ in self.attacks]
        broadcast = pair.start.expand(count, -1)
        seen = torch.zeros(count)  # rounds with the target so far, as far as an attacker can tell
        right = 0.0
        for number in range(setting.rounds):
            sign = self.sign(number)
            present = torch.rand(count, generator=generator) < setting.drawn
            clean = pair.others(broadcast)
            own = torch.where(present[:, None], pair.target(broadcast, world, sign), clean)
            uploads = self._noisy(own, clean, generator)
            following = self._server(uploads, generator)
            believed = self._believed(following, broadcast, present)
            right += float((believed == present).float().mean()) / setting.rounds
            seen += believed
            view = View(number, sign, broadcast, clean, uploads, following, believed, seen)
            for attack, tally in zip(self.attacks, tallies, strict=True):
                self.score(attack, tally, view)
            broadcast = following
        self.guessed_right.append(right)
        return tallies

    def _noisy(self, own: Tensor, clean: Tensor, generator: torch.Generator) -> Tensor:
        """All uploads of a round with their noise, the target's first: (participants, trials, d)."""
        sigmas = torch.tensor([self.setting.sigma, *self.setting.other_sigmas], dtype=own.dtype)
        before = torch.cat([own[None], clean.expand(len(sigmas) - 1, -1, -1)])
        return self.mechanism.add_noise(before, sigmas[:, None, None], generator)

    def _server(self, uploads: Tensor, generator: torch.Generator) -> Tensor:
        weights = np.concatenate([[self.setting.weight], self.setting.other_weights])
        average = self.mechanism.aggregate(uploads.flatten(1), weights).view(uploads.shape[1:])
        return self.mechanism.add_noise(average, self.setting.sigma_downlink, generator)

    def _believed(self, following: Tensor, broadcast: Tensor, present: Tensor) -> Tensor:
        """Whether the target took part, as the broadcast shows it: its beacon is there or not."""
        beacon = self.pair.beacon
        if self.setting.drawn == 1 or beacon is None:
            return present
        length = float(beacon.norm())
        residual = (following - self.pair.follow * broadcast) @ (beacon / length)
        return residual > self.setting.weight * length / 2

    def score(self, attack: Attack, tally: Tally, view: View) -> None:
        """Add what the attack learns from one round."""
        if attack.blind:
            self._score_blind(tally, view)
            return
        upload = view.believed & (view.seen <= attack.uploads)
        tapped = view.believed & ~upload & (view.seen <= attack.uploads + attack.taps)
        if attack.uploads:
            tally.add(*self._from_upload(view), upload)
        if attack.taps:
            tally.add(*self._from_taps(view), tapped)
        if attack.uploads < self.setting.rounds:
            tally.add(*self._from_broadcast(view, attack.colluding), view.believed & ~upload & ~tapped)

    def _from_upload(self, view: View) -> tuple[Tensor, float, float]:
        """(how far the target's upload lies from the middle, shift between the worlds, variance)."""
        residual = view.uploads[0] @ self.pair.direction - self._middle(view)
        return view.sign * residual, self.pair.shift, self.setting.sigma**2

    def _from_taps(self, view: View) -> tuple[Tensor, float, float]:
        """The same for the broadcast less all other uploads: p_i(w_i + n_i) + n_D is left."""
        setting, direction = self.setting, self.pair.direction
        weights = torch.as_tensor(setting.other_weights, dtype=view.uploads.dtype)
        known = (view.uploads[1:] @ direction).T @ weights
        residual = view.following @ direction - known - setting.weight * self._middle(view)
        variance = (setting.weight * setting.sigma) ** 2 + setting.sigma_downlink**2
        return view.sign * residual, setting.weight * self.pair.shift, variance

    def _from_broadcast(self, view: View, colluding: bool) -> tuple[Tensor, float, float]:
        """The same for the broadcast less what the others would have uploaded without noise, or did if they collude."""
        setting, direction = self.setting, self.pair.direction
        residual = view.following @ direction - setting.weight * self._middle(view)
        residual = residual - (1 - setting.weight) * (view.clean @ direction)
        variance = setting.variance
        if colluding and setting.colluding:
            mates = setting.colluding
            weights, sigmas = setting.other_weights[:mates], setting.other_sigmas[:mates]
            noise = (view.uploads[1 : 1 + mates] - view.clean) @ direction
            residual = residual - noise.T @ torch.as_tensor(weights, dtype=residual.dtype)
            variance -= float(np.sum((weights * sigmas) ** 2))
        return view.sign * residual, setting.weight * self.pair.shift, variance

    def _middle(self, view: View) -> Tensor:
        """Half-way between the target's two possible uploads, along the direction in which they differ."""
        return self.pair.follow * (view.broadcast @ self.pair.direction) + self.pair.middle

    def _score_blind(self, tally: Tally, view: View) -> None:
        """The broadcast when nobody can tell whether the target took part: a mixture of taking part and not."""
        setting, pair = self.setting, self.pair
        residual = (view.following - view.clean) @ pair.direction
        halves = pair.middle + torch.tensor([-0.5, 0.5]) * view.sign * pair.shift
        logs = []
        for half in (setting.weight * halves).tolist():
            exponent = (residual * half - half**2 / 2) / setting.variance
            logs.append(
                torch.logaddexp(
                    torch.full_like(exponent, _log(1 - setting.drawn)), _log(setting.drawn) + exponent
                )
            )
        tally.ratio += logs[1] - logs[0]
        tally.information = torch.ones_like(tally.ratio)


def information(attack: Attack, setting: Setting, pair: Pair, taken_part: np.ndarray) -> np.ndarray:
    """mu² of an attack on a target that takes part so many times: rounds of each kind times what one tells."""
    uploads = np.minimum(taken_part, attack.uploads)
    taps = np.minimum(taken_part - uploads, attack.taps)
    mates = slice(setting.colluding if attack.colluding else 0)
    hidden = setting.variance - np.sum((setting.other_weights[mates] * setting.other_sigmas[mates]) ** 2)
    own = (setting.weight * setting.sigma) ** 2 + setting.sigma_downlink**2
    share = (setting.weight * pair.shift) ** 2
    return (
        _times(uploads, pair.shift**2, setting.sigma**2)
        + _times(taps, share, own)
        + _times(taken_part - uploads - taps, share, hidden)
    )


def _times(number: np.ndarray, shift: float, variance: float) -> np.ndarray:
    """number·shift/variance, and 0 where the number is, even without any noise."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(number > 0, number * (np.float64(shift) / np.float64(variance)), 0.0)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
