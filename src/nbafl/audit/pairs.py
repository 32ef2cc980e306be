"""The worst neighbouring data the audit can build for each rule, and what the target uploads under each of the two.

The problems are as small as the attack allows (one or two dimensions along which something happens): noise in other
directions tells an attacker nothing. Uploads come from the protocol's own `upload`, so a rule that forgets to clip shows.

* `paper`: mean estimation with records of norm C, one of them +C or −C, where 2C/m is attained. The paper's premise
  allows a record's own solution to change with the broadcast, so the sign of the difference may change every round.
* `gradient`: a record whose gradient is far longer than G and points one way or the other.
* `client`: a whole client whose update is far longer than C and points one way or the other (or is absent).
* `proximal`: a record that pulls with all its might because the broadcast is sure of another class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from nbafl.protocol import Training, flatten, load
from nbafl.protocol.proximal import uploads

Upload = Callable[[nn.Module, Tensor, Tensor, Tensor, Training], Tensor]
CRAFTED = 1e3
"""How many times longer than its clip a crafted gradient or update is."""


class Pair(Protocol):
    """Two worlds that differ in the target's data; vectors of many trials are rows."""

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


class Location(nn.Module):
    """Mean estimation: the output is the weights themselves, so the squared loss is least at the mean of the targets."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(dimension))

    def forward(self, x: Tensor) -> Tensor:
        return self.weights.expand(len(x), -1)


def mean_estimation(training: Training, records: int, beacon: bool, upload: Upload) -> LinearPair:
    """Records of norm C, the first at +C or −C along one axis; with a beacon the others lie along a second one."""
    dimension = 2 if beacon else 1
    model = Location(dimension)
    # One step of size d/2 on the mean over records and coordinates of (w − y)² lands on the mean of the records.
    exactly = replace(training, steps=1, lr=dimension / 2, mu=0.0, batch=None, loss="squared")
    values = torch.zeros(records, dimension)
    if beacon:
        values[1:, 1] = training.clip
    found = []
    for side in (-1, 1):
        values[0] = 0.0
        values[0, 0] = side * training.clip
        found.append(upload(model, torch.zeros(records, 1), values, flatten(model), exactly))
    return LinearPair(torch.stack(found), 0.0, _second_axis(found, beacon))


def crafted_gradient(training: Training, records: int, beacon: bool, upload: Upload) -> LinearPair:
    """A record whose gradient, long before it is clipped, points along ± one axis; the others' along a second, or are 0."""
    dimension = 2 if beacon else 1
    model = nn.Linear(dimension, 1, bias=False)
    load(torch.zeros(dimension), model)
    x, y = torch.zeros(records, dimension), torch.zeros(records)
    if beacon:
        x[1:, 1], y[1:] = 1.0, CRAFTED * training.record_clip
    found = []
    for side in (-1, 1):
        x[0, 0], y[0] = 1.0, side * CRAFTED * training.record_clip
        found.append(upload(model, x, y, flatten(model), replace(training, loss="squared")))
    return LinearPair(torch.stack(found), 1.0, _second_axis(found, beacon))


def whole_client(training: Training, adjacency: str, upload: Upload) -> LinearPair:
    """A client whose update, long before it is clipped, points along ± one axis; under `drop` it is there or not."""
    model = nn.Linear(1, 1, bias=False)
    load(torch.zeros(1), model)
    once = replace(training, steps=1, mu=0.0, batch=None, loss="squared")
    far = CRAFTED * training.clip / training.lr
    found = [
        upload(model, torch.ones(1, 1), torch.full((1,), side * far), flatten(model), once)
        for side in (-1, 1)
    ]
    if adjacency == "drop":
        found[0] = flatten(model)
    return LinearPair(torch.stack(found), 1.0)


class SurePair:
    """Softmax regression with two classes and a broadcast that is sure of class 1: the canary, of class 0, lies at ±x.

    Every trial's local problem is really solved, from its own noisy broadcast. The target's other records are all of
    class 1 and pull nowhere; as they are alike they enter as one record with their joint share.
    """

    follow: float = 1.0
    beacon: Tensor | None = None

    def __init__(self, training: Training, records: int) -> None:
        assert training.feature_norm is not None
        self.training, self.records = training, records
        self.model = nn.Linear(1, 2)
        self.place = (training.feature_norm**2 - 1) ** 0.5
        # As sure as the clipping norm leaves room for: half of it is spent on the biases −b and +b.
        bias = 0.5 * training.clip / 2**0.5
        self.start = torch.tensor([0.0, 0.0, -bias, bias])
        one, other = self.target(self.start.expand(2, -1), torch.tensor([0, 1]), 1)
        self.shift = float((other - one).norm())
        self.direction = (other - one) / self.shift
        self.middle = float(((one + other) / 2 - self.start) @ self.direction)

    def target(self, broadcast: Tensor, world: Tensor, sign: int) -> Tensor:
        place = self.place * torch.where((world == 1) == (sign > 0), 1.0, -1.0)
        x = torch.stack([place, torch.zeros_like(place)], dim=1)[:, :, None]
        y = torch.tensor([0, 1]).expand(len(x), -1)
        share = torch.tensor([1 / self.records, 1 - 1 / self.records]).expand(len(x), -1)
        return uploads(self.model, x, y, share, broadcast, self.training)

    def others(self, broadcast: Tensor) -> Tensor:
        x, y = torch.zeros(len(broadcast), 1, 1), torch.ones(len(broadcast), 1, dtype=torch.int64)
        return uploads(self.model, x, y, torch.ones(len(broadcast), 1), broadcast, self.training)


def _second_axis(found: list[Tensor], beacon: bool) -> Tensor | None:
    """What both worlds have in common along the second axis."""
    if not beacon:
        return None
    common = (found[0] + found[1]) / 2
    return common * torch.tensor([0.0, 1.0])
