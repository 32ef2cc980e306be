"""One run of a sweep, made by a worker: a process on this machine, or a task on a Ray cluster.

A worker keeps the data it used last (records, features, Gram matrices), and runs that share data come to it one after
another, so a sweep over epsilons and adversaries prepares its data once per worker.
"""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbafl.data.federation import Federation
from nbafl.plan import Plan
from nbafl.run.simulation import PreparedData, simulate
from nbafl.sweeps.folder import resumable

DATA_FIELDS = (
    "dataset",
    "clients",
    "samples",
    "sizes",
    "partition",
    "target",
    "test",
    "features",
    "feature_norm",
)
SKIPPED = ("checkpoint",)
"""What a run made elsewhere does not bring back: it is only needed to go on there."""


@dataclass(frozen=True)
class Task:
    """A run to be made: the fields of its plan, and the share of the training records it is judged on."""

    name: str
    fields: dict[str, Any]
    holdout: float | None

    @property
    def data_key(self) -> str:
        """Equal for tasks that train on the same records; on embedded data the seed deals them out."""
        plan = Plan(**self.fields)
        named = {field: getattr(plan, field) for field in DATA_FIELDS if hasattr(plan, field)}
        return repr((named, plan.seed, self.holdout))


class Worker:
    """Makes runs, and keeps the data of the last one; `federation` and `model` are a user's own, if any."""

    def __init__(self, federation: Federation | None = None, model: Any = None) -> None:
        self._given, self._model = federation, model
        self._key: str | None = None
        self._data: PreparedData | None = None

    def make(self, task: Task, out: Path, on_round: Callable[[], None] | None = None) -> None:
        """Train the task's plan into the folder `out`, going on with what is there."""
        if task.data_key != self._key or self._data is None:
            self._key, self._data = task.data_key, self._prepare(task)
        plan = as_held(Plan(**task.fields), self._data.federation)
        simulate(
            plan,
            model=self._model,
            out=out,
            resume=out.exists() and resumable(out),
            on_round=(lambda _: on_round()) if on_round else None,
            data=self._data,
            report=False,
        )

    def _prepare(self, task: Task) -> PreparedData:
        plan = Plan(**task.fields)
        data = PreparedData.of(plan, self._given)
        return data if task.holdout is None else data.holdout(task.holdout, plan.seed)


def as_held(plan: Plan, federation: Federation) -> Plan:
    """The plan with the sizes that are left once records were held out."""
    units = federation.units
    if units.shape == plan.client_sizes.shape and bool((units == plan.client_sizes).all()):
        return plan
    fields = plan.model_dump(exclude_unset=True, exclude={"samples", "sizes"}) | {"clients": len(units)}
    equal = units.min() == units.max()
    counted = {"samples": int(units[0])} if equal else {"sizes": tuple(units.tolist())}
    return Plan(**{**fields, **counted})


def packed(worker: Worker, task: Task) -> bytes:
    """The run folder of a task as one archive, for a worker whose disk is not ours."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        worker.make(task, out)
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w") as archive:
            for path in sorted(out.iterdir()):
                if path.name not in SKIPPED:
                    archive.add(path, arcname=path.name)
        return content.getvalue()


def unpack(content: bytes, out: Path) -> None:
    """Put a run folder that came as an archive in its place, in one step."""
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".arriving-") as folder:
        place = Path(folder) / "run"
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            archive.extractall(place, filter="data")
        place.rename(out)
