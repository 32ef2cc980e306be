"""Named starting points for a Plan: fields that an option or a config file may still override."""

from __future__ import annotations

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    # The setting under which the paper's figures come out (it leaves m, C, L and the local steps unstated).
    "paper": {
        "clients": 50,
        "samples": 100,
        "rounds": 25,
        "epsilon": 50.0,
        "delta": 0.01,
        "calibration": "paper",
        "sensitivity": "paper",
        "clip": 10.0,
        "mu": 0.0,
        "local_steps": 5,
        "lr": 0.1,
    },
}
