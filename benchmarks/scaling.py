"""How the cost of a round grows: in clients N, participants K, records m, parameters d, rounds T and local steps S.

Writes scaling.json and scaling.png (log-log) beside this file. Each point is the median of a few rounds; run it on an
idle machine:  .venv/bin/python benchmarks/scaling.py
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from torch import nn

from nbafl.data.federation import Federation
from nbafl.protocol import Training
from nbafl.simulation import Job, Simulator, build

HERE = Path(__file__).parent
BASE = {"clients": 50, "per_round": None, "samples": 100, "hidden": 256, "steps": 5}
SWEEPS: dict[str, tuple[str, list[int]]] = {
    "N": ("clients, all take part", [10, 20, 50, 100, 200, 500]),
    "K": ("participants of a million clients (softmax regression, 10 records)", [10, 100, 1000, 10_000]),
    "population": ("clients of which 1,000 take part", [10_000, 100_000, 1_000_000, 10_000_000]),
    "m": ("records a client", [10, 30, 100, 300, 1000]),
    "d": ("parameters (hidden units 16 … 1024)", [16, 64, 256, 1024]),
    "S": ("local steps", [1, 2, 5, 10, 20, 50]),
    "T": ("rounds (whole run)", [5, 10, 25, 50, 100]),
}


def simulator(clients: int, per_round: int | None, samples: int, hidden: int, steps: int) -> Simulator:
    federation = Federation.mnist(clients=clients, samples=samples)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    job = Job(Training(steps=steps, clip=20.0), 10_000, per_round, sigma_uplink=0.001, eval_every=10_000)
    return Simulator(federation, model, job, measure=())


def population(clients: int, per_round: int) -> Simulator:
    federation = Federation.population(clients=clients, samples=10)
    job = Job(Training(clip=20.0), 10_000, per_round, sigma_uplink=0.001, eval_every=10_000)
    return Simulator(federation, build("softmax", (1, 28, 28), 10, 0), job, measure=())


def typical(run: Simulator, budget: float = 2.0) -> float:
    """Median seconds of a round, over as many rounds as fit the budget (at least five)."""
    run.step()
    run.step()
    seconds, begun = [], time.perf_counter()
    while len(seconds) < 5 or (time.perf_counter() - begun < budget and len(seconds) < 200):
        seconds.append(run.step().seconds)
    return statistics.median(seconds)


def whole(rounds: int) -> float:
    run = simulator(**BASE)
    run.step()
    begun = time.perf_counter()
    for _ in range(rounds):
        run.step()
    return time.perf_counter() - begun


POINTS: dict[str, Callable[[int], tuple[float, float]]] = {
    "N": lambda n: (n, typical(simulator(**{**BASE, "clients": n}))),
    "K": lambda k: (k, typical(population(1_000_000, k))),
    "population": lambda n: (n, typical(population(n, 1000))),
    "m": lambda m: (m, typical(simulator(**{**BASE, "samples": m}))),
    "d": lambda h: (785 * h + 10 * (h + 1), typical(simulator(**{**BASE, "hidden": h}))),
    "S": lambda s: (s, typical(simulator(**{**BASE, "steps": s}))),
    "T": lambda t: (t, whole(t)),
}


def main() -> None:
    results = {}
    for name, (label, values) in SWEEPS.items():
        points = [POINTS[name](value) for value in values]
        results[name] = {"label": label, "points": points}
        print(name, label, [(x, round(seconds, 5)) for x, seconds in points], flush=True)
    (HERE / "scaling.json").write_text(json.dumps(results, indent=1) + "\n")
    plot(results)


def plot(results: dict[str, dict]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 4, figsize=(15, 7), layout="constrained")
    for axis, (name, found) in zip(axes.flat, results.items(), strict=False):
        x, y = zip(*found["points"], strict=True)
        axis.loglog(x, y, "o-")
        axis.loglog(x, [y[-1] * value / x[-1] for value in x], ":", color="grey", label="proportional")
        axis.set_title(f"{name}: {found['label']}", fontsize=9)
        axis.set_ylabel("seconds" if name == "T" else "seconds a round")
        axis.grid(alpha=0.3)
    axes.flat[0].legend()
    axes.flat[-1].axis("off")
    figure.savefig(HERE / "scaling.png", dpi=110)


if __name__ == "__main__":
    main()
