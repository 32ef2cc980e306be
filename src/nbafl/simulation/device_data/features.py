"""Products with the clients' records, the only operations the fast engines do on raw features.

A block of B clients, padded to m rows each, offers X W ("times"), X' A ("transposed_times") and the Gram matrices
X_i X_i'. The ones column that makes the bias part of the table is implied, never stored with dense features.

Three kinds of block. *Dense* blocks are views into the storage where a block's records lie one after another;
*gathered* blocks copy their rows into a buffer that stays in cache. *Sparse* blocks skip zeros: torch's embedding bag
is a product of a sparse matrix with a table, and on MNIST (81% zeros) it takes 0.4 of the dense product's time.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from nbafl.simulation.device_data.records import Rows
from nbafl.simulation.engines.network import Layer

NARROW = 32
"""Products with fewer columns than this are faster as the transposed product."""
SPARSE_BELOW = 0.35
"""Share of non-zero features below which sparse products are faster than dense ones (measured, 256 columns)."""

SINGLE = 1500
"""Entries of one client's pre-activations below which a sparse product for it alone takes longer than a dense one of the
whole team (measured: 10 records and 10 columns, 2.7 times; 60 records and 32 columns, half)."""


class Block(Protocol):
    """The features of B clients, m rows each."""

    def times(self, table: Tensor) -> Tensor:
        """X W for every client, (B, m, units), a fresh tensor; rows of padding are finite but mean nothing."""
        ...

    def transposed_times(self, coefficients: Tensor) -> Tensor:
        """sum_i X_i' A_i, (inputs, units), a fresh tensor; A is (B, m, units), zero on the padding."""
        ...

    def gram(self) -> Tensor:
        """X_i X_i' of every client, (B, m, m)."""
        ...


class Features(Protocol):
    """Where blocks come from; tables are in the form that the blocks multiply with."""

    def block(self, clients: np.ndarray, rows: Rows, skip: int = 0) -> Block:
        """The given rows of the given clients, which come after the first `skip` records of each."""
        ...

    def gather(self, index: Tensor) -> Block:
        """Any records, by their number in the storage, (B, m)."""
        ...

    def narrow(self, table: Tensor) -> Tensor:
        """The rows of the full table that blocks multiply with."""
        ...

    def widen(self, table: Tensor) -> Tensor:
        """A result in blocks' form back in full form, zero in rows that no record touches."""
        ...


class DenseFeatures:
    """Records as a matrix, without the columns that are zero for every record (they get no gradient)."""

    def __init__(self, matrix: Tensor, layer: Layer, compact: bool) -> None:
        self.layer, self.matrix = layer, matrix
        self._kept: Tensor | None = None
        used = self.matrix.ne(0).any(0) if compact else None
        if used is not None and int(used.sum()) < 0.95 * len(used):
            columns = used.nonzero()[:, 0]
            self.matrix = self.matrix[:, columns].contiguous()
            bias = columns.new_tensor([layer.inputs] if layer.bias else [])
            self._kept = torch.cat([columns, bias])

    def narrow(self, table: Tensor) -> Tensor:
        return table if self._kept is None else table[self._kept]

    def widen(self, table: Tensor) -> Tensor:
        if self._kept is None:
            return table
        full = table.new_zeros(self.layer.inputs + self.layer.bias, table.shape[1])
        return full.index_copy_(0, self._kept, table)

    def block(self, clients: np.ndarray, rows: Rows, skip: int = 0) -> DenseBlock:  # noqa: ARG002
        index = rows.index.reshape(-1)
        first = int(index[0]) if not index.is_cuda else None
        if first is not None and torch.equal(index, torch.arange(first, first + len(index))):
            return DenseBlock(self.matrix[first : first + len(index)], rows.index.shape, self.layer.bias)
        return self.gather(rows.index)

    def gather(self, index: Tensor) -> DenseBlock:
        return DenseBlock(self.matrix.index_select(0, index.reshape(-1)), index.shape, self.layer.bias)


