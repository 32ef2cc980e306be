"""Who gets which records when one data set is to be split over many clients.

A partition deals record indices, never the records themselves: disjoint clients, exactly the sizes asked for,
and the same deal for the same seed. `iid` deals at random, `dirichlet:ALPHA` gives every client its own mix
of classes, and `shards:S` gives every client S runs of the records sorted by label. `Repeated` is the one
place where clients may share records: a population larger than the data set, whose records are computed from
the client's number when asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nbafl.errors import UsageError
from nbafl.mixing import GOLDEN, mixed

ALLOWED = "iid, dirichlet:ALPHA with ALPHA > 0, or shards:S with S a whole number of at least 1"


@dataclass(frozen=True)
class Repeated:
    """Clients that each draw `samples` of `pool` records with repetition, on demand: no memory per client."""

    clients: int
    samples: int
    pool: int
    seed: int

    def __len__(self) -> int:
        return self.clients

    def __getitem__(self, clients: int | np.ndarray | Sequence[int]) -> np.ndarray:
        """Record indices of one client (samples,) or of several (len, samples)."""
        ids = np.asarray(clients, dtype=np.int64)
        if ids.size and (ids.min() < 0 or ids.max() >= self.clients):
            raise IndexError(f"client numbers run from 0 to {self.clients - 1}")
        position = ids[..., None] * self.samples + np.arange(self.samples)
        key = _mix(np.array([self.seed], dtype=np.uint64))
        return (_mix(position.astype(np.uint64) ^ key) % np.uint64(self.pool)).astype(np.int64)


def _mix(counter: np.ndarray) -> np.ndarray:
    """A counter to 64 well-mixed bits, so that a client's draw needs no other client's."""
    return mixed((counter + np.uint64(GOLDEN % 2**64)).view(np.int64)).view(np.uint64)


Dealt = np.ndarray | tuple[np.ndarray, ...]
"""Record indices of each client: 2-D when all sizes are equal, one array a client when not."""
Parts = Dealt | Repeated


@dataclass(frozen=True)
class Partition:
    """A way of dealing: `iid`, `dirichlet` with its concentration, or `shards` with the number per client."""

    kind: str
    number: float = 0.0

    def __str__(self) -> str:
        return self.kind if self.kind == "iid" else f"{self.kind}:{self.number:g}"


def parse(text: str) -> Partition:
    """Read `iid`, `dirichlet:0.3` or `shards:2`."""
    kind, _, argument = str(text).partition(":")
    try:
        number = float(argument) if argument else math.nan
    except ValueError:
        number = math.nan
    if text == "iid":
        return Partition("iid")
    if kind == "dirichlet" and 0 < number < math.inf:
        return Partition("dirichlet", number)
    if kind == "shards" and number >= 1 and number.is_integer():
        return Partition("shards", number)
    raise UsageError("partition", text, ALLOWED)


def client_sizes(
    clients: int | None, samples: int | None, sizes: Sequence[int] | np.ndarray | None, available: int
) -> np.ndarray:
    """Records per client: the given `sizes`, else `samples` each; refused if they cannot be dealt."""
    if sizes is None:
        clients, samples = clients or 0, samples or 0
        if not 1 <= clients <= available:
            raise UsageError("clients", clients, f"between 1 and the {available} records there are")
        if not 1 <= samples <= available // clients:
            most = f"between 1 and {available // clients} for {clients} clients ({available} records in all)"
            raise UsageError("samples", samples, most)
        return np.full(clients, samples, dtype=np.int64)
    given = np.asarray(sizes)
    if given.ndim != 1 or not given.size or not np.issubdtype(given.dtype, np.integer) or given.min() < 1:
        raise UsageError("sizes", sizes, "a list of whole numbers of at least 1, one per client")
    if clients is not None and clients != given.size:
        raise UsageError("clients", clients, f"{given.size}, the number of sizes given")
    if given.sum() > available:
        raise UsageError("sizes", int(given.sum()), f"at most {available} records in all")
    return given.astype(np.int64)


def split(partition: Partition, labels: np.ndarray, sizes: np.ndarray, seed: int) -> Dealt:
    """Deal `sizes[i]` of the labelled records to client i, disjointly; a function of the seed alone."""
    rng = np.random.default_rng(check_seed(seed))
    if partition.kind == "iid":
        order = rng.permutation(len(labels))[: sizes.sum()]
        return cut(order, sizes)
    if partition.kind == "dirichlet":
        return _dirichlet(labels, sizes, partition.number, rng)
    return _shards(labels, sizes, int(partition.number), rng)


def check_seed(seed: int) -> int:
    """Seeds are whole numbers that fit 63 bits."""
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise UsageError("seed", seed, "a whole number of at least 0")
    return int(seed)


def cut(order: np.ndarray, sizes: np.ndarray) -> Dealt:
    """Cut one list of records into consecutive clients."""
    if (sizes == sizes[0]).all():
        return order.reshape(len(sizes), sizes[0])
    return tuple(np.split(order, np.cumsum(sizes)[:-1]))


def _shards(labels: np.ndarray, sizes: np.ndarray, per_client: int, rng: np.random.Generator) -> Dealt:
    """Sort the records by label, cut N·S runs, deal S of them to each client (sizes may differ by client)."""
    if per_client > sizes.min():
        most = f"shards of at most {sizes.min()}, the records of the smallest client"
        raise UsageError("partition", f"shards:{per_client}", most)
    chosen = rng.permutation(len(labels))[: sizes.sum()]
    ordered = chosen[np.argsort(labels[chosen], kind="stable")]
    owner = np.repeat(np.arange(len(sizes)), per_client)
    slot = np.tile(np.arange(per_client), len(sizes))
    length = sizes[owner] // per_client + (slot < sizes[owner] % per_client)
    dealt = rng.permutation(len(owner))  # the order in which runs are cut off the sorted list
    owner_of_record = np.repeat(owner[dealt], length[dealt])
    return _hand_over(ordered, owner_of_record, sizes, rng)


def _hand_over(records: np.ndarray, owner: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> Dealt:
    """Group records by owner, in random order within each so that minibatches are mixed."""
    mixed = rng.permutation(len(records))
    return cut(records[mixed[np.argsort(owner[mixed], kind="stable")]], sizes)


def _dirichlet(labels: np.ndarray, sizes: np.ndarray, alpha: float, rng: np.random.Generator) -> Dealt:
    """Each client's class mix is drawn from Dir(alpha · c · class shares): Dir(alpha, …, alpha) if balanced.

    Where a class runs out, its unmet requests go to the client's other classes.
    """
    if not np.issubdtype(labels.dtype, np.integer):
        raise UsageError("partition", f"dirichlet:{alpha:g}", "iid or shards:S when the target is a number")
    classes, class_of_record = np.unique(labels, return_inverse=True)
    supply = np.bincount(class_of_record)
    mix = rng.dirichlet(alpha * len(classes) * supply / supply.sum(), size=len(sizes))
    counts = _fill(mix, sizes, supply, rng)
    pools = [rng.permutation(np.flatnonzero(class_of_record == c)) for c in range(len(classes))]
    taken = [pool[:count] for pool, count in zip(pools, counts.sum(axis=0), strict=True)]
    owner = np.concatenate([np.repeat(np.arange(len(sizes)), column) for column in counts.T])
    return _hand_over(np.concatenate(taken), owner, sizes, rng)


def _fill(mix: np.ndarray, sizes: np.ndarray, supply: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """How many records of each class every client gets, (N, c).

    All clients ask at once; a class asked for more than it holds grants a random part of the requests, so no
    client is served before another. Every pass meets all requests or empties a class: at most c passes.
    """
    counts = np.zeros(mix.shape, dtype=np.int64)
    left = supply.copy()
    while (missing := sizes - counts.sum(axis=1)).any():
        wish = mix * (left > 0)
        hopeless = wish.sum(axis=1) < 1e-300  # nothing left of what this client wanted: take what there is
        wish[hopeless] = left
        asked = rng.multinomial(missing, wish / wish.sum(axis=1, keepdims=True))
        for c in np.flatnonzero(asked.sum(axis=0) > left):
            asked[:, c] = rng.multivariate_hypergeometric(asked[:, c], left[c], method="marginals")
        counts += asked
        left -= asked.sum(axis=0)
    return counts


def hold_out(parts: Dealt, counts: np.ndarray, seed: int) -> tuple[Dealt, Dealt]:
    """Take `counts[i]` random records away from client i: (what it keeps, what was taken)."""
    rng = np.random.default_rng([check_seed(seed), 1])
    if isinstance(parts, np.ndarray) and (counts == counts[0]).all():
        shuffled = rng.permuted(parts, axis=1)
        return shuffled[:, counts[0] :], shuffled[:, : counts[0]]
    mixed = [rng.permutation(part) for part in parts]
    kept = [part[count:] for part, count in zip(mixed, counts, strict=True)]
    taken = [part[:count] for part, count in zip(mixed, counts, strict=True)]
    return stack(kept), stack(taken)


def stack(parts: list[np.ndarray]) -> Dealt:
    """Parts given one by one, as one 2-D array when they are equally long."""
    return cut(np.concatenate(parts), np.array([len(part) for part in parts]))


def set_aside(parts: Dealt, local_test: float | int, seed: int) -> tuple[Dealt, Dealt | None]:
    """Split every client's records into train and local test: a fraction below 1, or a number of records."""
    if local_test == 0:
        return parts, None
    sizes = np.array([len(part) for part in parts])
    if 0 < local_test < 1:
        counts = np.maximum(np.rint(local_test * sizes).astype(np.int64), 1)
    elif local_test >= 1 and float(local_test).is_integer():
        counts = np.full(len(sizes), int(local_test))
    else:
        raise UsageError(
            "local_test", local_test, "0, a fraction between 0 and 1, or a whole number of records"
        )
    if (counts >= sizes).any():
        short = int(np.argmax(counts >= sizes))
        rule = f"small enough to leave client {short + 1}, who has {sizes[short]} records, one to train on"
        raise UsageError("local_test", local_test, rule)
    return hold_out(parts, counts, seed)


def compact(train: Dealt, local: Dealt | None) -> tuple[np.ndarray, Dealt, Dealt | None]:
    """The records in use in the order of the clients, and the parts as indices into that order.

    The storage then holds nothing that nobody owns, and equal clients lie in it as one (N, m) block.
    """
    parts = [*train, *(local if local is not None else ())]
    own = consecutive([len(part) for part in parts])
    new_local = None if local is None else stack(own[len(train) :])
    return np.concatenate(parts), stack(own[: len(train)]), new_local


def consecutive(lengths: Sequence[int]) -> list[np.ndarray]:
    """Index ranges that follow one another."""
    ends = np.cumsum(lengths)
    return [np.arange(end - length, end) for end, length in zip(ends, lengths, strict=True)]
