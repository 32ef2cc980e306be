"""Many runs at once: seeds and settings of a sweep, each exactly the run it would have been alone.

On a CPU every core works through runs of its own, so that no core ever waits for another inside a round; runs over the
same federation share its records, sparse features and Gram matrices. A run's result does not depend on the number of
threads (see `cores`), which is why batched runs equal single runs bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import nn

from nbafl.errors import UsageError
from nbafl.simulation.cores import cores
from nbafl.simulation.device_data.records import Data, Records
from nbafl.simulation.device_data.shared import SharedData
from nbafl.simulation.job import Job
from nbafl.simulation.scoring.metrics import RoundMetrics
from nbafl.simulation.simulator import MEASURES, Simulator, pick_device

Thing = TypeVar("Thing")


def simulate_batch(
    federations: Data | Sequence[Data],
    models: nn.Module | Sequence[nn.Module],
    jobs: Sequence[Job],
    device: str | torch.device = "auto",
    engine: str = "auto",
    measure: Iterable[str] = MEASURES,
    on_round: Callable[[int, RoundMetrics], None] | None = None,
) -> list[list[RoundMetrics]]:
    """All rounds of all jobs. One federation and one model for all, or one per job.

    `on_round(number of the job, metrics)` is called after every round, from the thread that ran it.
    """
    chosen, measure = pick_device(device), frozenset(measure)
    data = _per_job("federations", federations, len(jobs))
    starts = _per_job("models", models, len(jobs))
    settings = _settings(data, starts, chosen)
    workers = min(cores(), len(jobs)) if chosen.type == "cpu" else 1
    each = max(1, cores() // max(1, len(jobs)))  # fewer runs than cores: several cores a run

    def run(number: int) -> list[RoundMetrics]:
        simulator = Simulator(
            data[number],
            starts[number],
            jobs[number],
            chosen,
            engine,
            measure,
            settings[number],
            threads=each,
        )
        metrics = []
        for _ in range(jobs[number].rounds):
            metrics.append(simulator.step())
            if on_round is not None:
                on_round(number, metrics[-1])
        return metrics

    with ThreadPoolExecutor(max(1, workers), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(run, range(len(jobs))))


def _per_job(field: str, given: Thing | Sequence[Thing], count: int) -> list[Thing]:
    if not isinstance(given, (list, tuple)):
        return [given] * count  # type: ignore[list-item]
    if len(given) != count:
        raise UsageError(field, f"{len(given)} entries", f"one for all, or one for each of the {count} jobs")
    return list(given)


def _settings(data: list[Data], models: list[nn.Module], device: torch.device) -> list[SharedData]:
    """One SharedData per federation and kind of model, shared by the jobs that agree on both."""
    made: dict[tuple[int, str, torch.dtype], SharedData] = {}
    settings = []
    for federation, model in zip(data, models, strict=True):
        dtype = next(model.parameters()).dtype
        key = (id(federation), repr(model), dtype)
        if key not in made:
            made[key] = SharedData.of(Records(federation, device, dtype), model)
        settings.append(made[key])
    return settings