class DenseBlock:
    """Rows of a matrix, in the order of the clients."""

    def __init__(self, matrix: Tensor, shape: torch.Size, bias: bool) -> None:
        self.matrix, self.shape, self.bias = matrix, shape, bias

    def times(self, table: Tensor) -> Tensor:
        weight = table[:-1] if self.bias else table
        if table.shape[1] < NARROW:
            result = (weight.t().contiguous() @ self.matrix.t()).t()
            result = result + table[-1] if self.bias else result.contiguous()
        elif self.bias:
            result = torch.addmm(table[-1], self.matrix, weight)
        else:
            result = self.matrix @ weight
        return result.view(*self.shape, -1)

    def transposed_times(self, coefficients: Tensor) -> Tensor:
        flat = coefficients.reshape(-1, coefficients.shape[2])
        narrow = flat.shape[1] < NARROW
        result = (flat.t().contiguous() @ self.matrix).t() if narrow else self.matrix.t() @ flat
        return torch.cat([result, flat.sum(0, keepdim=True)]) if self.bias else result

    def gram(self) -> Tensor:
        clients = self.matrix.view(*self.shape, -1)
        return torch.bmm(clients, clients.transpose(1, 2)).add_(float(self.bias))


class SparseFeatures:
    """Records as lists of their non-zero features, in client order, with 1 for the bias as one more feature.

    Client i owns positions starts[i] .. starts[i + 1] of `index`, which holds rows of the matrix.
    """

    def __init__(self, matrix: Tensor, layer: Layer, index: Tensor, starts: np.ndarray) -> None:
        self.layer, self._dense, self._starts = layer, matrix, starts
        self._column, self._value, self._offset = _compress(matrix, index, layer)
        self._pieces: dict[tuple[int, int], SparsePiece] = {}

    def narrow(self, table: Tensor) -> Tensor:
        return table

    def widen(self, table: Tensor) -> Tensor:
        return table

    def block(self, clients: np.ndarray, rows: Rows, skip: int = 0) -> Block:
        sizes = rows.sizes.numpy()
        starts = self._starts[clients] + skip
        stops = starts + sizes
        joined = (sizes == sizes[0]).all() and (starts[1:] == stops[:-1]).all()
        if not joined and not self.alone(float(sizes.mean())):
            return self.gather(rows.index)
        ends = [(starts[0], stops[-1])] if joined else zip(starts, stops, strict=True)
        pieces = [self.piece(int(start), int(stop)) for start, stop in ends]
        return SparseBlock(pieces, rows, self._dense, self.layer.bias)

    def alone(self, rows: float) -> bool:
        """Whether a client of so many rows is worth a sparse product of its own."""
        return rows * self.layer.outputs >= SINGLE

    @property
    def entries_per_record(self) -> float:
        """Mean number of non-zero features of a record, the bias among them."""
        return len(self._column) / self.records

    @property
    def records(self) -> int:
        return len(self._offset) - 1

    def gather(self, index: Tensor) -> DenseBlock:
        return DenseBlock(self._dense.index_select(0, index.reshape(-1)), index.shape, self.layer.bias)

    def piece(self, start: int, stop: int) -> SparsePiece:
        """Records start..stop in client order; kept, because the next round will ask again."""
        if (start, stop) not in self._pieces:
            offset = self._offset[start : stop + 1]
            entries = slice(int(offset[0]), int(offset[-1]))
            relative = (offset - offset[0]).to(torch.int32)
            inputs = self.layer.inputs + self.layer.bias
            self._pieces[start, stop] = SparsePiece(
                self._column[entries], relative, self._value[entries], inputs
            )
        return self._pieces[start, stop]


