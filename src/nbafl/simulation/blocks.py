"""A round's clients cut into teams of similar size, padded to the largest of each team."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

from nbafl.simulation.crew import LANES
from nbafl.simulation.features import Block, Features
from nbafl.simulation.gram import Grams, reach
from nbafl.simulation.records import Records, Rows

WASTE = 1.25
"""A team may be padded to this many times the rows its clients have."""


@dataclass(eq=False)
class Team:
    """Some of a round's participants and their records."""

    place: np.ndarray
    """Their positions among the round's participants."""
    clients: np.ndarray
    rows: Rows
    target: Tensor
    """Targets, (B, 1, m)."""
    share: Tensor
    """1/|D_i| on real rows, 0 on padding, (B, 1, m)."""
    features: Block
    grams: Grams | None
    """Where single clients' Gram matrices are kept; None for a team that stays together and keeps its own."""

    @cached_property
    def gram(self) -> Tensor:
        """G_i = X_i X_i', (B, m, m)."""
        return self.features.gram() if self.grams is None else self.grams.of(self.clients, self.features)

    @cached_property
    def reach(self) -> Tensor:
        """A bound on the operator norm of each X_i, (B,)."""
        return reach(self.gram)


class Roster:
    """Cuts rounds into teams; the teams of a round in which everyone takes part are made once."""

    def __init__(self, records: Records, features: Features, limit: int) -> None:
        self.records, self.features, self.limit = records, features, limit
        self._everyone: list[Team] | None = None
        self._grams = Grams(records)

    def teams(self, clients: np.ndarray | None) -> list[Team]:
        """The teams of the given participants; None: of everyone."""
        count = self.records.data.clients
        if clients is not None and len(clients) < count:
            return self._cut(clients, self._grams)
        if self._everyone is None:
            self._everyone = self._cut(np.arange(count), None)
        return self._everyone

    def _cut(self, clients: np.ndarray, grams: Grams | None) -> list[Team]:
        sizes = self.records.data.sizes[clients]
        return [self._team(clients, place, grams) for place in cut(sizes, self.limit)]

    def _team(self, clients: np.ndarray, place: np.ndarray, grams: Grams | None) -> Team:
        members = clients[place]
        rows = self.records.rows(members)
        target, share = self.records.y[rows.index][:, None], rows.shares(self.records.dtype)[:, None]
        return Team(place, members, rows, target, share, self.features.block(members, rows), grams)


def cut(sizes: np.ndarray, limit: int) -> list[np.ndarray]:
    """Positions of clients in teams of about `limit` padded rows (or one client), evenly over the lanes."""
    if sizes.min() == sizes.max():
        number = -(-len(sizes) * int(sizes[0]) // limit)
        even = min(len(sizes), -(-number // LANES) * LANES) if number > 1 else 1
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
