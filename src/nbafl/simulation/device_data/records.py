"""The federation's records as tensors on the device that trains, and a round's clients gathered from them.

Clients of unequal size are padded to the largest among those gathered together; a padded row counts for nothing,
because every row carries the share (1/|batch|, or 0) with which its loss enters the client's objective.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor


class Data(Protocol):
    """What the simulation needs to know of a Federation."""

    @property
    def x(self) -> np.ndarray: ...
    @property
    def y(self) -> np.ndarray: ...
    @property
    def test(self) -> tuple[np.ndarray, np.ndarray] | None: ...
    @property
    def local_test(self) -> Any: ...
    @property
    def task(self) -> str: ...
    @property
    def outputs(self) -> int: ...
    @property
    def clients(self) -> int: ...
    @property
    def sizes(self) -> np.ndarray: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    def records(self, clients: np.ndarray | None = None) -> np.ndarray | list[np.ndarray]: ...
    def local_records(self, clients: np.ndarray | None = None) -> np.ndarray | list[np.ndarray]: ...


@dataclass(frozen=True)
class Rows:
    """Indices of several clients' records, one row per client, and how many of each row are real."""

    index: Tensor
    sizes: Tensor

    @property
    def real(self) -> Tensor:
        """Mask (clients, rows) of the entries that are records, not padding."""
        return torch.arange(self.index.shape[1], device=self.index.device) < self.sizes[:, None]

    def shares(self, dtype: torch.dtype) -> Tensor:
        """1/|D_i| on the real rows, 0 on the padding: the full-batch mean as a weighted sum."""
        return self.real.to(dtype) / self.sizes.clamp(min=1)[:, None].to(dtype)


def distinct(sizes: np.ndarray) -> np.ndarray:
    """The sizes, or a single one where a million equal sizes are one number in memory."""
    return sizes[:1] if sizes.strides == (0,) else sizes


class Records:
    """x, y and the test set on one device and in one precision, shared by all runs over a federation."""

    def __init__(self, data: Data, device: torch.device, dtype: torch.dtype) -> None:
        self.data, self.device, self.dtype = data, device, dtype
        self.sizes = data.sizes
        """|D_i| of every client, on the host: a federation of unequal clients counts them anew whenever it is asked."""
        persons: tuple[np.ndarray, ...] | None = getattr(data, "persons", None)
        self.persons = persons
        """How many rows each person of each client has, where persons are protected."""
        self.units = self.sizes if persons is None else np.array([len(rows) for rows in persons])
        """What counts once in each client: its persons, or its records."""
        self.x = self._features(data.x)
        self.y = self._targets(data.y)
        self.test = None if data.test is None else (self._features(data.test[0]), self._targets(data.test[1]))

    def rows(self, clients: np.ndarray | None, local: bool = False) -> Rows:
        """The training (or local test) records of the given clients; None: of all."""
        index = self.data.local_records(clients) if local else self.data.records(clients)
        if isinstance(index, np.ndarray):
            padded, sizes = index, np.full(len(index), index.shape[1])
        else:
            sizes = np.array([len(part) for part in index])
            padded = np.zeros((len(index), int(sizes.max())), dtype=np.int64)
            for row, part in zip(padded, index, strict=True):
                row[: len(part)] = part
        return Rows(self._tensor(padded), self._tensor(sizes))

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.as_tensor(values, dtype=torch.int64).to(self.device, non_blocking=True)

    def _features(self, x: np.ndarray) -> Tensor:
        found = torch.as_tensor(x)
        tokens = not found.is_floating_point()  # whole numbers stay so: an Embedding reads them
        return found.to(self.device, torch.int64 if tokens else self.dtype)

    def _targets(self, y: np.ndarray) -> Tensor:
        target = torch.as_tensor(y)
        return target.to(
            self.device, torch.int64 if not target.is_floating_point() else _at_least_single(self.dtype)
        )


def _at_least_single(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
