"""Which engine trains a job: asked for by name, or the cheapest that can."""

from __future__ import annotations

from torch import nn

from nbafl.errors import UsageError
from nbafl.simulation.engine import Engine
from nbafl.simulation.job import Job
from nbafl.simulation.records import Records
from nbafl.simulation.vmap import VmapEngine

ENGINES = ("auto", "vmap")


def choose(name: str, records: Records, model: nn.Module, job: Job, measure: frozenset[str]) -> Engine:  # noqa: ARG001
    """The engine for a job."""
    if name not in ENGINES:
        raise UsageError("engine", name, "one of " + ", ".join(ENGINES))
    return VmapEngine(records, model, job.training, job.seed)
