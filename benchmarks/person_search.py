"""Looks for a person whose rows, all replaced, move an upload further than its sensitivity.

    PYTHONPATH=src:. python benchmarks/person_search.py [CASES] [SECONDS]        (10000 and no limit)

A case is a model of tests/zoo.py with weights of a random size, a client of 1 to 4 persons with 1 to 4 rows each, a clipping
norm, a step size, class weights in every third case, and one person replaced by another with as many or other rows:
opposite, enlarged, copied with other classes, fresh, huge, or not a number. Uploads are those of the rule in float64
(`rules.upload`, which is all that a deployment's client calls). Exits 1 if any distance passes 2 eta G W/persons, and prints
the largest share of it that was reached, model by model.
"""

from __future__ import annotations

import sys
import time
import warnings
from typing import NamedTuple

import numpy as np
import torch
from tests.zoo import CLASSES, SHAPE, ZOO
from torch import Tensor, nn

from nbafl.privacy.sensitivity import gradient, of_persons
from nbafl.protocol import Training, flatten
from nbafl.protocol.independence import ready_to_train
from nbafl.rules import upload
from sensitivity_search import MODELS, REPLACEMENTS, TOKENS


class Rows(NamedTuple):
    """One person's rows."""

    x: Tensor
    y: Tensor


def person(random: np.random.Generator) -> Rows:
    count = int(random.integers(1, 5))
    return Rows(
        torch.from_numpy(random.uniform(0, 7.9, (count, *SHAPE))),
        torch.from_numpy(random.integers(CLASSES, size=count)),
    )


def replaced(random: np.random.Generator, name: str, before: Rows) -> Rows:
    """Another person in the place of this one."""
    fresh, other = person(random), torch.from_numpy(random.integers(CLASSES, size=len(before.y)))
    kinds = [
        fresh,
        Rows(7.9 - before.x, other),
        Rows(before.x, other),
        Rows(before.x[:1].repeat(9, *(1 for _ in SHAPE)), other[:1].repeat(9)),
    ]
    if name not in TOKENS:
        huge = 10.0 ** random.uniform(1, 12)
        odd = torch.full_like(before.x, [np.nan, np.inf, 0.0][random.integers(3)])
        kinds += [Rows(huge * fresh.x, fresh.y), Rows(-huge * before.x, other), Rows(odd, other)]
    return kinds[random.integers(len(kinds))]


def uploaded(model: nn.Module, persons: list[Rows], start: Tensor, training: Training) -> Tensor:
    x, y = torch.cat([each.x for each in persons]), torch.cat([each.y for each in persons])
    return upload(model, x, y, start, training, persons=np.array([len(each.y) for each in persons]))


def draw(random: np.random.Generator, name: str, model: nn.Module) -> list[float]:
    """How far the upload moved for each of a few replacements of one person, in parts of what is allowed."""
    scale = float(np.exp(random.normal(0, 1.5)))
    start = scale * flatten(model) * (1 + 0.1 * torch.from_numpy(random.normal(size=flatten(model).numel())))
    weights = tuple(np.exp(random.normal(0, 1, CLASSES)).tolist()) if random.integers(3) == 0 else None
    training = Training(
        rule="gradient", steps=1, lr=float(np.exp(random.normal())), class_weights=weights,
        record_clip=float(np.exp(random.normal(-1, 2))),
    )  # fmt: skip
    persons = [person(random) for _ in range(random.integers(1, 5))]
    here = uploaded(model, persons, start, training)
    found = gradient(training.record_clip, [len(persons)], training.lr, training.largest_weight)
    radius = training.lr * training.record_clip * training.largest_weight
    unit = float(np.spacing(float(start.abs().max()) + radius))  # the rounding that `flower.release` prices
    allowed = float(of_persons(found).uplink[0]) + 2 * unit * start.numel() ** 0.5
    others = (replaced(random, name, persons[0]) for _ in range(REPLACEMENTS))
    return [
        float((uploaded(model, [other, *persons[1:]], start, training) - here).norm()) / allowed
        for other in others
    ]


def main() -> int:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    until = time.monotonic() + (float(sys.argv[2]) if len(sys.argv) > 2 else float("inf"))
    random, tried = np.random.default_rng(0), 0
    models = {name: ready_to_train(ZOO[name]().double(), SHAPE) for name in MODELS}
    found: dict[str, list[float]] = {name: [] for name in MODELS}
    while tried < cases and time.monotonic() < until:
        name = MODELS[random.integers(len(MODELS))]
        found[name] += draw(random, name, models[name])
        tried += REPLACEMENTS
    for name, shares in found.items():
        worst = max(shares, default=0.0)
        verdict = "ok    " if worst <= 1 else "FAILED"
        print(f"{verdict} {name}: {len(shares)} cases, at most {worst:.12f} of the sensitivity")
    print(f"{tried} cases over {len(found)} models")
    return int(any(not share <= 1 for shares in found.values() for share in shares))


if __name__ == "__main__":
    sys.exit(main())
