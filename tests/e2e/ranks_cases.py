"""Run by torchrun (or alone): small trainings of every kind, and the sha256 of the model each ends in.

torchrun --nproc-per-node R tests/e2e/ranks_cases.py FOLDER
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import nbafl
from nbafl.data.federation import Federation
from nbafl.protocol import Training
from nbafl.simulation import Simulator, ranks
from nbafl.simulation.cores import Cores
from nbafl.simulation.engines.dealt import Shared
from nbafl.simulation.job import Job
from nbafl.simulation.models import build

COMMON: dict[str, Any] = {
    "rounds": 3,
    "samples": 40,
    "features": "raw",
    "lr": 0.1,
    "server_momentum": 0.5,
    "epsilon": 8.0,
    "delta": 1e-3,
    "device": "cpu",
}
LOCAL: dict[str, Any] = {"sensitivity": "paper", "model": "mlp", "local_steps": 3}
CASES: dict[str, dict[str, Any]] = {
    "dual": {**LOCAL, "engine": "dual"},
    "dual, drawn": {**LOCAL, "engine": "dual", "per_round": 7},
    "dual, no later layers": {**LOCAL, "engine": "dual", "model": "softmax"},
    "plain": {**LOCAL, "engine": "plain"},
    "vmap": {**LOCAL, "engine": "vmap"},
    "vmap, minibatches": {**LOCAL, "engine": "vmap", "batch": 16},
    "clients": {**LOCAL, "engine": "clients", "batch": 16},
    "one step, persons": {"sensitivity": "gradient", "model": "softmax", "person": "patient"},
    "one step, dropout": {"sensitivity": "gradient", "model": "mlp"},
    "one step": {"sensitivity": "gradient", "model": "softmax"},
    "one step, network": {"sensitivity": "gradient", "model": "mlp", "per_round": 5},
    "solve": {
        "sensitivity": "proximal",
        "model": "softmax",
        "feature_norm": 4.0,
        "mu": 0.1,
        "tolerance": 1e-3,
    },
    "unequal": {**LOCAL, "engine": "dual", "sizes": tuple(range(20, 31))},
    "unequal, one step": {"sensitivity": "gradient", "model": "softmax", "sizes": tuple(range(20, 31))},
}


def federation(sizes: list[int], persons: bool = False) -> Federation:
    rng = np.random.default_rng(11)
    centres = rng.normal(size=(4, 12))

    def part(count: int) -> tuple[np.ndarray, np.ndarray]:
        y = rng.integers(0, 4, count)
        return (centres[y] + rng.normal(size=(count, 12))).astype(np.float32), y

    groups = [np.arange(size) // 2 for size in sizes] if persons else None
    return Federation.from_arrays(clients=[part(size) for size in sizes], test=part(50), groups=groups)


def digest(name: str, folder: Path) -> str:
    fields = {**COMMON, "clients": 11, **CASES[name]}
    if "sizes" in fields:
        del fields["samples"]
    persons = "person" in fields
    if persons:
        fields["samples"] //= 2
    plan = nbafl.Plan(**fields)
    data = federation([40] * 11 if persons else plan.client_sizes.tolist(), persons)
    model = None
    if name.endswith("dropout"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(12, 8), nn.Dropout(0.3), nn.Linear(8, 4))
    run = nbafl.simulate(plan, data, model, out=folder / name.replace(", ", "-"), report=False)
    return (
        hashlib.sha256((run.path / "model.safetensors").read_bytes()).hexdigest()
        if ranks.number() == 0
        else ""
    )


def as_on_gpus() -> list[float]:
    """Weights after two rounds in which every rank trains a share and one all-reduce adds the shares."""
    data = federation([40] * 11)
    job = Job(Training(steps=3, clip=1.0), rounds=2, per_round=7, sigma_uplink=0.01)
    run = Simulator(data, build("mlp", data.shape, 4, 0), job, "cpu")
    run.engine.cores = Cores(1, dealt=False)
    run.engine = Shared(run.engine)
    for _ in range(2):
        run.step()
    return run.vector.tolist()


def main() -> None:
    folder = Path(sys.argv[1])
    found: dict[str, Any] = {name: digest(name, folder) for name in CASES}
    found["as on GPUs"] = as_on_gpus()
    if ranks.number() == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
