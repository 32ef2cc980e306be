"""Workers as processes of this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from nbafl.data.federation import Federation
from nbafl.errors import NbaflError
from nbafl.sweeps.folder import finished
from nbafl.sweeps.train import Task, Worker

RETRIES = 2
"""A worker that was killed takes its runs with it; they are tried again so many times."""

_worker: Worker | None = None


class RunFailed(NbaflError):
    """A run of the sweep failed in a way that trying again does not mend."""


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def make_all(
    tasks: Sequence[Task],
    places: Sequence[Path],
    workers: int,
    federation: Federation | None,
    model: Any,
    on_done: Callable[[Task], None],
) -> None:
    """Every task into its place; tasks that share data go to the same worker where that keeps all of them busy."""
    if workers == 1:
        worker = Worker(federation, model)
        for task, place in zip(tasks, places, strict=True):
            worker.make(task, place)
            on_done(task)
        return
    left = list(zip(tasks, places, strict=True))
    for _ in range(RETRIES + 1):
        left = _attempt(left, workers, federation, model, on_done)
        if not left:
            return
    raise RunFailed(f"workers were killed while training {left[0][0].name!r}; the finished runs are kept.")


def _attempt(
    left: list[tuple[Task, Path]],
    workers: int,
    federation: Federation | None,
    model: Any,
    on_done: Callable[[Task], None],
) -> list[tuple[Task, Path]]:
    """Try every task once; returns those whose worker was killed."""
    threads = max(1, cores() // workers)
    pool = ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_begin, initargs=(federation, model, threads)
    )
    waiting: dict[Future[None], list[tuple[Task, Path]]] = {}
    lost: list[tuple[Task, Path]] = []
    try:
        for batch in batches(left, workers):
            waiting[pool.submit(_make, batch)] = batch
        while waiting:
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                batch = waiting.pop(future)
                try:
                    future.result()
                except BrokenProcessPool:
                    lost += batch
                    continue
                for task, _ in batch:
                    on_done(task)
    except BaseException:
        _end(pool)
        raise
    pool.shutdown()
    return lost


def batches(left: list[tuple[Task, Path]], workers: int) -> Iterator[list[tuple[Task, Path]]]:
    """Runs of the same data together, in pieces small enough that no worker is left without work."""
    groups: dict[str, list[tuple[Task, Path]]] = {}
    for task, place in left:
        groups.setdefault(task.data_key, []).append((task, place))
    most = max(1, len(left) // (4 * workers))
    for group in groups.values():
        for start in range(0, len(group), most):
            yield group[start : start + most]


def _begin(federation: Federation | None, model: Any, threads: int) -> None:
    """A worker's start: Ctrl-C is the parent's to handle, and the cores are shared fairly."""
    import torch

    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    _worker = Worker(federation, model)


def _make(batch: list[tuple[Task, Path]]) -> None:
    assert _worker is not None
    for task, place in batch:
        if finished(place):  # by a worker that was killed before it could say so
            continue
        try:
            _worker.make(task, place)
        except (
            NbaflError
        ) as error:  # one sentence: errors with several arguments do not travel between processes
            raise RunFailed(f"run {task.name!r} failed: {error}") from None


def _end(pool: ProcessPoolExecutor) -> None:
    """Stop at once: runs in flight keep their checkpoint and go on when the sweep does."""
    processes = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()
