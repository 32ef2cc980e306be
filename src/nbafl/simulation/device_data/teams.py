"""A round's clients cut into teams of similar size, padded to the largest of each team."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from nbafl.simulation.cores import lane_count, lanes
from nbafl.simulation.device_data.features import Block, Features
from nbafl.simulation.device_data.records import Records, Rows
from nbafl.simulation.engines.gram import Grams, kept, reach

WASTE = 1.25
"""A team may be padded to this many times the rows its clients have."""


class Members(Protocol):
    """B clients, padded to m rows each: all that an engine asks of a team."""

    @property
    def place(self) -> Tensor:
        """Their positions among the round's participants, (B,)."""
        ...

    @property
    def records(self) -> int:
        """How many records they have."""
        ...

    @property
    def target(self) -> Tensor:
        """Targets, (B, 1, m)."""
        ...

    @property
    def share(self) -> Tensor:
        """1/|D_i| on real rows, 0 on padding, (B, 1, m)."""
        ...

    @property
    def features(self) -> Block: ...
    @property
    def gram(self) -> Tensor:
        """G_i = X_i X_i', (B, m, m)."""
        ...

    @property
    def reach(self) -> Tensor:
        """A bound on the operator norm of each X_i, (B,)."""
        ...


class Team:
    """Some of a round's participants and their records.

    Everything is made when first asked for, so that the thread that trains the team also gathers its data.
    """

    def __init__(
        self,
        clients: np.ndarray,
        place: np.ndarray,
        records: Records,
        features: Features,
        grams: Grams | None,
    ) -> None:
        self.clients = clients
        self.place = torch.as_tensor(place, device=records.device)
        self.records = int(records.sizes[clients].sum())
        self._records, self._features, self._grams = records, features, grams

    @cached_property
    def rows(self) -> Rows:
        return self._records.rows(self.clients)

    @cached_property
    def real(self) -> Tensor:
        """Which rows are records, not padding, (B, m)."""
        return self.rows.real

    @cached_property
    def target(self) -> Tensor:
        return self._records.y[self.rows.index][:, None]

    @cached_property
    def share(self) -> Tensor:
        return self.rows.shares(self._records.dtype)[:, None]

    @cached_property
    def features(self) -> Block:
        return self._features.block(self.clients, self.rows)

    @cached_property
    def _gram(self) -> tuple[Tensor, Tensor]:
        if self._grams is not None:
            return self._grams.of(self.clients)
        gram = self.features.gram()
        return gram, reach(gram)

    @property
    def gram(self) -> Tensor:
        return self._gram[0]

    @property
    def reach(self) -> Tensor:
        return self._gram[1]


class Roster:
    """Cuts rounds into teams; the teams of a round in which everyone takes part are made once."""

    def __init__(self, records: Records, features: Features, limit: int) -> None:
        self.records, self.features, self.limit = records, features, limit
        self._everyone: list[Team] | None = None

    @cached_property
    def _grams(self) -> Grams | None:
        return Grams(self.records, self.features) if kept(self.records) else None

    def teams(self, clients: np.ndarray | None) -> list[Team]:
        """The teams of the given participants; None: of everyone."""
        count = self.records.data.clients
        if clients is not None and len(clients) < count:
            return self._cut(clients, self._grams)
        if self._everyone is None:
            self._everyone = self._cut(np.arange(count), None)
        return self._everyone

    def _cut(self, clients: np.ndarray, grams: Grams | None) -> list[Team]:
        places = cut(self.records.sizes[clients], self.limit)
        return [Team(clients[place], place, self.records, self.features, grams) for place in places]


def cut(sizes: np.ndarray, limit: int) -> list[np.ndarray]:
    """Positions of clients in teams of about `limit` padded rows (or one client), evenly over the lanes."""
    if sizes.min() == sizes.max():
        records = len(sizes) * int(sizes[0])
        number, dealt = -(-records // limit), lane_count(records)
        even = min(len(sizes), -(-number // dealt) * dealt) if number > 1 else 1
        return np.array_split(np.arange(len(sizes)), even)
    teams: list[np.ndarray] = []
    current: list[int] = []
    held = 0
    for place in np.argsort(sizes, kind="stable"):
        size = int(sizes[place])  # sizes grow, so this is the padded length of the team it joins
        padded = (len(current) + 1) * size
        if current and (padded > limit or padded > WASTE * (held + size) + 16):
            teams.append(np.array(current))
            current, held = [], 0
        current.append(int(place))
        held += size
    return [*teams, np.array(current)]


def team_lanes(teams: Sequence[Members]) -> list[range]:
    """The lanes of a round's teams: the same for its training and its scores."""
    return lanes(len(teams), lane_count(sum(team.records for team in teams)))
