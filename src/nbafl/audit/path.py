"""A walk along the real path of an upload: the rule's own upload on real records, noise, average and server noise.

The fast game takes a formula for what a client uploads. Here a few runs go the whole way, for clients drawn at random in
every round: the real records of a problem, with the canary at another place each time, through the rule's `upload` in both
worlds; then each client's own noise from its own stream, the average, and the server's noise. Four things are kept:

* how far the uploads of two neighbours are apart, beside Delta_U: for quiet records (only the canary pulls) and wild ones
  (every record is far beyond its clip);
* how far an upload is from the formula of the fast game;
* how far the average is from the weighted mean;
* all noise that was added (`NoiseSample`).

Clients with many records turn several of them at once, so that every record is the canary of some probe; two uploads may
then differ by as many times Delta_U.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from nbafl import protocol
from nbafl.audit import pairs
from nbafl.audit.looks import Look
from nbafl.audit.mechanism import Mechanism
from nbafl.audit.noise_sample import NoiseSample
from nbafl.audit.problems import Data, Scene
from nbafl.audit.setting import training_of
from nbafl.plan import Plan
from nbafl.simulation.cores import one_thread

PROBES = 240
"""Uploads that are really made, in both worlds each."""
FEWEST_PROBES, MANY_RECORDS = 24, 100_000
"""Clients with more records than that are probed more rarely, but so often."""
RUNS = (4, 64)
"""Fewest and most runs, in turn with quiet and with wild records."""
CLIENTS = 24
"""Participants of a round that are followed."""
ROUNDS = 24
"""Rounds that are walked: the first ones, and later ones at random."""
WIDTH = 64
FEW_RECORDS = 4096
"""Clients with more records get fewer coordinates."""
ROUNDING = 1e-6
"""Room for float64, as a part of Delta_U."""


@dataclass
class Walked:
    """What was seen on the way."""

    noise: list[NoiseSample] = field(default_factory=list)
    apart: float = 0.0
    """Largest distance of two neighbours' uploads, in multiples of what is allowed."""
    surprise: float = 0.0
    """Largest distance of an upload from the formula, in multiples of Delta_U."""
    skew: float = 0.0
    """Largest distance of the average from the weighted mean, in multiples of the largest upload."""

    def looks(self, solved_within: float) -> list[Look]:
        """The bounds that always hold. `solved_within`: by how much of Delta_U two honest solutions may differ."""
        return [
            Look(
                "path: neighbours",
                "distance of two neighbours' uploads over the sensitivity",
                1 + ROUNDING,
                self.apart,
                0.0,
            ),
            Look(
                "path: formula",
                "distance of an upload from what the game takes it to be, over the sensitivity",
                1e-3 + solved_within,
                self.surprise,
                0.0,
            ),
            Look(
                "path: average",
                "distance of the average from the weighted mean, over the largest upload",
                ROUNDING,
                self.skew,
                0.0,
            ),
        ]


def walk(plan: Plan, mechanism: Mechanism) -> Walked:
    """Some runs of the plan's protocol on real records."""
    found, deal, size = Walked(), _Deal(plan), _Size.of(plan)
    with one_thread():  # vectors this small only wait for each other
        for trial in range(size.runs):
            _Walk(plan, mechanism, trial, size, deal, found).run()
    return found


def solved_within(plan: Plan) -> float:
    """Two points with |∇J| ≤ tau lie within 2·tau/mu of each other: as a part of the smallest Delta_U."""
    if plan.tolerance is None or "tolerance" not in plan.rule.uses:
        return 0.0
    return float(2 * plan.tolerance / plan.mu / plan.release().uplink.min())


