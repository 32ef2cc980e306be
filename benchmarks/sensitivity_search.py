"""Looks for a record that moves an upload further than its sensitivity: random cases, then gradient ascent from the worst.

    PYTHONPATH=src:. python benchmarks/sensitivity_search.py [CASES] [SECONDS]        (100000 and no limit)

A case is a model of tests/zoo.py with weights of a random size, a client of 1 to 6 records, a clipping norm, a step size
and one record replaced by another: opposite, enlarged, copied with another class, fresh, huge, or not a number. Both uploads
are computed in float64 by the deployment's client (`flower.client.Client`), some pairs through the simulation's engine
as well, and every so often the replaced record and the weights climb the distance between the two.
Exits 1 if any distance passes 2 eta G/m (2 eta G p_i/m in the simulation, one client's share), and prints the largest share
of it that was reached, model by model.
"""

from __future__ import annotations

import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from tests.zoo import CLASSES, SHAPE, ZOO, loss_of, records
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from nbafl.data.federation import Federation
from nbafl.flower.client import Client
from nbafl.flower.release import Broadcast, Releaser
from nbafl.flower.wire import Instruction
from nbafl.plan import Plan
from nbafl.privacy.ledger import Ledger
from nbafl.privacy.sensitivity import gradient as gradient_sensitivity
from nbafl.protocol import Training, flatten
from nbafl.protocol.vector import unflatten
from nbafl.simulation.cores import Cores
from nbafl.simulation.device_data.records import Records
from nbafl.simulation.engines.one_step import OneStepEngine

MODELS = [name for name in ZOO if name != "dropout"]  # whose two uploads would differ by what was dropped
REPLACEMENTS = 8
TOKENS = ("Embedding", "EmbeddingBag", "tied weights", "Transformer encoder")
"""Models that read a record as tokens: nothing to climb there, and no token above 7."""


class Party:
    """One model as a deployment's client and as the simulation train it, given other records case by case."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, model = name, ZOO[name]()
        plan = Plan(
            clients=2, rounds=1, samples=1, sensitivity="gradient", local_steps=1, epsilon=1e6, delta=0.01
        )
        ledger = Ledger(folder / f"{name}.sqlite", anchors=folder / "anchors")
        x, y = records(1, 0)
        self.client = Client(Releaser(plan, ledger), model, x.numpy(), y.numpy())
        self.model = self.client.model
        made = Records(_federation([(x, y), (x, y)]), torch.device("cpu"), torch.float64)
        self.engine = OneStepEngine(made, self.model, self.client.training, 0, Cores(1))

    def upload(self, x: Tensor, y: Tensor, start: Tensor, training: Training) -> Tensor:
        """What the client would send before its noise, by its own code."""
        self.client.x, self.client.y, self.client.training = x, y, training
        asked = Broadcast(Instruction("", 1, "", 0), self.client.layout, start.numpy())
        return torch.from_numpy(self.client._train(asked))

    def average(self, parts: list[tuple[Tensor, Tensor]], start: Tensor, training: Training) -> Tensor:
        """The average of two clients' uploads, by the simulation's engine."""
        self.engine.records = Records(_federation(parts), torch.device("cpu"), torch.float64)
        self.engine.training, self.engine._last = training, None
        return self.engine.round(start, np.arange(2), np.array([0.5, 0.5]), 1).vector


def _federation(parts: list[tuple[Tensor, Tensor]]) -> Federation:
    return Federation.from_arrays([(x.float().numpy(), y.numpy()) for x, y in parts], outputs=CLASSES)


@dataclass
class Case:
    """Two data sets that differ in one record, and a rule."""

    party: Party
    start: Tensor
    x: Tensor
    y: Tensor
    other: tuple[Tensor, int]
    training: Training
    base: Tensor | None = None
    """The upload without the replacement, where it is known."""

    @property
    def bound(self) -> float:
        return float(
            gradient_sensitivity(self.training.record_clip, [len(self.x)], self.training.lr).uplink[0]
        )

    def neighbour(self) -> tuple[Tensor, Tensor]:
        x, y = self.x.clone(), self.y.clone()
        x[0], y[0] = self.other
        return x, y

    def moved(self) -> float:
        """How far the client's upload moves, in parts of its sensitivity."""
        there = self.party.upload(*self.neighbour(), self.start, self.training)
        here = (
            self.party.upload(self.x, self.y, self.start, self.training) if self.base is None else self.base
        )
        return float((there - here).norm()) / self.allowed(self.bound)

    def moved_in_simulation(self) -> float:
        """The same for the average of a round with a second client of the same size."""
        mine = (self.x, self.y)
        there, here = (
            self.party.average([one, mine], self.start, self.training) for one in (self.neighbour(), mine)
        )
        return float((there - here).norm()) / self.allowed(0.5 * self.bound)

    def allowed(self, bound: float) -> float:
        """The bound and the rounding that `flower.release` prices: 2 units in the last place of every coordinate."""
        radius = self.training.lr * self.training.record_clip
        unit = float(np.spacing(float(self.start.abs().max()) + radius))
        return bound + 2 * unit * self.start.numel() ** 0.5


