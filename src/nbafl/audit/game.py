"""The game an audit plays: whole runs of the mechanism in one of two worlds, watched by several attackers at once.

Every trial is a run of T rounds: each client's noise, the weighted average and the server's noise come from the protocol's
own functions, on vectors of many trials at a time. What a client uploads before its noise is the pair's formula, which
the walk along the real path checks (`path.py`). Nothing is at a fixed place: the target stands anywhere among the clients,
and the difference between the worlds turns around in one of three patterns, so that noise which is used again one or two
rounds later cancels out in one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nbafl import protocol
from nbafl.audit.bounds import Outcomes
from nbafl.audit.mechanism import Mechanism
from nbafl.audit.noise_sample import NoiseSample
from nbafl.audit.pairs import Pair
from nbafl.audit.views import GameSetting, Round, Tally, View
from nbafl.simulation.cores import Cores, cores

VOICES = 256
"""Other clients that are drawn one by one; of more than so many, several are drawn as their exact sum."""
PATTERNS = {"+-": 1, "++--": 2, "++++": 0}
"""Which way round the worlds differ in a round: turning after so many rounds (0: never)."""
_CHUNK = 1_000_000  # numbers drawn at a time: what fits the cache of a core
_KEPT_CHUNKS = 2  # chunks whose noise is kept for the looks at it
_KEPT = 64  # numbers of each client's noise that are kept of a round
_FINEST = 1e-5  # noise below this part of what it is added to is too small for the looks at it
_KEPT_ROWS = 1500  # of a chunk: rounds times clients, but always four rounds


@dataclass(frozen=True)
class Played:
    """What the attackers scored in each pattern of signs, and a sample of the noise they met."""

    outcomes: dict[str, dict[str, Outcomes]]
    """Attacker, then pattern."""
    noise: NoiseSample
    guessed_right: float
    """How often an attacker saw from the broadcast alone whether the target took part."""

    def joined(self, name: str) -> Outcomes:
        """All patterns of one attacker together."""
        return Outcomes.join(list(self.outcomes[name].values()))


class Game:
    """Trials of one setting against a list of attackers."""

    def __init__(
        self,
        pair: Pair,
        setting: GameSetting,
        views: list[View],
        mechanism: Mechanism,
        patterns: tuple[str, ...] = tuple(PATTERNS),
    ) -> None:
        self.pair, self.setting, self.views, self.mechanism = pair, setting, views, mechanism
        self.patterns = patterns

    def play(self, trials: int, seed: int, on_trials: Callable[[int], None] | None = None) -> Played:
        """So many trials in each world.

        What a chunk draws depends on the seed and its number alone, so the number of cores changes nothing.
        """

        def chunk(item: tuple[int, int]) -> _Chunk:
            number, count = item
            found = _Chunk(self, number, count, self.mechanism.generator(seed, number, "audit"))
            found.play()
            if on_trials:
                on_trials(count)
            return found

        found = Cores(cores()).map(chunk, list(enumerate(self._chunks(trials))))
        outcomes = {
            view.name: {
                pattern: Outcomes.join([each.outcomes[place] for each in found if each.pattern == pattern])
                for pattern in self.patterns
            }
            for place, view in enumerate(self.views)
        }
        noise = NoiseSample.join([each.noise() for each in found if each.keeps])
        right = np.average([each.right for each in found], weights=[each.count for each in found])
        return Played(outcomes, noise, min(1.0, float(right)))

    def _chunks(self, trials: int) -> Iterator[int]:
        """Sizes of chunks; every pattern gets at least one."""
        width = (len(self.setting.other_weights) + 1) * len(self.pair.start)
        size = max(1, min(_CHUNK // (2 * width), -(-trials // len(self.patterns))))
        for first in range(0, trials, size):
            yield min(size, trials - first)


class _Chunk:
    """Some trials of a game, round after round; world 0 and world 1 take turns."""

    def __init__(self, game: Game, number: int, count: int, generator: torch.Generator) -> None:
        self.game, self.count, self.generator = game, count, generator
        self.pattern = game.patterns[number % len(game.patterns)]
        self.keeps = number < _KEPT_CHUNKS
        setting = game.setting
        others = len(setting.other_weights)
        place = int(protocol.numpy_generator(0, number, "place of the target").integers(others + 1))
        order = np.insert(np.arange(1, others + 1), place, 0)  # where the target, number 0, stands
        self.order, self.back = torch.from_numpy(order), torch.from_numpy(np.argsort(order))
        self.sigmas = np.array([setting.sigma, *setting.other_sigmas])[order]
        self.weights = np.array([setting.weight, *setting.other_weights])[order]
        self.outcomes: list[Outcomes] = []
        self.right = 0.0
        self.kept: list[NoiseSample] = []
        self.number = number

    def play(self) -> None:
        pair, setting = self.game.pair, self.game.setting
        rows = 2 * self.count
        world = torch.arange(rows) % 2
        tallies = [Tally(torch.zeros(rows), torch.zeros(rows)) for _ in self.game.views]
        broadcast = pair.start.expand(rows, -1)
        seen = torch.zeros(rows)  # rounds with the target so far, as far as an attacker can tell
        for number in range(setting.rounds):
            sign = _sign(self.pattern, number)
            present = torch.rand(rows, generator=self.generator) < setting.drawn
            clean = pair.others(broadcast)
            own = torch.where(present[:, None], pair.target(broadcast, world, sign), clean)
            uploads, following = self._round(number, own, clean)
            believed = self._believed(following, broadcast, present)
            self.right += float((believed == present).float().mean()) / setting.rounds
            seen += believed
            found = Round(pair, setting, number, sign, broadcast, clean, uploads, following, believed, seen)
            for view, tally in zip(self.game.views, tallies, strict=True):
                view.score(tally, found)
            broadcast = following
        self.outcomes = [tally.outcomes() for tally in tallies]

    def noise(self) -> NoiseSample:
        return NoiseSample.join(self.kept)

    def _round(self, number: int, own: Tensor, clean: Tensor) -> tuple[Tensor, Tensor]:
        """(all uploads with their noise, the target's first: (participants, trials, d); the next broadcast)."""
        mechanism = self.game.mechanism
        before = torch.cat([own[None], clean.expand(len(self.sigmas) - 1, -1, -1)])[self.order]
        sigmas = torch.tensor(self.sigmas, dtype=own.dtype)
        uploads = mechanism.add_noise(before, sigmas[:, None, None], self.generator)
        average = mechanism.aggregate(uploads.flatten(1), self.weights).view(uploads.shape[1:])
        following = mechanism.add_noise(average, self.game.setting.sigma_downlink, self.generator)
        if self.keeps:
            self._keep(number, before, uploads, following)
        return uploads[self.back], following

    def _keep(self, number: int, before: Tensor, uploads: Tensor, following: Tensor) -> None:
        """The first numbers of this round's noise, for the looks at it."""
        if (number + 1) * len(self.sigmas) > max(_KEPT_ROWS, 4 * len(self.sigmas)):
            return
        few = slice(0, max(1, _KEPT // before.shape[-1]))
        before, uploads = before[:, few].double(), uploads[:, few].double()
        average = torch.einsum("i,itd->td", torch.from_numpy(self.weights), uploads)
        server = following[few].double() - average
        if float(before.abs().max()) * _FINEST > min(self.sigmas[self.sigmas > 0], default=np.inf):
            return  # what float32 rounds off would show in so little noise
        self.kept.append(
            NoiseSample.of_round(
                self.number, number, (uploads - before).flatten(1), self.sigmas, self.weights
            )
        )
        if self.game.setting.sigma_downlink > 0:
            self.kept.append(
                NoiseSample.of_server(self.number, number, server.flatten(), self.game.setting.sigma_downlink)
            )

    def _believed(self, following: Tensor, broadcast: Tensor, present: Tensor) -> Tensor:
        """Whether the target took part, as the broadcast shows it: its beacon is there or not."""
        pair, setting = self.game.pair, self.game.setting
        beacon = pair.beacon
        if setting.drawn == 1 or beacon is None:
            return present
        length = float(beacon.norm())
        residual = (following - pair.follow * broadcast) @ (beacon / length)
        return residual > setting.weight * length / 2


def _sign(pattern: str, number: int) -> int:
    turning = PATTERNS[pattern]
    return -1 if turning and (number // turning) % 2 else 1
