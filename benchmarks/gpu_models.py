"""Any model on a GPU: every kind of model against the CPU, then W5 and W6, and what keys the noise. Needs torch and numpy.

    PYTHONPATH=src:. python3 benchmarks/gpu_models.py [cuda [--speed]]

Each model of tests/zoo.py makes three rounds (plain, recorded, replayed) under `paper`, `client` and `gradient` on both
devices; a line says how far the weights are apart, relative to how far they moved. Exits 1 if any differs.
"""

from __future__ import annotations

import sys
import warnings

import numpy as np
import torch
from tests.zoo import CLASSES, ZOO, records

from nbafl.data.federation import Federation
from nbafl.protocol import Training, flatten
from nbafl.simulation import Job, Simulator, model_workloads

ROUNDS = 3
RULES = {
    "paper": Training(rule="paper", steps=3, lr=0.1, mu=0.3, batch=4, clip=3.0),
    "client": Training(rule="client", steps=2, lr=0.1, mu=0.0, clip=0.05),
    "gradient": Training(rule="gradient", steps=1, lr=0.5, record_clip=0.5),
}


def federation() -> Federation:
    x, y = records(21, 5)
    parts = [(x[a:b].numpy(), y[a:b].numpy()) for a, b in ((0, 6), (6, 15), (15, 21))]
    return Federation.from_arrays(parts, outputs=CLASSES)


def difference(name: str, rule: str, device: str) -> tuple[float, str]:
    torch.manual_seed(2)
    model = ZOO[name]()
    runs = [
        Simulator(federation(), model, Job(RULES[rule], rounds=ROUNDS), where) for where in ("cpu", device)
    ]
    for run in runs:
        for _ in range(ROUNDS):
            run.step()
    moved = (runs[0].vector - flatten(model)).norm()
    return float((runs[1].vector.cpu() - runs[0].vector).norm() / moved), runs[1].engine.name


def check(device: str) -> int:
    """Dropout draws other numbers on another device, so it only has to train."""
    failed = 0
    for name in ZOO:
        for rule in RULES:
            try:
                found, engine = difference(name, rule, device)
            except Exception as error:  # the other models are still worth knowing
                failed += 1
                print(f"FAILED {name}, {rule}: {type(error).__name__}: {error}", flush=True)
                continue
            wrong = not (found <= 1e-3 or (name == "dropout" and np.isfinite(found)))
            failed += wrong
            print(f"{'FAILED' if wrong else 'ok    '} {name}, {rule}, {engine}: {found:.1e}", flush=True)
    return failed


def seeds(device: str) -> int:
    """Philox keeps both halves of a 64-bit seed."""
    drawn = [
        torch.randn(8, generator=torch.Generator(device).manual_seed(seed), device=device)
        for seed in (5, 5 + 2**32, 5 + 2**62)
    ]
    same = sum(
        torch.equal(a, b) for a, b in ((drawn[0], drawn[1]), (drawn[0], drawn[2]), (drawn[1], drawn[2]))
    )
    print(
        f"{'FAILED' if same else 'ok    '} seeds that differ in their high bits draw different numbers",
        flush=True,
    )
    return same


def speed(device: str) -> None:
    for tf32 in (False, True):
        for name in ("W6", "W5"):
            for each in model_workloads.measure(name, device, tf32):
                others = ", ".join(
                    f"{who} {'–' if theirs is None else f'{theirs * 1e3:.2f} ms'}"
                    for who, theirs in each.others.items()
                )
                print(f"{name} tf32={tf32} {each.model}: {each.seconds * 1e3:.2f} ms, {others}", flush=True)


if __name__ == "__main__":
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    warnings.simplefilter("ignore")
    print(torch.__version__, torch.cuda.get_device_name() if device == "cuda" else "cpu", flush=True)
    speed(device)
    if "--speed" in sys.argv:
        sys.exit(0)
    different = check(device) + (seeds(device) if device == "cuda" else 0)
    print(f"{different} failed" if different else "All equal the CPU.", flush=True)
    sys.exit(1 if different else 0)
