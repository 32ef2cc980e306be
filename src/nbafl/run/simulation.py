"""`nbafl.simulate`: train a plan over a federation on this machine and leave a run folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nbafl import tracking
from nbafl.data.federation import Federation
from nbafl.errors import UsageError
from nbafl.folders.runs import folder_of, locked
from nbafl.plan import Plan
from nbafl.protocol.vector import flatten
from nbafl.run import checkpoint, facts
from nbafl.run.loop import OnRound, follow, train
from nbafl.run.plan_data import federation_of, plan_for, seen_by_the_model
from nbafl.run.result import Run
from nbafl.run.scores import score
from nbafl.run.starting import start_from
from nbafl.simulation import ranks
from nbafl.simulation.device_data.records import Records
from nbafl.simulation.device_data.shared import SharedData
from nbafl.simulation.models import Factory, build, check
from nbafl.simulation.simulator import Simulator, pick_device
from nbafl.tracking import Callback

if TYPE_CHECKING:
    import torch
    from torch import nn

    from nbafl.protocol.losses import Own
    from nbafl.simulation.job import Job


@dataclass(frozen=True)
class PreparedData:
    """A federation as the model sees it, and what runs over it share on the device: made once, used by many runs."""

    federation: Federation
    shared: dict[str, SharedData] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, plan: Plan, federation: Federation | None = None) -> PreparedData:
        """The data a plan names (or those given), with the plan's features."""

        def made() -> Federation:
            found = federation_of(plan) if federation is None else federation
            check_fits(plan, found)
            return seen_by_the_model(plan, found)

        return cls(ranks.once_per_node(made))

    def holdout(self, fraction: float, seed: int) -> PreparedData:
        """The same data judged on a part of the training records (`Federation.holdout`)."""
        return PreparedData(self.federation.holdout(fraction, seed))

    def on_device(self, model: nn.Module, device: torch.device) -> SharedData:
        """Records, features and Gram matrices for models of this kind."""
        dtype = next(model.parameters()).dtype
        key = repr((model, dtype, device))
        if key not in self.shared:
            self.shared[key] = SharedData.of(Records(self.federation, device, dtype), model)
        return self.shared[key]


def simulate(
    plan: Plan,
    federation: Federation | None = None,
    model: str | nn.Module | Factory | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    on_round: OnRound | None = None,
    data: PreparedData | None = None,
    report: bool = True,
    callbacks: Sequence[str | Callback] = (),
    loss: Own | None = None,
) -> Run:
    """Train `plan` over `federation` on this machine and leave a run folder.

    `model` is a name as in Plan.model, a factory of (input shape, outputs), or an nn.Module with its initial weights;
    left out, the plan's. What the plan leaves out follows from the data, and stands in `run.plan`. `loss` is a function of
    (outputs, targets) that gives one number per record, each from its own record alone; left out, the task's or the plan's.
    `data` takes the place of `federation` where several runs share it (a sweep); `report` says whether report.html is
    written (`run.report()` does it later). `callbacks` are told of every round: trackers by name (`tensorboard`, `mlflow`)
    and objects of your own (`nbafl.Callback`).
    """
    listening = tracking.find(callbacks)
    ranks.begin()
    if data is None:
        plan = plan if federation is None else plan_for(plan, federation, model)
        data = PreparedData.of(plan, federation)
    federation = data.federation
    check_fits(plan, federation)
    made = facts.of_simulation(federation, plan.model if model is None else model, plan.features)
    model = _model(model or plan.model, federation, plan.seed)
    if not (resume and out is not None and checkpoint.kept(Path(out))):
        model = start_from(plan, model)
    coordinates = flatten(model).numel()
    asked, plan = plan, facts.told(plan, made, coordinates, loss)
    check_dimension(plan, coordinates)
    device = pick_device(plan.device)
    simulator = Simulator(
        federation,
        model,
        _job(plan, federation, loss),
        device=device,
        engine=plan.engine,
        shared=data.on_device(model, device),
    )
    fingerprints = tuple(
        _fingerprint(name, federation, model) for name in (*plan.digests(), *asked.digests())
    )
    if ranks.number() > 0:
        return follow(plan, simulator)
    path = folder_of(plan, out, resume)
    with locked(path):
        return train(
            Run(path, plan), simulator, fingerprints, resume, on_round, report, made, federation.schema,
            lambda trained: score(trained, federation), listening,
        )  # fmt: skip


def check_dimension(plan: Plan, coordinates: int) -> None:
    """The grid of secure aggregation was computed for one number of coordinates: the model must have just that many."""
    secure = plan.secure_sums()
    if secure is not None and secure.sums.dimension != coordinates:
        raise UsageError(
            "dimension", secure.sums.dimension, f"the model's number of coordinates, {coordinates}"
        )


def _model(given: str | nn.Module | Factory, federation: Federation, seed: int) -> nn.Module:
    from torch import nn

    if not isinstance(given, nn.Module):
        return build(given, federation.shape, federation.outputs, seed, federation.tokens)
    check(given, type(given).__name__, federation.shape, federation.outputs, federation.tokens)
    return given


def _job(plan: Plan, federation: Federation, loss: Own | None) -> Job:
    """The plan as the plain numbers of a simulation, with a loss given from Python in its place."""
    job = plan.job(federation.task, federation.class_names)
    return job if loss is None else replace(job, training=replace(job.training, loss=loss))


def check_fits(plan: Plan, federation: Federation) -> None:
    if federation.clients != plan.clients:
        raise UsageError("clients", plan.clients, f"the number of clients in the data ({federation.clients})")
    if (federation.persons is None) != (plan.person is None):
        raise UsageError("person", plan.person, "given exactly where the data say whose row each is")
    if not np.array_equal(federation.units, plan.client_sizes):
        found = sorted(set(federation.units.tolist()))
        allowed = f"{found[0]} records" if len(found) == 1 else "given as sizes"
        raise UsageError("samples", plan.samples, f"what each client in the data holds ({allowed})")


def _fingerprint(plan: str, federation: Federation, model: nn.Module) -> str:
    """The plan's digest, who holds which records, their labels and a sample of their features, and the model's shape."""
    digest = hashlib.sha256(plan.encode())
    digest.update(json.dumps([[n, list(p.shape)] for n, p in model.named_parameters()]).encode())
    digest.update(np.ascontiguousarray(federation.sizes).tobytes())
    digest.update(np.ascontiguousarray(federation.y).tobytes())
    digest.update(np.ascontiguousarray(federation.x[:: max(1, len(federation.x) // 64)]).tobytes())
    return digest.hexdigest()
