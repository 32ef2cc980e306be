"""Workers as actors on a Ray cluster, through Ray's public API.

The data lie once on every node (Ray's object store); every worker has one core and one thread; a task whose node dies
is tried again elsewhere; finished runs travel back as archives, so nodes need not share a disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nbafl.data.federation import Federation
from nbafl.errors import NbaflError
from nbafl.sweeps.train import Task, Worker, packed, unpack

RETRIES = 5


class ClusterFailed(NbaflError):
    """The cluster cannot be reached or lost a run too often."""


def make_all(
    tasks: Sequence[Task],
    places: Sequence[Path],
    address: str,
    federation: Federation | None,
    model: Any,
    on_done: Callable[[Task], None],
) -> None:
    """Every task on the cluster at `address` (`auto`: the one this machine belongs to), results into their places."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it prints a warning of its own
    import ray

    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ClusterFailed(f"no Ray cluster answers at {address!r}: {error}") from None
    try:
        _make_on_cluster(ray, tasks, places, federation, model, on_done)
    finally:
        ray.shutdown()


def _make_on_cluster(
    ray: Any,
    tasks: Sequence[Task],
    places: Sequence[Path],
    federation: Federation | None,
    model: Any,
    on_done: Callable[[Task], None],
) -> None:
    """Order by data, so that a process that is used again finds what it needs."""
    remote = ray.remote(num_cpus=1, max_retries=RETRIES)(_make_one)
    data = ray.put((federation, model))
    order = sorted(range(len(tasks)), key=lambda number: tasks[number].data_key)
    waiting = {remote.remote(data, tasks[number]): number for number in order}
    try:
        while waiting:
            (done,), _ = ray.wait(list(waiting), num_returns=1)
            number = waiting.pop(done)
            try:
                content = ray.get(done)
            except ray.exceptions.RayTaskError as error:
                raise error.as_instanceof_cause() from None
            except ray.exceptions.RayError as error:
                raise ClusterFailed(
                    f"the cluster lost {tasks[number].name!r} {RETRIES + 1} times: {error}"
                ) from None
            unpack(content, places[number])
            on_done(tasks[number])
    except BaseException:
        for each in waiting:
            ray.cancel(each, force=True)
        raise


_kept: dict[int, Worker] = {}


def _make_one(data: tuple[Federation | None, Any], task: Task) -> bytes:
    """On a node: one thread, and the worker of this process, which keeps its data between tasks."""
    import torch

    torch.set_num_threads(1)
    worker = _kept.setdefault(0, Worker(*data))
    return packed(worker, task)
