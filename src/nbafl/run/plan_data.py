"""The data a plan names, as its model sees them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from nbafl import aggregation
from nbafl.data.federation import Federation
from nbafl.data.inference import names_in
from nbafl.data.schema import Schema
from nbafl.data.tabular import AS_CLIENT
from nbafl.errors import UsageError
from nbafl.folders.facts import FROM_PYTHON
from nbafl.plan import Plan
from nbafl.tasks import BINARY, CLASSIFICATION, outputs_of


def federation_of(plan: Plan, of_first_release: bool = False) -> Federation:
    """The data a plan names; or as 0.1.0 read them, for a run of its that goes on.

    0.1.0 took a file called test for a client's, and gave every class an output where there are two as well.
    """
    if plan.dataset == "mnist":
        if plan.sizes is not None:
            return Federation.mnist(sizes=plan.sizes, partition=plan.partition, seed=plan.seed)
        return Federation.mnist(
            clients=plan.clients, samples=plan.samples, partition=plan.partition, seed=plan.seed
        )
    if plan.dataset == FROM_PYTHON:
        raise UsageError(
            "dataset",
            plan.dataset,
            "given again: nbafl.simulate(plan, federation, out=FOLDER, resume=True) in Python",
        )
    ignore, test = names_in(plan.ignore or ""), plan.test
    if of_first_release and test is None:
        test = AS_CLIENT
    federation = Federation.from_csv(
        plan.dataset, plan.target, test, task=plan.task, ignore=ignore, person=plan.person
    )
    if of_first_release and federation.task == BINARY:
        outputs = outputs_of(CLASSIFICATION, len(federation.class_names))
        return replace(federation, task=CLASSIFICATION, outputs=outputs)
    return federation


def seen_by_the_model(plan: Plan, federation: Federation) -> Federation:
    """The same records with the plan's features and norm bound."""
    if plan.features == "raw" and plan.feature_norm is None:
        return federation
    return federation.with_features(plan.features, plan.feature_norm)


def found_dimension(
    fields: Mapping[str, Any], data: Callable[[], tuple[tuple[int, ...], int]]
) -> dict[str, int]:
    """The field `dimension`, where a secure plan leaves it out and data and model tell it; else nothing.

    `data`: shape of a record as the model sees it, and number of outputs; only asked where it is needed.
    """
    model = fields.get("model", Plan.model_fields["model"].default)
    known = fields.get("dataset", "mnist") == "mnist" and aggregation.coordinates(model, 1, 1) is not None
    if fields.get("aggregation") != aggregation.SECURE or fields.get("dimension") is not None or known:
        return {}
    shape, outputs = data()
    found = aggregation.coordinates(model, math.prod(shape), outputs)
    if found is None:
        from nbafl.protocol.vector import flatten  # they bring torch
        from nbafl.simulation.models import build

        found = flatten(build(model, shape, outputs, 0)).numel()
    return {"dimension": found}


def plan_for(plan: Plan, federation: Federation, model: object = None) -> Plan:
    """The plan for data, and perhaps a model, given from Python: what the plan leaves out follows from them.

    Scattering features are left to the digits and the model they were chosen for, and records that have features
    already keep them.
    """
    known: dict[str, Any] = {"clients": federation.clients, **_counted(plan, federation)}
    own_data = federation.source != "mnist" or federation.given_shape is not None
    if own_data or model not in (None, "softmax"):
        known["features"] = "raw"
    return plan.with_facts(**known, **(public_facts(federation) if plan.fitted else {}))


def public_facts(federation: Federation, raw: bool = True) -> dict[str, Any]:
    """What settings follow from: the task and, where a schema says it, whose rows they are and a bound on their norm."""
    if federation.schema is None:
        return {"task": federation.task} if federation.task != CLASSIFICATION else {}
    return schema_facts(federation.schema, raw)


def schema_facts(schema: Schema | None, raw: bool = True) -> dict[str, Any]:
    """The fields of a plan that a schema decides: task, target, person, and the norm bound of `raw` records."""
    if schema is None:
        return {}
    bound = {"feature_norm": schema.norm_bound} if raw and schema.norm_bound is not None else {}
    person = {} if schema.person is None else {"person": schema.person}
    return {"task": schema.task, "target": schema.target, **person, **bound}


def _counted(plan: Plan, federation: Federation) -> dict[str, Any]:
    """Records of each client, unless the plan says how many there are."""
    if plan.gives("samples") or plan.gives("sizes"):
        return {}
    found = federation.units
    equal = found.min() == found.max()
    return {"samples": int(found[0])} if equal else {"sizes": tuple(found.tolist())}
