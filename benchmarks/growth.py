"""How one run grows over processes, a sweep over workers, and what a model of both predicts where we cannot measure.

    python benchmarks/growth.py            # on an idle machine with 2 cores: about ten minutes
    python benchmarks/growth.py --draw     # the picture again, from growth.json

Measured here: W1 to W3 by one process with one and with two threads and by two ranks with one thread each (the same work:
strong scaling), twice the participants on two ranks (weak scaling), what one gather costs by its size, and a sweep of
single-threaded runs by one and by two workers. The model of a round on R ranks:

    seconds(K, R) = fixed + K work / R + latency + bytes / bandwidth

with `fixed` and `work` from rounds of few and of many participants in one process, latency and bandwidth from gathers.
For GPUs nothing is measured here: `work` and `fixed` are those of one H200 (README.md), the wire is assumed and says so.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
REPEATS = 2
SIZES = (1_000, 100_000, 800_000, 8_000_000, 32_000_000)
"""Bytes that a rank sends in one gather."""
ASSUMED_GPU = {"latency": 30e-6, "bandwidth": 150e9}
"""An all-reduce of nccl within one machine over NVLink; an assumption, not a measurement."""
H200 = {"fixed": 0.30e-3, "work": (0.63e-3 - 0.30e-3) / 1000, "bytes": 4 * 7850}
"""W4's model on one H200 (README.md: 0.63 ms for 1,000 participants, of which launching kernels is about half)."""


def rounds(name: str, factor: int) -> None:
    """A child: the median seconds of a round of a workload with `factor` times its participants, printed by rank 0."""
    from nbafl.simulation import Simulator, build, ranks
    from nbafl.simulation.workloads import WORKLOADS

    ranks.begin()
    workload = WORKLOADS[name]
    many = workload.clients * factor if workload.per_round is None else workload.clients
    samples = workload.samples if many * workload.samples <= 60_000 else 60_000 // many
    drawn = workload.per_round and workload.per_round * factor
    workload = replace(workload, clients=many, samples=samples, per_round=drawn)
    data = ranks.once_per_node(workload.federation)
    model = build(workload.model, data.shape, data.outputs, seed=0)
    run = Simulator(data, model, workload.job(), "cpu", measure={"test"})
    for _ in range(workload.warm):
        run.step()
    seconds = [run.step().seconds for _ in range(workload.rounds)]
    if ranks.number() == 0:
        print(json.dumps(statistics.median(seconds)))


def participants(count: int) -> None:
    """A child: the median seconds of a round with `count` participants of a million clients, softmax regression."""
    from nbafl.data.federation import Federation
    from nbafl.protocol import Training
    from nbafl.simulation import Job, Simulator, build, ranks

    ranks.begin()
    data = Federation.population(clients=1_000_000, samples=10, seed=0)
    job = Job(Training(clip=20.0), 10_000, count, sigma_uplink=0.001, eval_every=10_000)
    run = Simulator(data, build("softmax", data.shape, 10, 0), job, "cpu", measure=())
    for _ in range(3):
        run.step()
    seconds = [run.step().seconds for _ in range(9)]
    if ranks.number() == 0:
        print(json.dumps(statistics.median(seconds)))


def gathers() -> None:
    """A child: seconds of a gather by the bytes every rank sends."""
    from nbafl.simulation import ranks

    ranks.begin()
    found = []
    for size in SIZES:
        content, seconds = np.zeros(size, dtype=np.uint8), []
        for _ in range(15):
            started = time.perf_counter()
            ranks.gather(content)
            seconds.append(time.perf_counter() - started)
        found.append(statistics.median(seconds))
    if ranks.number() == 0:
        print(json.dumps(found))


