"""What all runs over one federation with one kind of model share: records on the device, features, teams."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from nbafl.simulation.device_data.features import (
    SPARSE_BELOW,
    Block,
    DenseFeatures,
    Features,
    SparseFeatures,
    density,
)
from nbafl.simulation.device_data.records import Records, Rows, distinct
from nbafl.simulation.device_data.teams import Roster
from nbafl.simulation.engines.graphed import Recordings
from nbafl.simulation.engines.network import Layer, Network

TEAM_BYTES = {"cpu": 2**21, "cuda": 2**31}
"""Size of one team's pre-activations: on a CPU a handful of such arrays share a core's cache."""
TEAM_ROWS = {"cpu": 4096, "cuda": 2**22}
GATHERED_BYTES = 2**22
"""Size of one team's dense features: they are gathered, used twice and forgotten while they are in cache."""
TEST_PIECES = {"cpu": 16, "cuda": 1}
SPARSE_PRICE = 2.1
"""Time of one multiplication in a sparse product, relative to one in a dense product (measured)."""
KEPT_RECORDS = 2_000_000
"""Copies of the features (sparse, or without empty columns) are made for at most so many training records, and only where
clients do not share records: those of a population would be copied again and again."""


@dataclass(frozen=True)
class NetworkData:
    """What the fast engines need beside the records."""

    network: Network
    roster: Roster
    price: float
    """What a product with the features costs, relative to the dense product."""
    test: list[tuple[Block, Tensor]]
    """The test set in pieces: features and targets (1, rows); multiplied with full tables."""


@dataclass(frozen=True)
class SharedData:
    """Shared by the runs of a batch; `fast` is None for models that are no Network."""

    records: Records
    fast: NetworkData | None
    recordings: Recordings = field(default_factory=Recordings)

    @property
    def features(self) -> Features | None:
        return None if self.fast is None else self.fast.roster.features

    @classmethod
    def of(cls, records: Records, model: nn.Module) -> SharedData:
        exact = records.dtype in (
            torch.float32,
            torch.float64,
        )  # half precision goes through the model itself
        network = Network.of(model, records.data.shape) if exact and records.x.is_floating_point() else None
        if network is None:
            return cls(records, None)
        kind, matrix = records.device.type, records.x.flatten(1)
        held = distinct(records.sizes).mean() * records.data.clients
        kept = held <= min(KEPT_RECORDS, len(matrix))
        share = density(matrix)
        sparse = kept and kind == "cpu" and records.dtype == torch.float32 and share < SPARSE_BELOW
        features: Features
        if sparse:
            everyone = records.rows(None)
            starts = np.concatenate([[0], np.cumsum(records.sizes)])
            features = SparseFeatures(matrix, network.first, everyone.index[everyone.real], starts)
        else:
            features = DenseFeatures(matrix, network.first, compact=kept)
        row_bytes = network.first.outputs * torch.finfo(records.dtype).bits // 8
        limit = min(TEAM_ROWS[kind], TEAM_BYTES[kind] // row_bytes)
        if kind == "cpu" and not sparse:
            limit = min(limit, GATHERED_BYTES // (matrix.shape[1] * matrix.element_size()))
        roster = Roster(records, features, max(32, limit))
        price = share * SPARSE_PRICE if sparse else 1.0
        return cls(records, NetworkData(network, roster, price, _test(records, network.first, sparse)))


def _test(records: Records, layer: Layer, sparse: bool) -> list[tuple[Block, Tensor]]:
    if records.test is None:
        return []
    matrix, target = records.test[0].flatten(1), records.test[1]
    bounds = np.linspace(0, len(target), min(TEST_PIECES[records.device.type], len(target)) + 1).astype(
        np.int64
    )
    index = torch.arange(len(target), device=records.device)
    features: Features = (
        SparseFeatures(matrix, layer, index, bounds)
        if sparse
        else DenseFeatures(matrix, layer, compact=False)
    )
    pieces = []
    for number, (start, stop) in enumerate(pairwise(bounds.tolist())):
        rows = Rows(index[None, start:stop], torch.tensor([stop - start]))
        pieces.append((features.block(np.array([number]), rows), target[None, start:stop]))
    return pieces
