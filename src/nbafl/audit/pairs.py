"""The worst neighbouring data the audit can build for each rule, and what the target uploads under each of the two.

The problems are as small as the attack allows (one or two dimensions along which something happens): noise in other
directions tells an attacker nothing. Uploads come from the protocol's own `upload`, so a rule that forgets to clip shows.

* `paper`: mean estimation with records of norm C, one of them +C or −C, where 2C/m is attained. The paper's premise
  allows a record's own solution to change with the broadcast, so the sign of the difference may change every round.
* `gradient`: a record whose gradient is far longer than G and points one way or the other.
* `client`: a whole client whose update is far longer than C and points one way or the other (or is absent).
* `proximal`: a record that pulls with all its might because the broadcast is sure of another class.

A `Pair` is what the fast game plays with: what the target uploads, as a formula. Its `problem` has real records, with
which the walk along the real path (`path.py`) checks that formula, and the bound for records of any size.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from nbafl.audit import problems
from nbafl.audit.problems import Problem, Scene
from nbafl.protocol import Training
from nbafl.protocol.proximal import uploads
from nbafl.rules import Rule

Upload = Callable[..., Tensor]


class Pair(Protocol):
    """Two worlds that differ in the target's data; vectors of many trials are rows."""

    @property
    def problem(self) -> Problem:
        """Real records of this pair."""
        ...

    @property
    def start(self) -> Tensor:
        """The first broadcast, (d,)."""
        ...

    @property
    def direction(self) -> Tensor:
        """Unit vector along which the target's uploads differ, (d,)."""
        ...

    @property
    def shift(self) -> float:
        """How far apart they are: what was attained of Delta_U."""
        ...

    @property
    def middle(self) -> float:
        """Where half-way between them lies, measured from `follow` times the broadcast."""
        ...

    @property
    def follow(self) -> float:
        """How much of the broadcast an upload contains."""
        ...

    @property
    def beacon(self) -> Tensor | None:
        """What else the target uploads in both worlds, (d,): by it an attacker sees that the target took part."""
        ...

    def target(self, broadcast: Tensor, world: Tensor, sign: int) -> Tensor:
        """The target's upload before its noise, for trials in world 0 or 1; `sign` turns the difference around."""
        ...

    def others(self, broadcast: Tensor) -> Tensor:
        """What every other client uploads before its noise."""
        ...


@dataclass(frozen=True)
class LinearPair:
    """Uploads that are a multiple of the broadcast plus something fixed: one row per world."""

    problem: Problem
    parts: Tensor
    """(2, d): the fixed part in each world."""
    follow: float
    beacon: Tensor | None = None

    @property
    def start(self) -> Tensor:
        return torch.zeros_like(self.parts[0])

    @property
    def shift(self) -> float:
        return float((self.parts[1] - self.parts[0]).norm())

    @property
    def direction(self) -> Tensor:
        return (self.parts[1] - self.parts[0]) / self.shift

    @property
    def middle(self) -> float:
        return float(self.parts.mean(0) @ self.direction)

    def target(self, broadcast: Tensor, world: Tensor, sign: int) -> Tensor:
        return self.follow * broadcast + self.parts[world if sign > 0 else 1 - world]

    def others(self, broadcast: Tensor) -> Tensor:
        return self.follow * broadcast


def mean_estimation(training: Training, scene: Scene, upload: Upload, _: str = "replace") -> LinearPair:
    """Records of norm C, the canary at +C or −C along one axis; with a beacon the others lie along a second one."""
    return _linear(problems.MeanEstimation.of(training, scene), scene, 0.0, upload)


def crafted_gradient(training: Training, scene: Scene, upload: Upload, _: str = "replace") -> LinearPair:
    """A record whose gradient, long before it is clipped, points along ± one axis; the others' along a second, or are 0."""
    return _linear(problems.CraftedGradient.of(training, scene), scene, 1.0, upload)


def whole_client(training: Training, scene: Scene, upload: Upload, adjacency: str) -> LinearPair:
    """A client whose update, long before it is clipped, points along ± one axis; under `drop` it is there or not."""
    return _linear(problems.WholeClient.of(training, scene, adjacency), scene, 1.0, upload)


class SurePair:
    """Softmax regression with two classes and a broadcast that is sure of class 1: the canary, of class 0, lies at ±x.

    Every trial's local problem is really solved, from its own noisy broadcast. The target's other records are all of
    class 1 and pull nowhere; as they are alike they enter as one record with their joint share.
    """

    follow: float = 1.0
    beacon: Tensor | None = None

    def __init__(self, training: Training, scene: Scene, _: Upload, __: str = "replace") -> None:
        self.problem = problems.UnexpectedClass.of(training, scene)
        self.share = len(scene.canary) / scene.records
        self.start = self.problem.start
        one, other = self.target(self.start.expand(2, -1), torch.tensor([0, 1]), 1)
        self.shift = float((other - one).norm())
        self.direction = (other - one) / self.shift
        self.middle = float(((one + other) / 2 - self.start) @ self.direction)

    def target(self, broadcast: Tensor, world: Tensor, sign: int) -> Tensor:
        x = torch.zeros(len(broadcast), 2, self.problem.model.in_features, dtype=broadcast.dtype)
        x[:, 0, 0] = self.problem.place * torch.where((world == 1) == (sign > 0), 1.0, -1.0)
        y = torch.tensor([0, 1]).expand(len(x), -1)
        share = torch.tensor([self.share, 1 - self.share], dtype=broadcast.dtype).expand(len(x), -1)
        return uploads(self.problem.model, x, y, share, broadcast, self.problem.training)

    def others(self, broadcast: Tensor) -> Tensor:
        features = self.problem.model.in_features
        x = torch.zeros(len(broadcast), 1, features, dtype=broadcast.dtype)
        y = torch.ones(len(broadcast), 1, dtype=torch.int64)
        share = torch.ones(len(broadcast), 1, dtype=broadcast.dtype)
        return uploads(self.problem.model, x, y, share, broadcast, self.problem.training)


def _linear(problem: Problem, scene: Scene, follow: float, upload: Upload) -> LinearPair:
    """Both worlds' uploads from the first broadcast; what they have in common along the second axis is the beacon."""
    found = []
    for side in (-1, 1):
        data = problem.records(scene.lines, scene.rows, side)
        start = problem.start
        found.append(start if data is None else scene.upload(upload, problem, data, start))
    beacon = None
    if scene.beacon:
        beacon = torch.zeros_like(found[0])
        beacon[1] = (found[0][1] + found[1][1]) / 2
    return LinearPair(problem, torch.stack(found), follow, beacon)


def of(rule: Rule, training: Training, scene: Scene, adjacency: str, upload: Upload) -> Pair:
    """The worst pair of a rule, as the rule names it."""
    made: Pair = pkgutil.resolve_name(rule.pair)(training, scene, upload, adjacency)
    return made
