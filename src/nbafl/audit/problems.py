"""Learning problems small enough to attack, with real records: what a client holds in each of two neighbouring worlds.

A problem offers two kinds of neighbouring records. The quiet ones make the worst pair: only the canary pulls, with all it
has. The wild ones test the bound itself: every record is far beyond what its rule clips, in a random direction. The canary
is a set of rows, at whatever place: one row for a record, several for a person, all for a client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from nbafl.protocol import Training
from nbafl.protocol.losses import LOGISTIC

CRAFTED = 1e8
"""How many times longer than its clip a crafted gradient, update or record is: no broadcast, noise included, comes near."""
MOST_ROWS = 3
"""Rows of the persons with most of them."""
Data = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Scene:
    """A client of so many records or persons, and which of them are the canary."""

    records: int
    canary: tuple[int, ...] = (0,)
    beacon: bool = False
    """Whether the other records pull along a second axis, by which an attacker sees that the client took part."""
    width: int = 1
    """Coordinates at least; in all but the first two there is only noise."""
    dtype: torch.dtype = torch.float32

    persons: bool = False
    """Whether what is protected is a person, who has one to three rows."""

    @property
    def dimension(self) -> int:
        return max(self.width, 2 if self.beacon else 1)

    @property
    def rows_each(self) -> np.ndarray | None:
        """How many rows each person has; None where every row stands for itself."""
        return 1 + (np.arange(self.records) + 1) % MOST_ROWS if self.persons else None

    @property
    def lines(self) -> int:
        """How many rows there are."""
        return self.records if self.rows_each is None else int(self.rows_each.sum())

    @property
    def rows(self) -> tuple[int, ...]:
        """The canary's rows: one for a record, all of a person's."""
        if self.rows_each is None:
            return self.canary
        ends = np.cumsum(self.rows_each)
        return tuple(
            row for one in self.canary for row in range(int(ends[one] - self.rows_each[one]), int(ends[one]))
        )

    def upload(self, upload: Callable[..., Tensor], problem: Problem, data: Data, start: Tensor) -> Tensor:
        """What a client with such rows uploads before its noise."""
        if self.rows_each is None:
            return upload(problem.model, *data, start, problem.training)
        return upload(problem.model, *data, start, problem.training, persons=self.rows_each)


class Problem(Protocol):
    """A model, how it is trained, and records for it."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def training(self) -> Training: ...

    @property
    def start(self) -> Tensor:
        """The first broadcast, (d,)."""
        ...

    def records(self, count: int, rows: Sequence[int], side: int) -> Data | None:
        """Quiet records, the canary on side −1 or +1; None: the client is absent."""
        ...

    def wild(self, count: int, rows: Sequence[int], random: torch.Generator) -> tuple[Data, Data | None]:
        """Records far beyond every clip, and a neighbour of them."""
        ...

    def allowed(self, delta: float, canaries: int, wild: bool) -> float:
        """How far apart the uploads of two such neighbours may be, where `delta` is Delta_U of the client."""
        ...


