"""Gram matrices G_i = X_i X_i', made when a client first takes part and kept while memory allows."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from nbafl.simulation.features import Block
from nbafl.simulation.records import Records, distinct

LIMIT_BYTES = 2**30
OVERHEAD_BYTES = 4096


class Grams:
    """The Gram matrices of single clients, for rounds whose teams differ."""

    def __init__(self, records: Records) -> None:
        sizes, itemsize = records.data.sizes, torch.finfo(records.dtype).bits // 8
        square = float(np.square(distinct(sizes), dtype=np.float64).mean())
        total = len(sizes) * (itemsize * square + OVERHEAD_BYTES)
        self._keep, self._sizes = total <= LIMIT_BYTES, sizes
        self._held: dict[int, tuple[Tensor, Tensor]] = {}

    def of(self, clients: np.ndarray, features: Block) -> tuple[Tensor, Tensor]:
        """G of the given clients, (B, m, m), and the reach of each, (B,)."""
        held = [self._held.get(client) for client in clients.tolist()] if self._keep else [None]
        if all(part is not None for part in held):
            return _assemble([part for part in held if part is not None])
        gram = features.gram()
        reaches = reach(gram)
        if self._keep:
            for client, own, far in zip(clients.tolist(), gram, reaches, strict=True):
                size = int(self._sizes[client])
                self._held[client] = own[:size, :size].clone(), far
        return gram, reaches


def _assemble(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    reaches = torch.stack([far for _, far in parts])
    sizes = [len(gram) for gram, _ in parts]
    if min(sizes) == max(sizes):
        return torch.stack([gram for gram, _ in parts]), reaches
    padded = parts[0][0].new_zeros(len(parts), max(sizes), max(sizes))
    for into, (gram, _) in zip(padded, parts, strict=True):
        into[: len(gram), : len(gram)] = gram
    return padded, reaches


def reach(gram: Tensor) -> Tensor:
    """A bound on the operator norm of each X_i, (B,): its square is at most G's largest row sum and |G|_F."""
    rows = gram.abs().sum(2).amax(1)
    return torch.minimum(rows, torch.linalg.matrix_norm(gram)).sqrt()
