"""Records in one shared storage, and for each client indices into it: what every Federation is, wherever it came from.

Nothing here trains, and nothing changes: holding records out or giving them other features makes another holding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self, overload

import numpy as np

from nbafl.data import partition as dealing
from nbafl.data.checks import Arrays
from nbafl.data.partition import Parts, Repeated
from nbafl.data.schema import Schema
from nbafl.errors import UsageError
from nbafl.tasks import classes_of


class Numbered(Sequence[str]):
    """The names `client 1`, `client 2`, … without holding a million strings."""

    def __init__(self, count: int) -> None:
        self._numbers = range(1, count + 1)

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
class Holding:
    """Shared storage plus indices, so that N may be a million."""

    x: np.ndarray
    """Records of all clients, (M, *shape) float32; int64 where they are tokens."""
    y: np.ndarray
    """Targets, (M,): int64 classes or float32 numbers."""
    train: Parts
    """Record indices of each client: 2-D when sizes are equal, a tuple of arrays when not, or `Repeated`."""
    local_test: Parts | None
    """Record indices of each client's local test part, or None."""
    test: Arrays | None
    """The common test set (x, y), or None."""
    task: str
    """`binary`, `classification` or `regression`."""
    outputs: int
    """What a model answers with: one number per class; 1 for a binary task or a regression."""
    names: Sequence[str]
    """One name per client (the file's name where it came from a file)."""
    classes: tuple[str, ...] | None = None
    """Names of the classes where the data had names."""
    remarks: tuple[str, ...] = ()
    """What the owner of the data should know before training, as sentences."""
    persons: tuple[np.ndarray, ...] | None = None
    """How many rows each person of each client has, where persons are protected; their rows lie side by side."""
    source: str | None = None
    """Where the data came from, for a report: `mnist`, a folder; None for data given from Python."""
    given_shape: tuple[int, ...] | None = None
    """Shape of a record before fixed features took its place."""
    read_from_data: tuple[str, ...] = ()
    """What shapes the model and was read from the records, in phrases; what a schema holds is the schema's own."""
    schema: Schema | None = None
    """How the rows of tables became these records; None for data that never were tables."""

    def __repr__(self) -> str:
        sizes = self.sizes
        held = f"{sizes.min()}" if sizes.min() == sizes.max() else f"{sizes.min()} to {sizes.max()}"
        return (
            f"{type(self).__name__}({self.clients} clients of {held} records, shape {self.shape}, "
            f"{self.task}, {self.outputs} outputs)"
        )

    def described(self) -> str:
        """One line before training: how many clients, records, features and classes there are."""
        sizes = self.sizes
        held = f"{sizes.min():,}" if sizes.min() == sizes.max() else f"{sizes.min():,} to {sizes.max():,}"
        test = "no test records" if self.test is None else f"{len(self.test[1]):,} test records"
        what = f"{len(self.class_names)} classes" if self.class_names else "a number to predict"
        if self.classes is not None and len(self.classes) <= 6:
            what += f" ({', '.join(self.classes)})"
        each = int(np.prod(self.shape))
        records = (
            f"{held} records each ({int(sizes.sum()):,} in all)" if self.clients > 1 else f"{held} records"
        )
        if self.persons is not None:
            records += f" of {int(self.units.sum()):,} persons"
        made_of = "tokens" if self.tokens else "features"
        return f"{self.clients:,} client{'s'[: self.clients != 1]} with {records}, {each:,} {made_of}, {what}, {test}"

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes in the order of their numbers, by name or number; none where the target is a number."""
        return self.classes or tuple(map(str, range(classes_of(self.task, self.outputs))))

    @property
    def tokens(self) -> bool:
        """Whether records are whole numbers, for a model that begins with an Embedding."""
        return self.x.dtype.kind == "i"

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
    def units(self) -> np.ndarray:
        """What counts once in each client, (N,): its persons where there are some, else its records."""
        return (
            self.sizes
            if self.persons is None
            else np.array([len(rows) for rows in self.persons], dtype=np.int64)
        )

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

    def holdout(self, fraction: float, seed: int = 0) -> Self:
        """The same federation, its test set replaced by a `fraction` of every client's TRAINING records.

        Hyper-parameters chosen on it never see the test set. The clients train on what is left.
        """
        if self.persons is not None:
            raise UsageError(
                "holdout", fraction, "unset where rows belong to persons; keep some persons as a test set"
            )
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
    ) -> Self:
        """The same federation with fixed features in place of the records: `raw` or `scattering`.

        `feature_norm` R bounds ‖(x, 1)‖ of every record, the 1 being the bias's input; records of `scattering`
        have norm 4 before that. See features.py for the options.
        """
        from nbafl.data import features  # needs torch for images, which nothing else here does

        if self.tokens:
            raise UsageError("features", name, "raw, without a feature norm, for records of tokens")

        def compute(x: np.ndarray) -> np.ndarray:
            return features.compute(name, x, feature_norm, **options)

        test = None if self.test is None else (compute(self.test[0]), self.test[1])
        return replace(self, x=compute(self.x), test=test, given_shape=self.given_shape or self.shape)

    def _holdout_of_pool(self, train: Repeated, fraction: float, seed: int) -> Self:
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