@dataclass(frozen=True)
class _Size:
    """How many runs, rounds, clients and probes a walk has."""

    runs: int
    rounds: int
    clients: int
    probes: int
    """Clients that are probed in a round."""

    @classmethod
    def of(cls, plan: Plan) -> _Size:
        rounds, clients = min(plan.rounds, ROUNDS), min(plan.drawn, CLIENTS)
        probes = max(FEWEST_PROBES, min(PROBES, PROBES * MANY_RECORDS // int(np.max(plan.client_sizes))))
        runs = int(np.clip(-(-probes // (rounds * clients)), *RUNS))
        return cls(runs, rounds, clients, min(clients, -(-probes // (runs * rounds))))


class _Deal:
    """Which rows are the canary: at random, and every record of a client once before any comes again."""

    def __init__(self, plan: Plan) -> None:
        self.whole = plan.rule.unit == "client"
        self.chance = protocol.numpy_generator(plan.seed, 0, "audit canaries")
        size = _Size.of(plan)
        sizes, clients = np.unique(plan.client_sizes, return_counts=True)
        # Every record is to be met about twice.
        probes = size.runs * size.rounds * size.probes * clients / plan.clients / 2
        self.together = dict(
            zip(sizes.tolist(), np.ceil(sizes / np.maximum(1, probes)).astype(int), strict=True)
        )
        self.dealt: dict[int, Iterator[tuple[int, ...]]] = {}

    def next(self, records: int) -> tuple[int, ...]:
        if self.whole:
            return tuple(range(records))
        return next(self.dealt.setdefault(records, self._rows(records)))

    def _rows(self, records: int) -> Iterator[tuple[int, ...]]:
        together = int(self.together[records])
        while True:
            order = self.chance.permutation(records)
            for first in range(0, records, together):
                yield tuple(order[first : first + together].tolist())


class _Walk:
    """One run: `trial` even: quiet records, odd: wild ones."""

    def __init__(
        self, plan: Plan, mechanism: Mechanism, trial: int, size: _Size, deal: _Deal, found: Walked
    ) -> None:
        self.plan, self.mechanism, self.trial, self.found = plan, mechanism, trial, found
        self.size, self.deal = size, deal
        self.seed = protocol.stream_key(plan.seed, trial, "audit path")
        self.random = protocol.generator(plan.seed, trial, "audit records")
        self.chance = protocol.numpy_generator(plan.seed, trial, "audit places")
        self.wild = trial % 2 == 1
        release, noise = plan.release(), plan.noise_scales()
        self.deltas, self.shares, self.sigmas = release.uplink, release.weights, noise.sigma_uplink
        self.sigma_downlink = noise.sigma_downlink
        self.sizes = np.asarray(plan.client_sizes)
        self.width = WIDTH if self.sizes.max() <= FEW_RECORDS else 4
        self.pairs: dict[tuple[int, int], pairs.Pair] = {}

    def run(self) -> None:
        broadcast = self.pair(int(self.sizes.min()), (0,)).start
        for turn, number in enumerate(self._rounds()):
            broadcast = self._round(number, broadcast, 1 if turn % 2 == 0 else -1)

    def scene(self, records: int, canary: tuple[int, ...]) -> Scene:
        """A client of this size and its canary."""
        persons = self.plan.person is not None
        return Scene(records, canary, False, self.width, torch.float64, persons)

    def pair(self, records: int, canary: tuple[int, ...]) -> pairs.Pair:
        """The worst pair of a client of this size; who the canary is changes nothing in its formula."""
        key = (records, len(canary))
        if key not in self.pairs:
            plan = self.plan
            beacon = records > len(canary) and self.width > 1 and plan.rule.beacon
            scene = replace(self.scene(records, canary), beacon=beacon)
            self.pairs[key] = pairs.of(
                plan.rule, training_of(plan), scene, plan.adjacency, self.mechanism.upload
            )
        return self.pairs[key]

    def _rounds(self) -> list[int]:
        """Two thirds of the walk are the first rounds, the others any later ones."""
        first = min(self.plan.rounds, ROUNDS * 2 // 3)
        later = np.arange(first + 1, self.plan.rounds + 1)
        some = self.chance.choice(later, self.size.rounds - first, replace=False)
        return [*range(1, first + 1), *sorted(some.tolist())]

    def _round(self, number: int, broadcast: Tensor, sign: int) -> Tensor:
        plan, mechanism = self.plan, self.mechanism
        clients = protocol.draw(self.seed, number, plan.clients, plan.drawn)
        if len(clients) > self.size.clients:
            clients = np.sort(self.chance.choice(clients, self.size.clients, replace=False))
        probed = set(self.chance.choice(clients, self.size.probes, replace=False).tolist())
        others = self.pair(int(self.sizes.min()), (0,)).others(broadcast[None])[0]
        clean = torch.stack(
            [
                self._probe(client, broadcast, sign) if client in probed else others
                for client in clients.tolist()
            ]
        )
        uploads = torch.stack(
            [
                mechanism.add_noise(
                    vector, float(self.sigmas[client]), mechanism.generator(self.seed, number, client)
                )
                for vector, client in zip(clean, clients.tolist(), strict=True)
            ]
        )
        weights = self.shares[clients] / self.shares[clients].sum()
        average = mechanism.aggregate(uploads, weights)
        following = mechanism.add_noise(
            average, self.sigma_downlink, mechanism.generator(self.seed, number, "server")
        )
        mean = torch.from_numpy(weights) @ uploads
        self.found.skew = max(self.found.skew, _ratio(average - mean, float(uploads.abs().max())))
        self._keep(number, clients, weights, uploads - clean, following - mean)
        return following

    def _keep(
        self, number: int, clients: np.ndarray, weights: np.ndarray, noise: Tensor, server: Tensor
    ) -> None:
        kept = self.found.noise
        kept.append(NoiseSample.of_round(self.trial, number, noise, self.sigmas[clients], weights, clients))
        if self.sigma_downlink > 0:
            kept.append(NoiseSample.of_server(self.trial, number, server, self.sigma_downlink))

    def _probe(self, client: int, broadcast: Tensor, sign: int) -> Tensor:
        """Both worlds' uploads, as they really are; the one that goes on is that of a world at random."""
        records, delta = int(self.sizes[client]), float(self.deltas[client])
        canary = self.deal.next(records)
        pair, scene = self.pair(records, canary), self.scene(records, canary)
        problem = pair.problem
        held: tuple[Data | None, ...]
        if self.wild:
            held = problem.wild(scene.lines, scene.rows, self.random)
        else:
            held = tuple(problem.records(scene.lines, scene.rows, side * sign) for side in (-1, 1))
        made = [
            broadcast if data is None else scene.upload(self.mechanism.upload, problem, data, broadcast)
            for data in held
        ]
        allowed = problem.allowed(delta, len(canary), self.wild)
        self.found.apart = max(self.found.apart, _ratio(made[1] - made[0], allowed))
        if not self.wild:
            formula = pair.target(broadcast.expand(2, -1), torch.tensor([0, 1]), sign)
            self.found.surprise = max(self.found.surprise, _ratio(torch.stack(made) - formula, delta))
        return made[int(self.chance.integers(2))]


def _ratio(difference: Tensor, allowed: float) -> float:
    """Largest row of a difference, in multiples of what is allowed; not a number counts as infinite."""
    longest = float(difference.reshape(-1, difference.shape[-1]).norm(dim=1).max())
    return longest / allowed if longest == longest else float("inf")
