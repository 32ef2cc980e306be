"""Gram matrices G_i = X_i X_i', made when a client first takes part and kept while memory allows."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from nbafl.simulation.features import Block
from nbafl.simulation.records import Records

LIMIT_BYTES = 2**30
OVERHEAD_BYTES = 4096


class Grams:
    """The Gram matrices of single clients, for rounds whose teams differ."""

    def __init__(self, records: Records) -> None:
        sizes, itemsize = records.data.sizes, torch.finfo(records.dtype).bits // 8
        total = itemsize * float(np.square(sizes, dtype=np.float64).sum()) + len(sizes) * OVERHEAD_BYTES
        self._keep, self._sizes = total <= LIMIT_BYTES, sizes
        self._held: dict[int, Tensor] = {}

    def of(self, clients: np.ndarray, features: Block) -> Tensor:
        """G of the given clients, (B, m, m)."""
        if self._keep and all(int(client) in self._held for client in clients):
            return self._assemble(clients)
        gram = features.gram()
        if self._keep:
            for client, own in zip(clients, gram, strict=True):
                size = int(self._sizes[client])
                self._held[int(client)] = own[:size, :size].clone()
        return gram

    def _assemble(self, clients: np.ndarray) -> Tensor:
        parts = [self._held[int(client)] for client in clients]
        largest = max(len(part) for part in parts)
        if all(len(part) == largest for part in parts):
            return torch.stack(parts)
        gram = parts[0].new_zeros(len(parts), largest, largest)
        for into, part in zip(gram, parts, strict=True):
            into[: len(part), : len(part)] = part
        return gram


def reach(gram: Tensor) -> Tensor:
    """A bound on the operator norm of each X_i, (B,): its square is at most G's largest row sum and |G|_F."""
    rows = gram.abs().sum(2).amax(1)
    return torch.minimum(rows, torch.linalg.matrix_norm(gram)).sqrt()
