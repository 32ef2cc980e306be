"""Several cores, one block of clients each.

Torch splits every single operation over all cores; for blocks that fit a core's cache it is faster to give each core
blocks of its own and let it work alone. A round is cut into lanes, whose number follows from the size of the round alone,
and lanes are added up along one fixed tree: so the result is the same bit for bit whatever the number of threads, of
cores and of ranks (see `ranks`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

from nbafl.simulation import ranks

Item = TypeVar("Item")
Result = TypeVar("Result")
Add = Callable[[Result, Result], Result]

FEWEST, MOST = 4, 64
LANE_RECORDS = 2000
"""A lane of fewer records costs more to add up than it saves by being worked on beside the others."""


HAND_OVER = 5e-4
"""Seconds after which a thread that holds the interpreter lets another have it; Python's own 5 ms make cores wait."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch works with one thread inside, and threads of ours do not wait for each other for long."""
    before, patience = torch.get_num_threads(), sys.getswitchinterval()
    torch.set_num_threads(1)
    sys.setswitchinterval(min(HAND_OVER, patience))
    try:
        yield
    finally:
        torch.set_num_threads(before)
        sys.setswitchinterval(patience)


def cores() -> int:
    """Cores this process may use; never more than torch was told to use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, torch.get_num_threads()))


class Cores:
    """Worker threads that each run torch single-threaded; with several ranks, each rank does its share of the work."""

    def __init__(self, threads: int, dealt: bool = True) -> None:
        self.threads = threads
        self._ranks = ranks.count() if dealt else 1
        self._rank = ranks.number() if dealt else 0
        self._pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))

    def map(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """work(item) for every item, in order of the items."""
        own = self._own(len(items))
        done = self._here(work, items[own.start : own.stop])
        return done if self._ranks == 1 else [one for some in ranks.gather(done) for one in some]

    def sum(self, work: Callable[[Item], Result], items: Sequence[Item], add: Add[Result]) -> Result:
        """work(item) of all items added up along a tree that halves them; `add` may write into its first argument.

        Results are added as they come, so that few of them (each may be as large as the model) are held at a time.
        """
        own = self._own(len(items))
        with one_thread():
            results = self._stream(work, items[own.start : own.stop])
            known = {block: _folded(block, results, add) for block in _blocks(range(len(items)), own)}
        if self._ranks > 1:
            known = {block: part for some in ranks.gather(known) for block, part in some.items()}
        return _fold(range(len(items)), known, add)

    def _own(self, count: int) -> range:
        """This rank's items: as many as another's, or one more or less."""
        return range(count * self._rank // self._ranks, count * (self._rank + 1) // self._ranks)

    def _here(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        with one_thread():
            return list(self._stream(work, items))

    def _stream(self, work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Results in the order of the items, each handed out once it is asked for and there."""
        alone = self.threads == 1 or len(items) <= 1
        return map(work, items) if alone else self._pool.map(work, items)


def lane_count(records: int) -> int:
    """Lanes of a round with so many records: a power of two, so that they are even on most machines."""
    return min(MOST, max(FEWEST, 1 << (max(1, records // LANE_RECORDS).bit_length() - 1)))


def lanes(blocks: int, count: int = MOST) -> list[range]:
    """So many blocks dealt to so many lanes: as even as can be, the longer ones first."""
    return [range(lane, blocks, count) for lane in range(min(blocks, count))]


def _halves(block: range) -> tuple[range, range]:
    middle = (block.start + block.stop) // 2
    return range(block.start, middle), range(middle, block.stop)


def _blocks(block: range, own: range) -> list[range]:
    """The largest blocks of the tree that lie within `own`."""
    if own.start <= block.start and block.stop <= own.stop:
        return [block] if block else []
    if block.stop <= own.start or own.stop <= block.start:
        return []
    return [found for half in _halves(block) for found in _blocks(half, own)]


def _folded(block: range, results: Iterator[Result], add: Add[Result]) -> Result:
    """The next len(block) results, added up along the tree."""
    if len(block) == 1:
        return next(results)
    left, right = _halves(block)
    return add(_folded(left, results, add), _folded(right, results, add))


def _fold(block: range, known: dict[range, Result], add: Add[Result]) -> Result:
    if block in known:
        return known.pop(block)
    first, second = _halves(block)
    return add(_fold(first, known, add), _fold(second, known, add))
