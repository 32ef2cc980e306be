"""Several cores, one block of clients each.

Torch splits every single operation over all cores; for blocks that fit a core's cache it is faster to give each core
blocks of its own and let it work alone. Work comes as a fixed number of lanes whatever the number of threads, and
lanes are added up in order, so the result does not depend on how many threads there are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

LANES = max(4, 2 * (os.cpu_count() or 1))
"""Two for every core of the machine, so that one slow core does not hold up the round."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch works with one thread inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def cores() -> int:
    """Cores this process may use; never more than torch was told to use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, torch.get_num_threads()))


class Crew:
    """Worker threads that each run torch single-threaded."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))

    def map(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """work(item) for every item, in order of the items."""
        with one_thread():
            if self.threads == 1 or len(items) == 1:
                return [work(item) for item in items]
            return list(self._pool.map(work, items))


def lanes(count: int) -> list[range]:
    """`count` blocks dealt to lanes: as even as can be, the longer ones first."""
    return [range(lane, count, LANES) for lane in range(min(count, LANES))]
