"""Fields of a plan that may be left out and then follow from the others.

Simple ones follow at once (`with_dependent_defaults`), rounds, lr, record_clip and server_momentum by a fit (`fitted`),
and the hash of the starting weights from their file (`hash_of_init`).

Called where a Plan is made, so that the resolved values stand in the plan, its file and its digest.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import ValidationError

from nbafl import class_weights, fitting, rules
from nbafl.errors import DataError, UsageError
from nbafl.fields import PlanFields
from nbafl.privacy import adversary, calibration, sensitivity
from nbafl.privacy.release import Release

FITTED = ("rounds", "lr", "record_clip", "server_momentum")


def with_dependent_defaults(given: dict[str, Any]) -> dict[str, Any]:
    """Defaults that follow from other fields: steps from the rule, features from the data, clients from sizes."""
    name = given.get("sensitivity", PlanFields.model_fields["sensitivity"].default)
    given = {"local_steps": rules.find(name).local_steps, **given}
    if given.get("dataset", "mnist") != "mnist" or given.get("model", "softmax") != "softmax":
        given = {"features": "raw", **given}
    weights = given.get("class_weights")
    if isinstance(weights, Mapping):
        given = {**given, "class_weights": class_weights.written(weights)}
    sizes = given.get("sizes")
    return {"clients": len(sizes), **given} if isinstance(sizes, (list, tuple)) and sizes else given


def fitted(given: dict[str, Any]) -> dict[str, Any]:
    """The fields that were left out and have a rule, with their values; nothing where no rule applies.

    Only some rules have such settings (`Rule.fits`). Whoever gives both lr and rounds has chosen how far the model moves;
    what is left keeps the table's defaults. Values that the plan will refuse are left for it to refuse.
    """
    known = {name: value for name, value in given.items() if value is not None or name not in FITTED}
    if known.get("lr") is not None and known.get("rounds") is not None:
        return {}
    try:
        fields = PlanFields(**known)
        if not rules.find(fields.sensitivity).fits:
            return {}
        found = _fit(fields, {name: float(known[name]) for name in FITTED if name in known})
    except (ValidationError, UsageError):
        return {}
    return {name: value for name, value in found.items() if name not in known}


def hash_of_init(given: dict[str, Any]) -> dict[str, str]:
    """sha256 of the file with the starting weights, where the plan does not know it yet."""
    path = given.get("init")
    if path is None or given.get("init_sha256") is not None:
        return {}
    try:
        with open(path, "rb") as file:
            return {"init_sha256": hashlib.file_digest(file, "sha256").hexdigest()}
    except OSError as error:
        raise DataError(f"init file {str(path)!r} cannot be read: {error.strerror}.") from None


def _fit(fields: PlanFields, chosen: dict[str, float]) -> dict[str, float]:
    sizes = np.full(fields.clients, fields.samples) if fields.sizes is None else np.asarray(fields.sizes)
    looking = adversary.parse(fields.adversary)
    if fields.aggregation == "secure" and looking.kind == "curious-server":
        looking = adversary.parse("broadcast")  # the server sees sums, whose noise is that of a broadcast
    one = sensitivity.gradient(1.0, sizes, 1.0)
    epsilon = calibration.training_share(fields.epsilon, fields.delta, fields.reserve)

    def worth_of(rounds: int) -> float:
        release = Release(
            sensitivity=one,
            weights=sizes / sizes.sum(),
            rounds=rounds,
            per_round=fields.per_round or fields.clients,
            exposures=min(fields.exposures, rounds),
        )
        noise = calibration.calibrate(fields.calibration, release, epsilon, fields.delta, looking)
        return float(math.sqrt(rounds) / noise.aggregate(release))

    return fitting.fit(
        chosen,
        clients=fields.clients,
        exposures=fields.exposures,
        taps_uploads=looking.uploads == "exposed",
        norm=fitting.typical_norm(fields.feature_norm, fields.features),
        task=fields.task,
        largest_weight=class_weights.largest(class_weights.parse(fields.class_weights or "").values()),
        worth_of=worth_of,
    )
