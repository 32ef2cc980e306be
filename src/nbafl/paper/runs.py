"""Which trainings the figures need, and their results.

Figures share trainings, and more: a run of T rounds is the beginning of a longer run with the same noise (every draw
depends on seed and round only), so one long run serves every T for which the rule gives the same noise.
Results are kept in a file by a digest of the training; a second call only draws.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from nbafl.durable import write_text
from nbafl.paper.settings import Settings
from nbafl.paper.trainings import Curve, Trial, compute, read_results
from nbafl.simulation.job import Job


@dataclass(frozen=True)
class Wanted:
    """One line, or one point, of a figure, for every seed."""

    calibration: str
    epsilon: float | None
    clients: int
    per_round: int
    rounds: int
    mu: float
    curve: bool = False  # every round is drawn, with accuracies; else the last round only


class Runs:
    """The trainings of a set of figures, and what came out."""

    def __init__(
        self, settings: Settings, seeds: int, wanted: Iterable[Wanted], among: Iterable[Wanted] = ()
    ) -> None:
        """`among`: all that anybody may want. Trainings are shared over them, so that what one figure left in the cache
        serves the next, whichever was asked for first."""
        self.settings, self.seeds = settings, seeds
        self.results: dict[str, Curve] = {}
        self._wanted = tuple(dict.fromkeys(wanted))
        self._home = self._share(list(dict.fromkeys((*self._wanted, *among))))

    def only(self, wanted: Iterable[Wanted]) -> Runs:
        """The same runs and results, of which only these are wanted."""
        other = copy(self)
        other._wanted = tuple(dict.fromkeys(wanted))
        return other

    @property
    def trials(self) -> list[Trial]:
        """Every trial that is wanted, once."""
        places = ((each, seed) for each in self._wanted for seed in range(self.seeds))
        return list(dict.fromkeys(self._home[place] for place in places))

    def values(self, wanted: Wanted, name: str = "train_loss") -> np.ndarray:
        """What was measured, shape (seeds, rounds) for a curve and (seeds,) for a point."""
        rows: list[list[float] | float] = []
        for seed in range(self.seeds):
            curve = self.results[self._home[wanted, seed].key]
            if wanted.curve:
                rows.append(curve[name][: wanted.rounds])
            else:
                rows.append(curve[name][curve["round"].index(wanted.rounds)])
        return np.array(rows)

    def load(self, path: Path) -> None:
        """Take results from a file."""
        known = {each.key for each in self._home.values()}
        self.results |= {key: curve for key, curve in read_results(path).items() if key in known}

    def missing(self) -> list[Trial]:
        return [each for each in self.trials if each.key not in self.results]

    def complete(self, cache_file: Path, on_cost: Callable[[int], None] = lambda _: None) -> None:
        """Compute what is missing; every finished batch is written to the cache at once, what was loaded first."""
        stored = read_results(cache_file) if cache_file.exists() else {}

        def keep(done: dict[str, Curve]) -> None:
            stored.update(done)
            write_text(cache_file, json.dumps({"results": stored}))

        if not self.results.keys() <= stored.keys():
            keep(self.results)
        self.results |= compute(self.missing(), on_cost, keep)

    def _share(self, wanted: list[Wanted]) -> dict[tuple[Wanted, int], Trial]:
        """For every wanted line and seed, the trial that holds it."""
        home: dict[tuple[Wanted, int], Trial] = {}
        points: dict[tuple[int, Job], list[tuple[Wanted, int]]] = {}
        places = [
            (each, seed)
            for each in sorted(wanted, key=lambda each: not each.curve)
            for seed in range(self.seeds)
        ]
        whole = {place: self._whole(*place) for place in places}
        curves = {whole[place] for place in places if place[0].curve}
        for place in places:
            if whole[place] in curves:
                home[place] = whole[place]
            else:
                shortest = replace(whole[place].job, rounds=1)
                points.setdefault((place[0].clients, shortest), []).append(place)
        for (clients, job), served in points.items():
            ends = sorted({each.rounds for each, _ in served})
            merged = replace(job, rounds=ends[-1], eval_every=math.gcd(*ends))
            home |= dict.fromkeys(served, Trial(clients, self.settings.samples, merged, test=False))
        return home

    def _whole(self, wanted: Wanted, seed: int) -> Trial:
        job = replace(_job(self.settings, wanted), seed=seed)
        return Trial(wanted.clients, self.settings.samples, job, test=True)


@cache
def _job(settings: Settings, wanted: Wanted) -> Job:
    plan = settings.plan(
        wanted.calibration,
        wanted.epsilon,
        clients=wanted.clients,
        per_round=wanted.per_round,
        rounds=wanted.rounds,
        mu=wanted.mu,
    )
    return plan.job()
