"""Going on with a finished run: the fields of a plan that starts where it ended and counts what it cost."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from nbafl import continuing
from nbafl.errors import DataError, Refused, UsageError
from nbafl.evaluation import Evaluation
from nbafl.folders import answers
from nbafl.folders.runs import MODEL, RunFolder
from nbafl.privacy import adversary
from nbafl.privacy.release import Earlier

SAME = (
    "clients", "samples", "sizes", "dataset", "target", "task", "ignore", "person", "partition", "features",
    "feature_norm", "model", "sensitivity", "adjacency", "seed",
)  # fmt: skip
"""What a run that goes on cannot change: whose data they are, what is protected, and the model."""


def going_on(folder: str | Path, **changes: Any) -> dict[str, Any]:
    """Fields for a plan that goes on with the run in `folder`: its own with `changes`, its model, and its price."""
    run = RunFolder.load(folder)
    if not run.finished:
        raise DataError(
            f"{str(folder)!r} is not finished: end it with nbafl run --resume before going on from it."
        )
    before = run.plan
    changed = [name for name in SAME if name in changes and changes[name] != getattr(before, name)]
    if changed:
        told = f"{getattr(before, changed[0])!r} as in the run it goes on with"
        raise UsageError(changed[0], changes[changed[0]], told)
    if not before.noise or before.drawn < before.clients or before.secure_sums() is not None:
        raise Refused(
            f"{str(folder)!r} cannot be continued: its price adds up with another run's only where every client took "
            "part in every round, with noise and plain aggregation."
        )
    if before.rule.conditional:
        raise Refused(
            f"{str(folder)!r} cannot be continued: its guarantee rests on a premise that is not proved "
            f"({before.sensitivity})."
        )
    named = adversary.parse(str(changes.get("adversary", before.adversary)))
    model = run.path / MODEL
    found = hashlib.sha256(model.read_bytes()).hexdigest()
    if found != run.privacy.get("model_digest"):
        raise Refused(f"{str(model)!r} is not the model that this run's privacy statement is about.")
    own = Earlier(
        before.digest(),
        found,
        before.rounds,
        before.exposures,
        continuing.price(before, [named], answers.read(run.path, before), Evaluation.of(run.facts)),
        "" if before.continues else before.init_sha256 or "",
    )
    return {
        **before.model_dump(),
        **changes,
        "init": str(model),
        "init_sha256": found,
        "continues": (*(before.continues or ()), own),
    }