class SparsePiece:
    """A sparse matrix by rows and, once asked for, by columns."""

    def __init__(self, column: Tensor, offset: Tensor, value: Tensor, inputs: int) -> None:
        self.column, self.offset, self.value, self.inputs = column, offset, value, inputs
        self.rows = len(offset) - 1
        self._by_column: tuple[Tensor, Tensor, Tensor] | None = None

    def times(self, table: Tensor) -> Tensor:
        return _bags(self.column, self.offset, self.value, table)

    def transposed_times(self, coefficients: Tensor) -> Tensor:
        if self._by_column is None:
            self._by_column = _by_column(self.column, self.offset, self.value, self.inputs)
        return _bags(*self._by_column, coefficients)


class SparseBlock:
    """One piece for all clients of a block where they lie side by side, else one per client."""

    def __init__(self, pieces: list[SparsePiece], rows: Rows, dense: Tensor, bias: bool) -> None:
        self._pieces, self._rows, self._dense, self._bias = pieces, rows, dense, bias

    def times(self, table: Tensor) -> Tensor:
        clients, rows = self._rows.index.shape
        if len(self._pieces) == 1:
            return self._pieces[0].times(table).view(clients, rows, -1)
        parts = [piece.times(table) for piece in self._pieces]
        if all(piece.rows == rows for piece in self._pieces):
            return torch.stack(parts)
        result = table.new_zeros(clients, rows, table.shape[1])
        for into, part in zip(result, parts, strict=True):
            into[: len(part)] = part
        return result

    def transposed_times(self, coefficients: Tensor) -> Tensor:
        if len(self._pieces) == 1:
            return self._pieces[0].transposed_times(coefficients.flatten(0, 1))
        total = self._pieces[0].transposed_times(coefficients[0, : self._pieces[0].rows])
        for own, piece in zip(coefficients[1:], self._pieces[1:], strict=True):
            total += piece.transposed_times(own[: piece.rows])
        return total

    def gram(self) -> Tensor:
        return DenseBlock(
            self._dense[self._rows.index.reshape(-1)], self._rows.index.shape, self._bias
        ).gram()


def density(matrix: Tensor, sample: int = 1000) -> float:
    """Share of non-zero features, from evenly spaced records."""
    return float(matrix[:: max(1, len(matrix) // sample)].ne(0).double().mean())


def _bags(column: Tensor, offset: Tensor, value: Tensor, table: Tensor) -> Tensor:
    """A sparse matrix (rows by offsets) times a table: every row is a bag of weighted table rows, summed (mode 0)."""
    return torch.embedding_bag(table, column, offset, False, 0, False, value, True)[0]


def _by_column(column: Tensor, offset: Tensor, value: Tensor, inputs: int) -> tuple[Tensor, Tensor, Tensor]:
    """The transposed sparse matrix: rows, offsets and values by column. Dense on the way: far faster than sorting."""
    rows = len(offset) - 1
    row = torch.repeat_interleave(torch.arange(rows), offset.diff().long())
    dense = np.zeros((inputs, rows), dtype=np.float32)
    dense[column.numpy(), row.numpy()] = value.numpy()
    present = np.flatnonzero(dense)
    counts = np.bincount(present // rows, minlength=inputs)
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    index = (present % rows).astype(np.int32)
    return torch.from_numpy(index), torch.from_numpy(ends), torch.from_numpy(dense.reshape(-1)[present])


def _compress(dense: Tensor, index: Tensor, layer: Layer) -> tuple[Tensor, Tensor, Tensor]:
    """Columns, values and row offsets of the non-zero features of the records at `index`."""
    columns, values, counts = [], [], []
    for start in range(0, len(index), 4096):
        matrix = dense[index[start : start + 4096]].numpy()
        if layer.bias:
            matrix = np.concatenate([matrix, np.ones((len(matrix), 1), matrix.dtype)], axis=1)
        present = np.flatnonzero(matrix)
        columns.append((present % matrix.shape[1]).astype(np.int32))
        values.append(matrix.reshape(-1)[present])
        counts.append(np.count_nonzero(matrix, axis=1))
    offset = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
    return (
        torch.from_numpy(np.concatenate(columns)),
        torch.from_numpy(np.concatenate(values)),
        torch.from_numpy(offset),
    )
