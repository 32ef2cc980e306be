"""Whose data it is: N clients' records as one shared storage and, for each client, indices into it.

Nothing here trains. A Federation is built once (from embedded MNIST, arrays, CSV files or torch Datasets),
checked once, and then only read; every constructor refuses unusable data in one sentence that names the
client and the row.

Algorithm 1 ends a round with a local test on each client. Clients built with `local_test` set a part of their
own records aside for it; by default none do, because the paper trains on everything, and the step then
measures a client on the records it trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import numpy as np

from nbafl.data import mnist, tabular
from nbafl.data import partition as dealing
from nbafl.data.checks import Arrays, check_alike, check_pair, targets, task_of
from nbafl.data.partition import Dealt, Parts, Repeated
from nbafl.errors import DataError, UsageError


class Numbered(Sequence[str]):
    """The names `client 0`, `client 1`, … without holding a million strings."""

    def __init__(self, count: int) -> None:
        self._numbers = range(count)

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(f"client {number}" for number in self._numbers[index])
        return f"client {self._numbers[index]}"


@dataclass(frozen=True, eq=False, repr=False)
class Federation:
    """Shared storage plus indices, so that N may be a million."""

    x: np.ndarray
    """Records of all clients, (M, *shape) float32."""
    y: np.ndarray
    """Targets, (M,): int64 classes or float32 numbers."""
    train: Parts
    """Record indices of each client: 2-D when sizes are equal, a tuple of arrays when not, or `Repeated`."""
    local_test: Parts | None
    """Record indices of each client's local test part, or None."""
    test: Arrays | None
    """The common test set (x, y), or None."""
    task: str
    """`classification` or `regression`."""
    outputs: int
    """Number of classes; 1 for regression."""
    names: Sequence[str]
    """One name per client (the file's name where it came from a file)."""
    classes: tuple[str, ...] | None = None
    """Names of the classes where the data had names."""
    remarks: tuple[str, ...] = ()
    """What the owner of the data should know before training, as sentences."""

    def __repr__(self) -> str:
        sizes = self.sizes
        held = f"{sizes.min()}" if sizes.min() == sizes.max() else f"{sizes.min()} to {sizes.max()}"
        return (
            f"Federation({self.clients} clients of {held} records, shape {self.shape}, "
            f"{self.task}, {self.outputs} outputs)"
        )

    @property
    def clients(self) -> int:
        """N, the number of clients."""
        return len(self.train)

    @property
    def sizes(self) -> np.ndarray:
        """Number of training records of each client, (N,); takes no memory when all are equal."""
        if isinstance(self.train, tuple):
            return np.array([len(part) for part in self.train], dtype=np.int64)
        each = self.train.samples if isinstance(self.train, Repeated) else self.train.shape[1]
        return np.broadcast_to(np.int64(each), (self.clients,))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record's features."""
        return self.x.shape[1:]

    def records(self, clients: Sequence[int] | np.ndarray | None = None) -> np.ndarray | list[np.ndarray]:
        """Training records of the given clients (all by default): (len, m), or a list where sizes differ."""
        return _pick(self.train, clients, self.clients)

    def local_records(
        self, clients: Sequence[int] | np.ndarray | None = None
    ) -> np.ndarray | list[np.ndarray]:
        """Records the given clients test on locally: their local test part, or what they trained on."""
        return _pick(self.train if self.local_test is None else self.local_test, clients, self.clients)

    def client(self, number: int) -> Arrays:
        """The training data (x, y) of one client, as copies."""
        index = self.train[number]
        return self.x[index], self.y[index]

    @classmethod
    def mnist(
        cls,
        clients: int | None = None,
        samples: int | None = None,
        partition: str = "iid",
        seed: int = 0,
        sizes: Sequence[int] | np.ndarray | None = None,
        local_test: float | int = 0,
    ) -> Federation:
        """Embedded MNIST dealt to `clients` [50] with `samples` [100] records each, or with given `sizes`.

        `local_test` (a fraction, or a number of records) comes out of each client's own records. The test set
        is all 10,000 test digits.
        """
        if sizes is None:
            clients = 50 if clients is None else clients
            samples = 100 if samples is None else samples
        digits = mnist.train()
        wanted = dealing.client_sizes(clients, samples, sizes, available=len(digits.labels))
        order, train, local = _deal(digits.labels, wanted, partition, seed, local_test)
        return cls(
            x=digits.pixels(order),
            y=digits.classes(order),
            train=train,
            local_test=local,
            test=(mnist.test().pixels(), mnist.test().classes()),
            task="classification",
            outputs=mnist.CLASSES,
            names=Numbered(len(train)),
        )

    @classmethod
    def population(cls, clients: int = 1_000_000, samples: int = 10, seed: int = 0) -> Federation:
        """Up to millions of clients over embedded MNIST, each with `samples` digits drawn WITH repetition.

        Clients may share records. A client's records are computed when asked for: memory does not grow.
        """
        if clients < 1:
            raise UsageError("clients", clients, "at least 1")
        if samples < 1:
            raise UsageError("samples", samples, "at least 1")
        digits = mnist.train()
        return cls(
            x=digits.pixels(),
            y=digits.classes(),
            train=Repeated(clients, samples, len(digits.labels), dealing.check_seed(seed)),
            local_test=None,
            test=(mnist.test().pixels(), mnist.test().classes()),
            task="classification",
            outputs=mnist.CLASSES,
            names=Numbered(clients),
        )

    @classmethod
    def partitioned(
        cls,
        x: Any,
        y: Any,
        *,
        clients: int | None = None,
        samples: int | None = None,
        partition: str = "iid",
        seed: int = 0,
        sizes: Sequence[int] | np.ndarray | None = None,
        local_test: float | int = 0,
        test: tuple[Any, Any] | None = None,
        outputs: int | None = None,
    ) -> Federation:
        """One data set of your own, dealt to clients as `mnist` deals the digits."""
        pool = cls.from_arrays([(x, y)], test=test, outputs=outputs, names=["the data set"])
        if sizes is None and samples is None and clients is not None:
            samples = len(pool.y) // max(clients, 1)
        wanted = dealing.client_sizes(clients, samples, sizes, available=len(pool.y))
        order, train, local = _deal(pool.y, wanted, partition, seed, local_test)
        return replace(
            pool, x=pool.x[order], y=pool.y[order], train=train, local_test=local, names=Numbered(len(train))
        )

    @classmethod
    def from_arrays(
        cls,
        clients: Sequence[tuple[Any, Any]],
        test: tuple[Any, Any] | None = None,
        local_test: Sequence[tuple[Any, Any]] | float | int = 0,
        *,
        seed: int = 0,
        task: str | None = None,
        outputs: int | None = None,
        names: Sequence[str] | None = None,
    ) -> Federation:
        """Clients given as (x, y) pairs of arrays or tensors, one pair a client.

        Whole-number targets are classes 0 … outputs−1 and decimal ones a regression, unless `task` says
        otherwise. `local_test` is a list of (x, y) pairs, one a client, or a fraction or number of each
        client's own records.
        """
        if not len(clients):
            raise DataError("The federation has no clients; give at least one (x, y) pair.")
        labelled = Numbered(len(clients)) if names is None else tuple(names)
        if len(labelled) != len(clients):
            raise UsageError("names", len(labelled), f"{len(clients)} names, one per client")
        parts = [check_pair(name, pair) for name, pair in zip(labelled, clients, strict=True)]
        if isinstance(local_test, Sequence):
            if len(local_test) != len(clients):
                raise UsageError("local_test", len(local_test), f"{len(clients)} pairs, one per client")
            parts += [
                check_pair(f"the local test of {n}", p) for n, p in zip(labelled, local_test, strict=True)
            ]
        if test is not None:
            parts.append(check_pair("the test set", test))
        check_alike(parts)
        task = task_of(parts, task)
        y, outputs = targets(parts, task, outputs)
        x = [part.x for part in parts]
        common = None if test is None else (x.pop(), y.pop())
        own = dealing.consecutive([len(part) for part in x])
        train = dealing.stack(own[: len(clients)])
        local: Dealt | None
        if isinstance(local_test, Sequence):
            local = dealing.stack(own[len(clients) :])
        else:
            train, local = dealing.set_aside(train, local_test, seed)
        return cls(np.concatenate(x), np.concatenate(y), train, local, common, task, outputs, labelled)

    @classmethod
    def from_csv(
        cls,
        folder: str | Path,
        target: str,
        test: str | Path | None = None,
        local_test: float | int = 0,
        *,
        seed: int = 0,
        task: str | None = None,
        scale: tabular.Ranges | None = None,
    ) -> Federation:
        """A folder of CSV files, one per client, named after its file; `test` is one more file (it may lie there).

        Columns of text become one feature per category; `scale` maps columns of numbers from public ranges
        {column: (low, high)} to [0, 1]. What is shared between clients is told in tabular.py.
        """
        tables, test_table, schema = tabular.read_folder(folder, target, test, task, scale)
        federation = cls.from_arrays(
            [schema.encode(table) for table in tables],
            test=None if test_table is None else schema.encode(test_table),
            local_test=local_test,
            seed=seed,
            task=schema.task,
            outputs=1 if schema.classes is None else len(schema.classes),
            names=[table.path.stem for table in tables],
        )
        remarks = tabular.remarks(tables, schema, Path(folder))
        return replace(federation, classes=schema.classes, remarks=remarks)

    @classmethod
    def from_datasets(
        cls,
        datasets: Sequence[Any],
        test: Any | None = None,
        local_test: Sequence[Any] | float | int = 0,
        *,
        seed: int = 0,
        task: str | None = None,
        outputs: int | None = None,
        names: Sequence[str] | None = None,
    ) -> Federation:
        """Clients given as torch Datasets, or anything with a length that gives (x, y) by index."""
        local: Any = local_test
        if isinstance(local_test, Sequence):
            local = [_gather(data, f"the local test of client {i}") for i, data in enumerate(local_test)]
        return cls.from_arrays(
            [_gather(data, f"client {i}") for i, data in enumerate(datasets)],
            test=None if test is None else _gather(test, "the test set"),
            local_test=local,
            seed=seed,
            task=task,
            outputs=outputs,
            names=names,
        )

    def holdout(self, fraction: float, seed: int = 0) -> Federation:
        """The same federation, its test set replaced by a `fraction` of every client's TRAINING records.

        Hyper-parameters chosen on it never see the test set. The clients train on what is left.
        """
        if not 0 < fraction < 1:
            raise UsageError("holdout fraction", fraction, "between 0 and 1, both excluded")
        if isinstance(self.train, Repeated):
            return self._holdout_of_pool(self.train, fraction, seed)
        counts = np.minimum(np.rint(fraction * self.sizes).astype(np.int64), self.sizes - 1)
        if not counts.any():
            raise UsageError("holdout fraction", fraction, "large enough to take one record from some client")
        kept, taken = dealing.hold_out(self.train, counts, seed)
        chosen = np.concatenate(list(taken))
        return replace(self, train=kept, test=(self.x[chosen], self.y[chosen]))

    def with_features(
        self, name: str = "scattering", feature_norm: float | None = None, **options: int
    ) -> Federation:
        """The same federation with fixed features in place of the records: `raw` or `scattering`.

        `feature_norm` R bounds ‖(x, 1)‖ of every record, the 1 being the bias's input; records of `scattering`
        have norm 4 before that. See features.py for the options.
        """
        from nbafl.data import features  # needs torch, which nothing else here does

        def compute(x: np.ndarray) -> np.ndarray:
            return features.compute(name, x, feature_norm, **options)

        test = None if self.test is None else (compute(self.test[0]), self.test[1])
        return replace(self, x=compute(self.x), test=test)

    def _holdout_of_pool(self, train: Repeated, fraction: float, seed: int) -> Federation:
        """Clients of a population share records, so the part is taken out of the storage they draw from."""
        order = np.random.default_rng([dealing.check_seed(seed), 1]).permutation(train.pool)
        count = int(np.clip(round(fraction * train.pool), 1, train.pool - 1))
        chosen, rest = order[:count], np.sort(order[count:])
        return replace(
            self,
            x=self.x[rest],
            y=self.y[rest],
            train=replace(train, pool=len(rest)),
            test=(self.x[chosen], self.y[chosen]),
        )


