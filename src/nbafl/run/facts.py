"""The facts of a run that is about to begin, from what it was given."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import date
from typing import TYPE_CHECKING

from nbafl.data.schema import Schema
from nbafl.evaluation import Evaluation
from nbafl.folders.facts import FROM_PYTHON, NAMED, OF_CLIENTS, Facts
from nbafl.plan import Plan

if TYPE_CHECKING:
    from torch import nn

    from nbafl.data.federation import Federation
    from nbafl.protocol.losses import Own
    from nbafl.simulation.models import Factory


def of_simulation(federation: Federation, model: str | nn.Module | Factory, features: str) -> Facts:
    """The data and the model as they were handed over; `features`: the plan's, which the records have by now."""
    data, shape = federation.source or FROM_PYTHON, federation.shape
    if features != "raw":
        shape = federation.given_shape or shape
    return _facts(
        data, told_code(model), "simulation", federation.task, shape, federation.outputs,
        int(federation.sizes.sum()), tuple(federation.names[:NAMED]), federation.classes, federation.schema,
        federation.tokens, federation.read_from_data,
    )  # fmt: skip


def of_federation(
    plan: Plan, names: tuple[str, ...], task: str, shape: tuple[int, ...], outputs: int, schema: Schema | None,
    evaluation: Evaluation | None = None,
) -> Facts:  # fmt: skip
    """What the server of real parties knows; it never sees their records."""
    classes = None if schema is None else schema.classes
    records = int(plan.client_sizes.sum())
    data = plan.dataset if plan.dataset == "mnist" else OF_CLIENTS
    made = _facts(
        data, plan.model, "federation", task, shape, outputs, records, names[:NAMED], classes, schema
    )
    return made if evaluation is None else replace(made, evaluation=asdict(evaluation))


def told(plan: Plan, made: Facts, coordinates: int, loss: Own | None = None) -> Plan:
    """The plan with the data, the model and the loss it was really run with, where they were given from Python."""
    model = plan.model if plan.rule.models else made.model  # a rule proved for some models keeps their names
    named = plan.loss if loss is None else told_code(loss)
    if (plan.dataset, plan.model, plan.loss) == (made.data, model, named):
        return plan
    secure = plan.secure_sums() is not None and plan.dimension is None
    found = {"dimension": coordinates} if secure else {}
    return Plan(**{**plan.model_dump(), "dataset": made.data, "model": model, "loss": named, **found})


def told_code(given: str | nn.Module | Factory | Own) -> str:
    """A name under which a model or loss is found again, where there is one."""
    if isinstance(given, str):
        return given
    module, name = getattr(given, "__module__", ""), getattr(given, "__qualname__", "")
    importable = module not in ("", "__main__") and name.isidentifier()
    return f"{module}:{name}" if importable else FROM_PYTHON


def _facts(
    data: str, model: str, where: str, task: str, shape: tuple[int, ...], outputs: int, records: int,
    clients: tuple[str, ...], classes: tuple[str, ...] | None, schema: Schema | None, tokens: bool = False,
    read: tuple[str, ...] = (),
) -> Facts:  # fmt: skip
    return Facts(
        data=data,
        model=model,
        where=where,
        started=date.today().isoformat(),
        task=task,
        shape=tuple(int(each) for each in shape),
        outputs=outputs,
        records=records,
        clients=tuple(clients),
        classes=classes,
        columns=() if schema is None else tuple(column.name for column in schema.columns),
        target=None if schema is None else schema.target,
        tokens=tokens,
        read_from_data=read if schema is None else tuple(schema.used()),
    )
