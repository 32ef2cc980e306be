"""Named starting points for a Plan: fields that an option or a config file may still override."""

from __future__ import annotations

import hashlib
import json
from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    # The setting under which the paper's figures come out (it leaves m, C, L and the local steps unstated).
    "paper": {
        "clients": 50,
        "samples": 100,
        "rounds": 25,
        "features": "raw",
        "epsilon": 50.0,
        "delta": 0.01,
        "exposures": 1,
        "calibration": "paper",
        "adversary": "eavesdropper",
        "sensitivity": "paper",
        "clip": 10.0,
        "model": "mlp",
        "local_steps": 5,
        "lr": 0.1,
        "mu": 0.0,
        "server_momentum": 0.0,
        "eval_every": 1,
    },
    # What a Plan is unless it says otherwise: a guarantee that holds at epsilon 1, for all of MNIST. Rounds, step size,
    # record clip and momentum follow from the adversary and the other public numbers (fitting.py, docs/howto-choose.md).
    "private": {
        "clients": 50,
        "samples": 1200,
        "features": "scattering",
        "epsilon": 1.0,
        "delta": 1e-5,
        "exposures": 1,
        "calibration": "exact",
        "adversary": "eavesdropper",
        "sensitivity": "gradient",
        "model": "softmax",
        "local_steps": 1,
        "eval_every": 10,
    },
}

OF_MNIST = frozenset({"clients", "samples", "features"})
"""What a preset says about MNIST; with data of your own the files decide, and records are no images."""

FIRST_RELEASE: dict[str, Any] = {
    "clients": 50, "per_round": None, "rounds": 25, "samples": 100, "sizes": None, "dataset": "mnist", "target": None,
    "test": None, "partition": "iid", "features": "raw", "epsilon": 50.0, "delta": 0.01, "exposures": 1,
    "calibration": "exact", "adversary": "eavesdropper", "sensitivity": "paper", "clip": 10.0, "record_clip": 1.0,
    "feature_norm": None, "tolerance": None, "adjacency": "replace", "noise": True, "model": "mlp", "local_steps": 5,
    "lr": 0.1, "mu": 0.01, "batch": None, "server_momentum": 0.0, "seed": 0, "device": "auto", "engine": "auto",
    "eval_every": 1,
}  # fmt: skip
"""Every field of a plan of 0.1.0 with the default it had then."""


def digest_of(fields: dict[str, Any]) -> str:
    """sha256 of fields in a canonical order."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
