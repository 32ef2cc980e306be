"""The one loop over rounds: make a round, keep it, go on; at the end the model, the privacy statement and the report."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from safetensors.torch import save

from nbafl.durable import write_bytes
from nbafl.errors import Refused
from nbafl.folders import files, runs
from nbafl.folders.facts import Facts
from nbafl.plan import Plan
from nbafl.report.notices import accumulated_noise, notices
from nbafl.run import checkpoint
from nbafl.run.result import Run
from nbafl.run.scores import without_infinities
from nbafl.simulation import ranks
from nbafl.simulation.scoring.metrics import RoundMetrics
from nbafl.tracking import Callback, Listeners

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nbafl.data.schema import Schema

OnRound = Callable[[RoundMetrics], None]
Score = Callable[["nn.Module"], dict[str, Any]]


class Trainer(Protocol):
    """Whatever makes rounds: the simulator, or the server of a real federation."""

    round: int
    vector: Tensor

    def step(self) -> RoundMetrics: ...
    def state(self) -> dict[str, Tensor]: ...
    def restore(self, state: dict[str, Tensor]) -> None: ...
    def module(self) -> nn.Module: ...


def train(
    run: Run,
    trainer: Trainer,
    fingerprints: tuple[str, ...],
    resume: bool,
    on_round: OnRound | None,
    report: bool = True,
    facts: Facts | None = None,
    schema: Schema | None = None,
    score: Score | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """All rounds that are left, each one kept in the run folder before the next begins."""
    if resume:
        checkpoint.restore(run, trainer, fingerprints)
    else:
        runs.begin(run, facts, None if schema is None else schema.to_toml())
    if not checkpoint.kept(run.path):  # also where a run was killed between the two: no draw is made anew
        checkpoint.write(run, trainer, fingerprints[0])
    ranks.agreed((run.path, trainer.state()))
    listeners = Listeners(run, callbacks)
    with listeners.during():
        _make_rounds(run, trainer, fingerprints[0], listeners, on_round)
        _finish(run, trainer, score)
        if report:
            run.report()
    return run


def _make_rounds(
    run: Run, trainer: Trainer, fingerprint: str, listeners: Listeners, on_round: OnRound | None
) -> None:
    with open(run.path / runs.METRICS, "a", encoding="utf-8") as log:
        while trainer.round < run.plan.rounds:
            metrics = trainer.step()
            _check_finite(metrics)
            line = files.as_line(asdict(metrics))
            log.write(line)
            log.flush()
            checkpoint.write(run, trainer, fingerprint)
            listeners.round(json.loads(line))
            if on_round:
                on_round(metrics)


def follow(plan: Plan, trainer: Trainer) -> Run:
    """The same rounds on a rank that writes nothing: it starts where rank 0 does and works along."""
    path, state = ranks.agreed((Path(), trainer.state()))
    trainer.restore(state)
    while trainer.round < plan.rounds:
        _check_finite(trainer.step())
    return Run(path, plan)


def _check_finite(metrics: RoundMetrics) -> None:
    """A model that is NaN or infinite is never broadcast, kept or vouched for."""
    if metrics.broadcast_norm is not None and not math.isfinite(metrics.broadcast_norm):
        raise Refused(
            f"the model is no longer finite after round {metrics.round}: training diverged (a smaller lr or more "
            "bounded features help); the rounds before it are kept."
        )


def _finish(run: Run, trainer: Trainer, score: Score | None) -> None:
    """The final model, how good it is, and the privacy statement."""
    if score is not None:
        measured = score(trainer.module())
        noise = run.plan.noise_scales().aggregate(run.plan.release())
        lengths = accumulated_noise(noise, trainer.vector.numel(), trainer.round, run.plan.carried_on)
        weighted, longest = run.plan.class_weights is not None, lengths[-1] if lengths else 0.0
        noticed = notices(run.metrics, measured, longest, weighted)
        files.write_json(run.path / runs.SCORES, {**without_infinities(measured), "notices": noticed})
    model = trainer.module()
    frozen = sum(weight.numel() for weight in model.parameters() if not weight.requires_grad)
    content = save(checkpoint.on_cpu(model.state_dict()), metadata={"plan": run.plan.digest()})
    runs.write_privacy(run, hashlib.sha256(content).hexdigest(), trainer.vector.numel(), frozen)
    write_bytes(run.path / runs.MODEL, content)