class Location(nn.Module):
    """Mean estimation: the output is the weights themselves, so the squared loss is least at the mean of the targets."""

    def __init__(self, dimension: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(dimension, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return self.weights.expand(len(x), -1)


@dataclass(frozen=True)
class MeanEstimation:
    """`paper`: every record's own solution has norm C."""

    model: Location
    training: Training
    beacon: bool

    @classmethod
    def of(cls, training: Training, scene: Scene) -> MeanEstimation:
        # One step of size d/2 on the mean over records and coordinates of (w − y)² lands on the mean of the records.
        size = scene.dimension / 2
        exactly = replace(training, steps=1, lr=size, mu=0.0, batch=None, loss="squared", class_weights=None)
        return cls(Location(scene.dimension, scene.dtype), exactly, scene.beacon)

    @property
    def start(self) -> Tensor:
        return torch.zeros_like(self.model.weights.detach())

    def records(self, count: int, rows: Sequence[int], side: int) -> Data:
        values = self.start.repeat(count, 1)
        if self.beacon:
            values[:, 1] = self.training.clip
        values[list(rows)] = 0.0
        values[list(rows), 0] = side * self.training.clip
        return values[:, :1] * 0, values

    def wild(self, count: int, rows: Sequence[int], random: torch.Generator) -> tuple[Data, Data]:  # noqa: ARG002
        """All records differ: clipping the weights bounds only the whole client (the rest is the paper's premise)."""
        shape = (count, len(self.start))
        values = [_long(shape, CRAFTED * self.training.clip, self.start.dtype, random) for _ in range(2)]
        # All on one side, else a mean of many would be short.
        first, second = values[0].abs(), -values[1].abs()
        return (first[:, :1] * 0, first), (second[:, :1] * 0, second)

    def allowed(self, delta: float, canaries: int, wild: bool) -> float:
        return 2 * self.training.clip if wild else canaries * delta


@dataclass(frozen=True)
class CraftedGradient:
    """`gradient`: a linear model; the gradient of record (x, y) is long because y is far off."""

    model: nn.Linear
    training: Training
    beacon: bool

    @classmethod
    def of(cls, training: Training, scene: Scene) -> CraftedGradient:
        model = nn.Linear(scene.dimension, 1, bias=False, dtype=scene.dtype)
        # All records weigh as much as the heaviest class: G times its weight is then what each can add.
        longest = training.record_clip * training.largest_weight
        plain = replace(training, loss="squared", class_weights=None, record_clip=longest)
        return cls(model, plain, scene.beacon)

    @property
    def start(self) -> Tensor:
        return torch.zeros_like(self.model.weight.detach()[0])

    def records(self, count: int, rows: Sequence[int], side: int) -> Data:
        x, far = self.start.repeat(count, 1), CRAFTED * self.training.record_clip
        y = torch.zeros(count, dtype=x.dtype)
        if self.beacon:
            x[:, 1], y[:] = 1.0, far
        x[list(rows)] = 0.0
        x[list(rows), 0], y[list(rows)] = 1.0, side * far
        return x, y

    def wild(self, count: int, rows: Sequence[int], random: torch.Generator) -> tuple[Data, Data]:
        x = _long((count, len(self.start)), 1.0, self.start.dtype, random)
        y = _long((count, 1), CRAFTED * self.training.record_clip, x.dtype, random)[:, 0]
        turned = y.clone()
        turned[list(rows)] *= -1
        return (x, y), (x, turned)

    def allowed(self, delta: float, canaries: int, wild: bool) -> float:  # noqa: ARG002
        return canaries * delta


@dataclass(frozen=True)
class WholeClient:
    """`client`: all records pull the same way, further than the update may go."""

    model: nn.Linear
    training: Training
    adjacency: str

    @classmethod
    def of(cls, training: Training, scene: Scene, adjacency: str) -> WholeClient:
        model = nn.Linear(scene.dimension, 1, bias=False, dtype=scene.dtype)
        plain = replace(training, steps=1, mu=0.0, batch=None, loss="squared", class_weights=None)
        return cls(model, plain, adjacency)

    @property
    def start(self) -> Tensor:
        return torch.zeros_like(self.model.weight.detach()[0])

    @property
    def far(self) -> float:
        return CRAFTED * self.training.clip / self.training.lr

    def records(self, count: int, rows: Sequence[int], side: int) -> Data | None:  # noqa: ARG002
        if side < 0 and self.adjacency == "drop":
            return None
        x = self.start.repeat(count, 1)
        x[:, 0] = 1.0
        return x, torch.full((count,), side * self.far, dtype=x.dtype)

    def wild(self, count: int, rows: Sequence[int], random: torch.Generator) -> tuple[Data, Data | None]:  # noqa: ARG002
        x = _long((count, len(self.start)), 1.0, self.start.dtype, random).abs()
        y = torch.full((count,), len(self.start) * self.far, dtype=x.dtype)
        return (x, y), None if self.adjacency == "drop" else (x, -y)

    def allowed(self, delta: float, canaries: int, wild: bool) -> float:  # noqa: ARG002
        return delta


@dataclass(frozen=True)
class UnexpectedClass:
    """`proximal`: two classes, softmax or logistic regression; the broadcast is sure of class 1, the canary of class 0."""

    model: nn.Linear
    training: Training
    place: float
    """How far from 0 the canary may lie: |(x, 1)| = R."""

    @classmethod
    def of(cls, training: Training, scene: Scene) -> UnexpectedClass:
        assert training.feature_norm is not None
        # Few features: each problem is really solved.
        outputs = 1 if training.loss == LOGISTIC else 2
        model = nn.Linear(max(1, scene.width // 4), outputs, dtype=scene.dtype)
        heaviest = None if training.class_weights is None else (training.largest_weight,) * 2
        weighing = replace(training, class_weights=heaviest)
        return cls(model, weighing, (training.feature_norm**2 - 1) ** 0.5)

    @property
    def start(self) -> Tensor:
        # As sure as the clipping norm leaves room for: half of it is spent on the biases −b and +b.
        outputs = self.model.out_features
        bias = 0.5 * self.training.clip / outputs**0.5
        start = torch.zeros(outputs * (self.model.in_features + 1), dtype=self.model.weight.dtype)
        start[-outputs:] = torch.tensor([-bias, bias])[-outputs:]
        return start

    def records(self, count: int, rows: Sequence[int], side: int) -> Data:
        x = torch.zeros(count, self.model.in_features, dtype=self.model.weight.dtype)
        y = torch.ones(count, dtype=torch.int64)
        x[list(rows), 0], y[list(rows)] = side * self.place, 0
        return x, y

    def wild(self, count: int, rows: Sequence[int], random: torch.Generator) -> tuple[Data, Data]:
        x = _long((count, self.model.in_features), CRAFTED * self.place, self.model.weight.dtype, random)
        y = torch.randint(0, 2, (count,), generator=random)
        moved, other = x.clone(), y.clone()
        moved[list(rows)] *= -1
        other[list(rows)] = 1 - y[list(rows)]
        return (x, y), (moved, other)

    def allowed(self, delta: float, canaries: int, wild: bool) -> float:  # noqa: ARG002
        return canaries * delta


def _long(shape: tuple[int, int], length: float, dtype: torch.dtype, random: torch.Generator) -> Tensor:
    """Rows of this length in random directions."""
    rows = torch.randn(shape, generator=random, dtype=dtype)
    return length * rows / rows.norm(dim=1, keepdim=True)