def draw(random: np.random.Generator, parties: dict[str, Party]) -> Case:
    name = MODELS[random.integers(len(MODELS))]
    model = parties[name].model
    count = int(random.integers(1, 7))
    tensor = torch.from_numpy
    x = tensor(random.uniform(0, 7.9, (count, *SHAPE)))
    y = tensor(random.integers(CLASSES, size=count))
    scale = float(np.exp(random.normal(0, 1.5)))
    start = scale * flatten(model) + 0.1 * scale * tensor(random.normal(size=flatten(model).numel()))
    training = Training(
        rule="gradient",
        steps=1,
        lr=float(np.exp(random.normal())),
        record_clip=float(np.exp(random.normal(-1, 2))),
    )
    return Case(parties[name], start, x, y, replacement(random, name, x[0]), training)


def replacement(random: np.random.Generator, name: str, record: Tensor) -> tuple[Tensor, int]:
    """Another record: opposite, enlarged, copied with another class, fresh, or not a number."""
    fresh, label = torch.from_numpy(random.uniform(0, 7.9, SHAPE)), int(random.integers(CLASSES))
    kinds = [7.9 - record, record.clone(), fresh]
    if name not in TOKENS:
        huge = 10.0 ** random.uniform(1, 12)
        kinds += [
            huge * fresh,
            -huge * record,
            torch.full_like(fresh, [np.nan, np.inf, 0.0][random.integers(3)]),
        ]
    return kinds[random.integers(len(kinds))], label


def climb(case: Case, steps: int = 6) -> float:
    """Gradient ascent over the two records and the weights: their clipped gradients are pushed apart."""
    if case.party.name == "control flow":
        return case.moved()
    worst, size = case.moved(), 0.3
    for _ in range(steps):
        record = case.other[0].clone().requires_grad_()
        mine = case.x[0].clone().requires_grad_()
        weights = case.start.clone().requires_grad_()
        pieces = torch.nn.utils.parameters_to_vector(
            p for p in case.party.model.parameters() if p.requires_grad
        )
        assert pieces.numel() == weights.numel()
        gradients = [
            _gradient(case.party.model, weights, r, y)
            for r, y in ((record, case.other[1]), (mine, int(case.y[0])))
        ]
        unit = [g / g.norm().clamp(min=case.training.record_clip) for g in gradients]
        apart = (unit[0] - unit[1]).norm()
        if not bool(apart.isfinite()) or not apart.requires_grad:
            return worst
        slopes = torch.autograd.grad(apart, (record, mine, weights), allow_unused=True)
        if slopes[0] is not None and bool(slopes[0].isfinite().all()):
            case.other = ((record + size * slopes[0].sign()).detach().clamp(-1e6, 1e6), case.other[1])
            case.x[0] = (mine + size * slopes[1].sign()).detach().clamp(-1e6, 1e6)
        if slopes[2] is not None and bool(slopes[2].isfinite().all()):
            case.start = (weights + 0.05 * slopes[2] / slopes[2].norm().clamp(min=1e-12)).detach()
        worst = max(worst, case.moved())
    return worst


def _gradient(model: nn.Module, weights: Tensor, record: Tensor, target: int) -> Tensor:
    def run(x: Tensor) -> Tensor:
        return functional_call(model, unflatten(weights, model), (x,))

    with sdpa_kernel(SDPBackend.MATH):  # the fused kernel has no second derivative
        loss = loss_of(run, record, torch.tensor(target))  # type: ignore[arg-type]
    return torch.autograd.grad(loss, weights, create_graph=True)[0]


def search(cases: int, seconds: float = float("inf"), seed: int = 0) -> dict[str, tuple[int, float]]:
    """Model by model: how many cases were tried, and the largest part of the sensitivity that was reached."""
    random, begun = np.random.default_rng(seed), time.monotonic()
    torch.manual_seed(seed)
    folder = TemporaryDirectory()
    parties = {name: Party(name, Path(folder.name)) for name in MODELS}
    found = dict.fromkeys(MODELS, (0, 0.0))
    tried = 0
    while tried < cases and time.monotonic() - begun < seconds:
        case = draw(random, parties)
        case.base = case.party.upload(case.x, case.y, case.start, case.training)
        tries, shares = 1, [case.moved()]
        while tries < REPLACEMENTS:
            case.other = replacement(random, case.party.name, case.x[0])
            tries, shares = tries + 1, [*shares, case.moved()]
        case.base = None
        finite = bool(case.other[0].isfinite().all())
        if finite and random.integers(2):
            tries, shares = tries + 1, [*shares, case.moved_in_simulation()]
        small = finite and float(case.other[0].abs().max()) < 1e6
        if small and case.party.name not in TOKENS and not random.integers(4):
            tries, shares = tries + 6, [*shares, climb(case)]
        count, worst = found[case.party.name]
        found[case.party.name] = (count + tries, max(worst, *shares))
        tried += tries
    return found


def main() -> int:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    found = search(cases, float(sys.argv[2]) if len(sys.argv) > 2 else float("inf"))
    for name, (count, worst) in found.items():
        print(
            f"{'FAILED' if worst > 1 else 'ok    '} {name}: {count} cases, at most {worst:.12f} of the sensitivity"
        )
    print(f"{sum(count for count, _ in found.values())} cases over {len(found)} models")
    return int(any(worst > 1 for _, worst in found.values()))


if __name__ == "__main__":
    sys.exit(main())
