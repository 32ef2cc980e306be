"""Clients one after another on each core, each with weights of its own that stay in the core's cache.

This is the path for clients with many records, where the dual form's Gram matrices would cost more than the weights.
A client's records come in pieces that fit the cache beside its weights; the backward pass is written out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from nbafl.protocol import Training, client_batches, clip_factor
from nbafl.simulation.cores import Cores, lane_count, lanes
from nbafl.simulation.device_data.features import Block, Features
from nbafl.simulation.device_data.records import Records, Rows
from nbafl.simulation.engines.backward import Scratch, Tail
from nbafl.simulation.engines.base import Aggregate, Part, Start, clips_weights, combine
from nbafl.simulation.engines.network import Network

PIECE = 640


@dataclass(frozen=True)
class Piece:
    """Some records of one client: features, targets and shares (1, 1, rows)."""

    features: Block
    target: Tensor
    share: Tensor


class PlainEngine:
    """Trains networks whose clients have many records."""

    name, lanes = "plain", True

    def __init__(
        self,
        network: Network,
        records: Records,
        features: Features,
        cores: Cores,
        training: Training,
        seed: int,
    ) -> None:
        self.network, self.records, self.features = network, records, features
        self.cores, self.training, self.seed = cores, training, seed
        self._weights_clipped = clips_weights(training)

    @torch.no_grad()
    def round(self, broadcast: Tensor, clients: np.ndarray, weights: np.ndarray, round: int) -> Aggregate:
        start = Start.of(broadcast, self.network, self.features)

        def work(numbers: range) -> Part:
            scratch = Scratch(start.table)
            parts = (self._client(int(clients[n]), float(weights[n]), start, round, scratch) for n in numbers)
            return reduce(Part.absorb, parts)

        dealt = lanes(len(clients), lane_count(int(self.records.sizes[clients].sum())))
        total = self.cores.sum(work, dealt, Part.absorb)
        return combine(total, start, self.network, self.features, self._weights_clipped, len(clients))

    def _client(self, client: int, weight: float, start: Start, round: int, scratch: Scratch) -> Part:
        training = self.training
        rows, size = self.records.rows(np.array([client])), int(self.records.sizes[client])
        order = client_batches(self.seed, round, client, size, training)
        whole = self._pieces(client, rows, size) if order is None else []
        table = scratch("table", *start.table.shape).copy_(start.table)
        later = start.later[None].clone()
        for step in range(training.steps):
            pieces = whole if order is None else [self._batch(rows, order[step])]
            slope, later_slope = self._gradient(pieces, table, later, scratch)
            if training.mu:  # w <- w - eta (gradient + mu (w - w_broadcast))
                table.lerp_(start.table, training.lr * training.mu)
                later.lerp_(start.later[None], training.lr * training.mu)
            table.add_(slope, alpha=-training.lr)
            later.add_(later_slope, alpha=-training.lr)
        return self._upload(table, later[0], weight, start)

    def _gradient(
        self, pieces: list[Piece], table: Tensor, later: Tensor, scratch: Scratch
    ) -> tuple[Tensor, Tensor]:
        """Gradient of F_i for the first layer's table and for the later layers."""
        slope, later_slope = None, torch.zeros_like(later)
        for piece in pieces:
            z = piece.features.times(table)
            tail = Tail(self.network, later, z.shape[1], scratch)
            dz = tail.gradient(z, piece.target, piece.share, self.training)
            later_slope.add_(tail.slope)
            product = piece.features.transposed_times(dz)
            slope = product if slope is None else slope.add_(product)
        assert slope is not None
        return slope, later_slope

    def _pieces(self, client: int, rows: Rows, size: int) -> list[Piece]:
        """All records of a client, cut evenly into pieces of at most PIECE."""
        bounds = np.linspace(0, size, -(-size // PIECE) + 1).astype(np.int64).tolist()
        return [self._piece(client, rows, start, stop, size) for start, stop in pairwise(bounds)]

    def _piece(self, client: int, rows: Rows, start: int, stop: int, size: int) -> Piece:
        index = rows.index[:, start:stop]
        part = Rows(index, torch.tensor([stop - start]))
        features = self.features.block(np.array([client]), part, skip=start)
        return Piece(features, self.records.y[index][:, None], self._share(index, size))

    def _share(self, index: Tensor, size: int) -> Tensor:
        """1/size for every row, (1, 1, rows)."""
        shape = (1, 1, index.shape[1])
        return torch.full(shape, 1 / size, dtype=self.records.dtype, device=index.device)

    def _batch(self, rows: Rows, chosen: Tensor) -> Piece:
        """One minibatch, -1 left out."""
        chosen = chosen[chosen >= 0].to(rows.index.device)
        index = rows.index[:, chosen]
        share = self._share(index, len(chosen))
        return Piece(self.features.gather(index), self.records.y[index][:, None], share)

    def _upload(self, table: Tensor, later: Tensor, weight: float, start: Start) -> Part:
        """The clipped update with its weight p_i; the table is overwritten."""
        bound = self.training.clip
        square = (
            start.outside + table.square().sum() + later.square().sum() if self._weights_clipped else None
        )
        table.sub_(start.table)
        later = later - start.later
        if square is None:
            square = table.square().sum() + later.square().sum()
        length = square.sqrt()
        factor = weight * clip_factor(length, bound)
        return Part(table * factor, later * factor, factor, (length > bound).long(), length.clamp(max=bound))
