"""Gram matrices G_i = X_i X_i', made when a client first takes part and kept while memory allows.

A kept matrix is computed from its client's rows alone, never padded to the team in which the client was first met: the
last bits of a matrix product depend on its shape, and a resumed or batched run meets clients in other teams.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from nbafl.simulation.device_data.features import Features
from nbafl.simulation.device_data.records import Records, distinct

LIMIT_BYTES = 2**30
WORTH_KEEPING = 16
"""Records a client: below, a Gram matrix is made in the time it takes to find it."""


def kept(records: Records) -> bool:
    """Whether the Gram matrices of all clients are worth keeping, and fit."""
    sizes = distinct(records.sizes).astype(np.float64)
    square = float(np.square(sizes).mean())
    bytes_each = torch.finfo(records.dtype).bits // 8 * square
    return square >= WORTH_KEEPING**2 and records.data.clients * bytes_each <= LIMIT_BYTES


class Grams:
    """The Gram matrices of single clients, for rounds whose teams differ."""

    def __init__(self, records: Records, features: Features) -> None:
        self._records, self._features = records, features
        self._sizes = np.ascontiguousarray(records.sizes)
        self._known = np.zeros(len(self._sizes), dtype=bool)
        self._reach = torch.empty(len(self._sizes), dtype=records.dtype, device=records.device)
        self._place = np.empty(len(self._sizes), dtype=np.int64)
        """Where a client's matrix lies among those of its size."""
        self._held: dict[int, Tensor] = {}
        for size, same in _by_size(self._sizes):
            self._place[same] = np.arange(len(same))
            self._held[size] = self._reach.new_empty(len(same), size, size)

    def of(self, clients: np.ndarray) -> tuple[Tensor, Tensor]:
        """G of the given clients, (B, m, m), padded to the largest, and the reach of each, (B,)."""
        missing = clients[~self._known[clients]]
        if len(missing):
            self._make(missing)
        groups = _by_size(self._sizes[clients])
        largest = groups[-1][0]
        if len(groups) == 1:
            return self._picked(largest, clients), self._reach[clients]
        padded = self._reach.new_zeros(len(clients), largest, largest)
        for size, same in groups:
            padded[same, :size, :size] = self._picked(size, clients[same])
        return padded, self._reach[clients]

    def _picked(self, size: int, clients: np.ndarray) -> Tensor:
        place = torch.as_tensor(self._place[clients], device=self._reach.device)
        return self._held[size].index_select(0, place)

    def _make(self, clients: np.ndarray) -> None:
        """Runs in several threads at once: two that make the same client's matrix write the same bits."""
        for size, same in _by_size(self._sizes[clients]):
            group = clients[same]
            gram = self._features.gather(self._records.rows(group).index).gram()
            self._held[size][self._place[group]] = gram
            self._reach[group] = reach(gram)
        self._known[clients] = True


def _by_size(sizes: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Every size, growing, and the positions that have it."""
    order = np.argsort(sizes, kind="stable")
    values, first = np.unique(sizes[order], return_index=True)
    return list(zip(values.tolist(), np.split(order, first[1:]), strict=True))


def reach(gram: Tensor) -> Tensor:
    """A bound on the operator norm of each X_i, (B,): its square is at most G's largest row sum and |G|_F."""
    rows = gram.abs().sum(2).amax(1)
    return torch.minimum(rows, torch.linalg.matrix_norm(gram)).sqrt()