def _pick(
    parts: Parts, clients: Sequence[int] | np.ndarray | None, count: int
) -> np.ndarray | list[np.ndarray]:
    if clients is None:
        clients = np.arange(count)
    if isinstance(parts, tuple):
        return [parts[client] for client in clients]
    return parts[np.asarray(clients, dtype=np.int64)]


def _deal(
    labels: np.ndarray, wanted: np.ndarray, spec: str, seed: int, local_test: float | int
) -> tuple[np.ndarray, Dealt, Dealt | None]:
    """The records in use, and train and local test records of every client, dealt from one labelled data set."""
    dealt = dealing.split(dealing.parse(spec), labels, wanted, seed)
    return dealing.compact(*dealing.set_aside(dealt, local_test, seed))


def _gather(data: Any, name: str) -> tuple[Any, Any]:
    """All of a map-style Dataset as two arrays; a TensorDataset already holds them."""
    tensors = getattr(data, "tensors", None)
    if isinstance(tensors, tuple) and len(tensors) == 2:
        return tensors[0], tensors[1]
    try:
        items = [data[row] for row in range(len(data))]
        if not items:
            raise DataError(f"There are no records in {name}; every client needs at least one.")
        return np.stack([np.asarray(x) for x, _ in items]), np.array([np.asarray(y) for _, y in items])
    except (TypeError, ValueError, KeyError) as error:
        raise DataError(
            f"The data set of {name} must have a length and give (x, y) by index ({error})."
        ) from None
