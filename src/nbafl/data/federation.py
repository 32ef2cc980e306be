"""Whose data it is: N clients' records as one shared storage and, for each client, indices into it.

A Federation is built once (from embedded MNIST, arrays, tables, images or torch Datasets), checked once, and then only
read (`holding.py` says how it lies in memory); every constructor refuses unusable data in one sentence that names the
client and the row.

Algorithm 1 ends a round with a local test on each client. Clients built with `local_test` set a part of their
own records aside for it; by default none do, because the paper trains on everything, and the step then
measures a client on the records it trained on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from nbafl.data import mnist, sources, tabular
from nbafl.data import partition as dealing
from nbafl.data.checks import Checked, check_alike, check_pair, targets, task_of
from nbafl.data.holding import Holding, Numbered
from nbafl.data.partition import Dealt, Repeated
from nbafl.data.persons import by_person
from nbafl.data.tables import from_frame
from nbafl.errors import DataError, UsageError
from nbafl.tasks import CLASSIFICATION


class Federation(Holding):
    """Shared storage plus indices, so that N may be a million."""

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
            source="mnist",
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
            source="mnist",
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
        groups: Sequence[Any] | None = None,
        tokens: bool = False,
    ) -> Federation:
        """Clients given as (x, y) pairs of arrays or tensors, one pair a client.

        Whole-number targets are classes 0 … outputs−1 and decimal ones a regression, unless `task` says otherwise
        (`binary`: classes 0 and 1 and a model with one output). How many classes there are is read from the targets, which
        no guarantee covers, unless `outputs` says it. Records are features in float32; with `tokens` they are
        whole numbers and stay so, for a model that begins with an Embedding. `local_test` is a list of (x, y) pairs, one a
        client, or a fraction or number of each client's own records. `groups` says for each client whose row each is (one
        value per row): a person then counts once.
        """
        if not len(clients):
            raise DataError("The federation has no clients; give at least one (x, y) pair.")
        labelled = Numbered(len(clients)) if names is None else tuple(names)
        if len(labelled) != len(clients):
            raise UsageError("names", len(labelled), f"{len(clients)} names, one per client")
        parts = [check_pair(name, pair, tokens) for name, pair in zip(labelled, clients, strict=True)]
        persons = None
        if groups is not None:
            if local_test:
                raise UsageError("local_test", local_test, "unset where rows belong to persons")
            parts, persons = _side_by_side(parts, groups)
        if isinstance(local_test, Sequence):
            if len(local_test) != len(clients):
                raise UsageError("local_test", len(local_test), f"{len(clients)} pairs, one per client")
            parts += [
                check_pair(f"the local test of {name}", pair, tokens)
                for name, pair in zip(labelled, local_test, strict=True)
            ]
        if test is not None:
            parts.append(check_pair("the test set", test, tokens))
        check_alike(parts)
        task = task_of(parts, task)
        found = outputs is None and task == CLASSIFICATION
        y, outputs = targets(parts, task, outputs)
        read = (f"the number of classes ({outputs}; outputs={outputs} declares it)",) if found else ()
        x = [part.x for part in parts]
        common = None if test is None else (x.pop(), y.pop())
        own = dealing.consecutive([len(part) for part in x])
        train = dealing.stack(own[: len(clients)])
        local: Dealt | None
        if isinstance(local_test, Sequence):
            local = dealing.stack(own[len(clients) :])
        else:
            train, local = dealing.set_aside(train, local_test, seed)
        return cls(
            np.concatenate(x),
            np.concatenate(y),
            train,
            local,
            common,
            task,
            outputs,
            labelled,
            persons=persons,
            read_from_data=read,
        )

    @classmethod
    def from_csv(
        cls,
        folder: str | Path,
        target: str | None = None,
        test: str | Path | None = None,
        local_test: float | int = 0,
        *,
        seed: int = 0,
        **said: Unpack[tabular.Said],
    ) -> Federation:
        """A folder of CSV or Parquet files, one per client, named after its file; `test` is one more file.

        A schema.toml in the folder (or `schema`) says how rows become numbers; without one it is read from the tables,
        which no guarantee covers. What else may be said: `task`, `ignore` (columns), `person` (a column), `scale` (public
        ranges where there is no schema). See tabular.py.
        """
        read = tabular.read_folder(folder, target, test, **said)
        names = [Path(table.name).stem for table in read.clients]
        return replace(cls._of_tables(read, names, local_test, seed), source=str(folder))

    @classmethod
    def from_frames(
        cls,
        clients: Mapping[str, Any] | Sequence[Any],
        target: str | None = None,
        test: Any | None = None,
        local_test: float | int = 0,
        *,
        seed: int = 0,
        **said: Unpack[tabular.Said],
    ) -> Federation:
        """pandas or polars frames, one per client (by name, or in a list), read exactly as `from_csv` reads files."""
        named = (
            clients
            if isinstance(clients, Mapping)
            else {f"client {i}": frame for i, frame in enumerate(clients, 1)}
        )
        if not named:
            raise DataError("The federation has no clients; give at least one frame.")
        tables = [from_frame(frame, str(name)) for name, frame in named.items()]
        aside = None if test is None else from_frame(test, "the test frame")
        read = tabular.assemble(tables, aside, target, **said)
        return cls._of_tables(read, [str(name) for name in named], local_test, seed)

    @classmethod
    def _of_tables(
        cls, read: tabular.Folder, names: list[str], local_test: float | int, seed: int
    ) -> Federation:
        schema = read.schema
        groups = [tabular.persons_of([table], schema) for table in read.clients]
        federation = cls.from_arrays(
            [(schema.encode(table), schema.targets(table)) for table in read.clients],
            groups=None if schema.person is None else groups,
            test=None if read.test is None else (schema.encode(read.test), schema.targets(read.test)),
            local_test=local_test,
            seed=seed,
            task=schema.task,
            outputs=schema.outputs,
            names=names,
        )
        return replace(federation, classes=schema.classes, remarks=read.remarks, schema=schema)

    @classmethod
    def from_images(
        cls,
        folder: str | Path,
        test: str | Path | None = None,
        *,
        classes: Sequence[str] | None = None,
        size: Sequence[int] | None = None,
    ) -> Federation:
        """folder/CLIENT/CLASS/*.png (or jpg, …); `test` is one more such folder of classes. Pixels become [0, 1].

        `classes` are public names in the order of the outputs; left out, they are those of the folders, which no
        guarantee covers. `size` (height, width) scales every image by itself.
        """
        found = sources.client_folders(folder)
        apart = None if test is None else Path(test)
        clients = [path for path in found if apart is None or path.resolve() != apart.resolve()]
        wanted, named = sources.check_size(size), tuple(classes or sources.image_classes(clients))
        federation = cls.from_arrays(
            [sources.read_images(path, named, wanted) for path in clients],
            test=None if apart is None else sources.read_images(apart, named, wanted),
            task="classification",
            outputs=max(2, len(named)),
            names=[path.name for path in clients],
        )
        read = () if classes else (f"the classes {', '.join(named)}, which are names of folders",)
        remarks = tuple(f"No guarantee covers {each}." for each in read)
        return replace(federation, classes=named, remarks=remarks, read_from_data=read, source=str(folder))

    @classmethod
    def from_idx(
        cls,
        clients: Sequence[tuple[str | Path, str | Path]],
        test: tuple[str | Path, str | Path] | None = None,
        *,
        outputs: int | None = None,
    ) -> Federation:
        """A pair of IDX files (images, labels) per client, gzipped or not, as MNIST and its kin come."""
        return cls.from_arrays(
            [sources.idx_pair(*pair) for pair in clients],
            test=None if test is None else sources.idx_pair(*test),
            outputs=outputs,
        )

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
        tokens: bool = False,
    ) -> Federation:
        """Clients given as torch Datasets, or anything with a length that gives (x, y) by index."""
        local: Any = local_test
        if isinstance(local_test, Sequence):
            local = [_gather(data, f"the local test of client {i}") for i, data in enumerate(local_test, 1)]
        return cls.from_arrays(
            [_gather(data, f"client {i}") for i, data in enumerate(datasets, 1)],
            test=None if test is None else _gather(test, "the test set"),
            local_test=local,
            seed=seed,
            task=task,
            outputs=outputs,
            names=names,
            tokens=tokens,
        )


def _deal(
    labels: np.ndarray, wanted: np.ndarray, spec: str, seed: int, local_test: float | int
) -> tuple[np.ndarray, Dealt, Dealt | None]:
    """The records in use, and train and local test records of every client, dealt from one labelled data set."""
    dealt = dealing.split(dealing.parse(spec), labels, wanted, seed)
    return dealing.compact(*dealing.set_aside(dealt, local_test, seed))


def _side_by_side(
    parts: list[Checked], groups: Sequence[Any]
) -> tuple[list[Checked], tuple[np.ndarray, ...]]:
    """Every client's rows with those of a person side by side, and how many each person has."""
    if len(groups) != len(parts):
        raise UsageError("groups", len(groups), f"{len(parts)} arrays, one per client")
    sorted_parts, persons = [], []
    for part, codes in zip(parts, groups, strict=True):
        order, counts = by_person(codes)
        if len(order) != len(part.y):
            raise DataError(f"The groups of {part.name} hold {len(order)} values for {len(part.y)} records.")
        sorted_parts.append(replace(part, x=part.x[order], y=part.y[order]))
        persons.append(counts)
    return sorted_parts, tuple(persons)


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