def sweep(workers: int) -> None:
    """A child: seconds of a sweep of 16 single-threaded runs, workers' start included."""
    import nbafl

    os.environ["OMP_NUM_THREADS"] = "1"
    plan = nbafl.Plan(
        clients=20, samples=500, rounds=200, features="raw", model="softmax", sensitivity="gradient",
        local_steps=1, lr=0.5, epsilon=1.0, delta=1e-5, device="cpu",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        nbafl.sweep(plan, {"epsilon": [1, 2, 4, 8]}, seeds=4, out=Path(folder) / "sweep", workers=workers)
        print(json.dumps(time.perf_counter() - started))


def child(ranks: int, threads: int, *words: object) -> list[float] | float:
    """The last line that this script prints when run with these words on so many ranks."""
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    )
    command = [sys.executable, *launcher, __file__, *map(str, words)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def measured() -> dict[str, object]:
    """All figures; configurations take turns, and the best of a few medians counts on a machine with neighbours."""
    found: dict[str, object] = {}
    ways = {
        "1 thread": (1, 1, 1),
        "2 threads": (1, 2, 1),
        "2 ranks": (2, 1, 1),
        "2 ranks, twice the work": (2, 1, 2),
    }
    for name in ("W1", "W2", "W3"):
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(REPEATS):
            for way, (ranks, threads, factor) in ways.items():
                seconds[way].append(child(ranks, threads, "--rounds", name, factor))  # type: ignore[arg-type]
        found[name] = {way: min(each) for way, each in seconds.items()}
        print(name, found[name], flush=True)
    counts = (100, 1_000, 10_000, 100_000)
    for ranks in (1, 2):
        each = [[child(ranks, 1, "--participants", count) for _ in range(2)] for count in counts]
        found[f"participants, {ranks} ranks"] = [
            [count, min(pair)] for count, pair in zip(counts, each, strict=True)
        ]
        print(ranks, "ranks", found[f"participants, {ranks} ranks"], flush=True)
    found["gather"] = list(zip(SIZES, child(2, 1, "--gathers"), strict=True))  # type: ignore[arg-type]
    turns = [(child(1, 1, "--sweep", 1), child(1, 1, "--sweep", 2)) for _ in range(2)]
    found["sweep"] = {"1 worker": min(one for one, _ in turns), "2 workers": min(two for _, two in turns)}  # type: ignore[type-var]
    print(found["gather"], found["sweep"], flush=True)
    return found


def constants(found: dict) -> dict[str, float]:
    """The model's constants: least squares on relative deviations, each from its own measurements."""
    count, seconds = np.array(found["participants, 1 ranks"]).T
    fixed, work = _line(count, seconds)
    latency, per_byte = _line(*np.array(found["gather"]).T)
    return {"fixed": fixed, "work": work, "latency": latency, "bandwidth": 1 / per_byte, "bytes": 4 * 7850}


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """a + b x with a, b >= 0 and small relative deviations."""
    from scipy.optimize import nnls

    solved, _ = nnls(np.stack([1 / y, x / y], axis=1), np.ones(len(x)))
    return float(solved[0]), float(solved[1])


def predicted(known: dict[str, float], count: np.ndarray, ranks: int) -> np.ndarray:
    """Seconds of a round with `count` participants on so many ranks."""
    wire = 0.0 if ranks == 1 else known["latency"] + known["bytes"] / known["bandwidth"]
    return known["fixed"] + count * known["work"] / ranks + wire


def draw(found: dict) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.6), layout="constrained")
    ways = ("1 thread", "2 threads", "2 ranks", "2 ranks, twice the work")
    for place, name in enumerate(("W1", "W2", "W3")):
        for number, way in enumerate(ways):
            if name == "W1" and "twice" in way:
                continue  # twice the clients would share the same 60,000 records
            value = found[name]["1 thread"] / found[name][way] * (2 if "twice" in way else 1)
            bar = left.bar(place + 0.2 * (number - 1.5), value, 0.18, color=f"C{number}")
            left.bar_label(bar, fmt="%.2f", fontsize=8)
            if place == 1:
                bar.set_label(way)
    left.set_xticks(range(3), ("W1", "W2", "W3"))
    left.set_ylabel("work per second, one thread = 1")
    left.set_title("Measured: one run on two cores")
    left.legend(fontsize=8, ncols=2, loc="upper center")
    left.set_ylim(0, 3)
    here, count = constants(found), np.geomspace(100, 1e6, 60)
    gpu = {**H200, **ASSUMED_GPU}
    for number, ranks in enumerate((1, 2)):
        x, y = zip(*found[f"participants, {ranks} ranks"], strict=True)
        right.loglog(x, y, "o", color=f"C{number}", label=f"{ranks} CPU rank{'s' * (ranks > 1)}, measured")
        right.loglog(
            count, predicted(here, count, ranks), "--", color=f"C{number}", label="the model", linewidth=1
        )
    right.loglog(
        count, predicted(here, count, 64), "--", color="C2", linewidth=1, label="64 CPU ranks, predicted"
    )
    right.loglog(count, predicted(gpu, count, 1), ":", color="C3", label="1 H200, predicted from one point")
    right.loglog(count, predicted(gpu, count, 8), ":", color="C4", label="8 H200, predicted (wire assumed)")
    right.set_xlabel("participants a round (10 records, softmax regression)")
    right.set_ylabel("seconds a round")
    right.set_title("Points are measured, lines are the model")
    right.grid(alpha=0.3)
    right.legend(fontsize=8)
    figure.savefig(HERE / "growth.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", nargs=2)
    parser.add_argument("--participants", type=int)
    parser.add_argument("--gathers", action="store_true")
    parser.add_argument("--sweep", type=int)
    parser.add_argument("--draw", action="store_true")
    asked = parser.parse_args()
    if asked.rounds:
        rounds(asked.rounds[0], int(asked.rounds[1]))
    elif asked.participants:
        participants(asked.participants)
    elif asked.gathers:
        gathers()
    elif asked.sweep:
        sweep(asked.sweep)
    else:
        place = HERE / "growth.json"
        if not asked.draw:
            place.write_text(json.dumps(measured(), indent=1) + "\n")
        found = json.loads(place.read_text())
        print(json.dumps({"constants": constants(found)}))
        draw(found)


if __name__ == "__main__":
    main()
