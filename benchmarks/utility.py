"""Accuracy under real guarantees: the five settings of docs/guarantees.md, trained on MNIST and tested once.

    python benchmarks/utility.py                        all five, three seeds each
    python benchmarks/utility.py --only mlp-1 --seeds 1
    python benchmarks/utility.py --holdout              on a sixth of the training records, as they were chosen

A machine with nothing but torch and numpy cannot make plans; it can run jobs that were written elsewhere:

    python benchmarks/utility.py --write-jobs jobs.json
    PYTHONPATH=src python benchmarks/utility.py --jobs jobs.json
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from nbafl.data.federation import Federation
from nbafl.simulation.job import Job
from nbafl.simulation.models import build
from nbafl.simulation.simulator import Simulator

COMMON: dict[str, Any] = {"clients": 50, "samples": 1200, "delta": 1e-5, "sensitivity": "gradient"}
SCATTERING: dict[str, Any] = {"features": "scattering", "model": "softmax", "server_momentum": 0.9}
SETTINGS: dict[str, dict[str, Any]] = {
    "eavesdropper-1": {
        **SCATTERING,
        "epsilon": 1.0,
        "rounds": 400,
        "lr": 0.4,
        "record_clip": 1.0,
    },  # --preset private
    "eavesdropper-3": {**SCATTERING, "epsilon": 3.0, "rounds": 600, "lr": 0.8, "record_clip": 1.0},
    "curious-server-1": {
        **SCATTERING,
        "epsilon": 1.0,
        "rounds": 200,
        "lr": 0.8,
        "record_clip": 0.2,
        "adversary": "curious-server",
    },
    "curious-server-3": {
        **SCATTERING,
        "epsilon": 3.0,
        "rounds": 200,
        "lr": 0.8,
        "record_clip": 0.4,
        "adversary": "curious-server",
    },
    "mlp-1": {
        "model": "mlp",
        "epsilon": 1.0,
        "rounds": 600,
        "lr": 2.0,
        "record_clip": 0.5,
        "server_momentum": 0.5,
    },
}


def jobs(seeds: int, only: list[str]) -> list[dict[str, Any]]:
    """Every run as plain numbers: the plan's noise is in it, the plan is not needed any more."""
    from nbafl.plan import Plan

    made = []
    for name in only or SETTINGS:
        for seed in range(seeds):
            plan = Plan(**COMMON, **SETTINGS[name], seed=seed, eval_every=10**6)
            made.append(
                {"name": name, "model": plan.model, "features": plan.features, "job": plan.job().to_dict()}
            )
    return made


def accuracy(run: dict[str, Any], holdout: bool) -> float:
    """Train one job and test its last broadcast."""
    job = Job.from_dict(run["job"])
    federation = Federation.mnist(clients=COMMON["clients"], samples=COMMON["samples"], seed=job.seed)
    if holdout:
        federation = federation.holdout(1 / 6, seed=job.seed)
    if run["features"] != "raw":
        federation = federation.with_features(run["features"])
    model = build(run["model"], federation.shape, federation.outputs, job.seed)
    simulator = Simulator(federation, model, job, measure={"test"})
    for _ in range(job.rounds):
        metrics = simulator.step()
    assert metrics.test_accuracy is not None
    return metrics.test_accuracy


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=list(SETTINGS), default=[])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--holdout", action="store_true")
    parser.add_argument("--write-jobs", type=Path)
    parser.add_argument("--jobs", type=Path)
    given = parser.parse_args()
    todo = json.loads(given.jobs.read_text()) if given.jobs else jobs(given.seeds, given.only)
    if given.write_jobs:
        given.write_jobs.write_text(json.dumps(todo))
        return
    found: dict[str, list[float]] = {}
    for run in todo:
        started = time.perf_counter()
        found.setdefault(run["name"], []).append(accuracy(run, given.holdout))
        print(
            f"{run['name']:18} {found[run['name']][-1]:.2%}  {time.perf_counter() - started:.0f} s",
            flush=True,
        )
    for name, values in found.items():
        print(f"{name:18} mean {np.mean(values):.2%} of {len(values)} seeds, lowest {min(values):.2%}")


if __name__ == "__main__":
    main()
