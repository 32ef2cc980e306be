"""What a GPU machine gives, where only torch and numpy exist: equality with the CPU, then the workloads.

PYTHONPATH=src python3 benchmarks/gpu.py
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import torch

from nbafl.data.federation import Federation
from nbafl.protocol import Training
from nbafl.simulation import Job, Simulator, build, simulate_batch
from nbafl.simulation.workloads import WORKLOADS, measure

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cuda"


def equality() -> None:
    """Four rounds without noise on both devices; the GPU replays a recorded graph from the second round on."""
    for sizes, batch, per_round, model in [
        ([40] * 12, None, None, "mlp"),
        ([40] * 12, 7, 5, "mlp"),
        ([40] * 12, None, 5, "softmax"),
        ([3, 17, 40, 40, 8], 7, None, "mlp"),
        ([3, 17, 40, 40, 8], 7, 3, "mlp"),
    ]:
        federation = Federation.mnist(sizes=sizes, seed=1)
        job = Job(Training(steps=4, batch=batch, clip=9.6), 4, per_round)
        start = build(model, federation.shape, 10, 0)
        cpu, gpu = (Simulator(federation, start, job, device, "dual") for device in ("cpu", DEVICE))
        for _ in range(4):
            left, right = cpu.step(), gpu.step()
        error = float((gpu.vector.cpu() - cpu.vector).norm() / cpu.vector.norm())
        same = (left.clipped_fraction == right.clipped_fraction, left.train_accuracy, right.train_accuracy)
        print(
            f"equality {model} sizes={sizes[:5]} batch={batch} K={per_round}: {error:.2e} {same}", flush=True
        )


def workloads() -> None:
    for tf32 in (False, True):
        for workload in WORKLOADS.values():
            found = measure(workload, DEVICE, tf32=tf32)
            print(
                f"{found.workload} tf32={tf32} {found.engine}: {found.seconds_per_round * 1e3:.3f} ms a round, "
                f"floor {found.floor_seconds * 1e3:.3f} ms, start-up {found.startup_seconds:.1f} s, "
                f"accuracy {found.test_accuracy}, {found.gflops / 1e3:.1f} TFLOP/s",
                flush=True,
            )


def sweep(count: int = 40) -> None:
    """Runs like those of the paper's figures, one after another over a shared recording."""
    federation = Federation.mnist(clients=50, samples=100)
    jobs = [Job(Training(mu=0.0), 25, sigma_uplink=0.01, seed=seed, eval_every=25) for seed in range(count)]
    models = [build("mlp", federation.shape, 10, seed) for seed in range(count)]
    for every in (25, 1):
        spent = []
        for number in (1, count):
            some = [replace(job, eval_every=every) for job in jobs[:number]]
            begun = time.perf_counter()
            simulate_batch(federation, models[:number], some, DEVICE, measure={"train"})
            spent.append(time.perf_counter() - begun)
        each = (spent[1] - spent[0]) / (count - 1) / 25
        print(
            f"sweep, evaluated every {every}: first {spent[0]:.2f} s, then {each * 1e3:.3f} ms a round",
            flush=True,
        )


def where(rounds: int = 200) -> None:
    """Host and device time of a small round."""
    workload = WORKLOADS["W2"]
    federation = workload.federation()
    run = Simulator(federation, build("mlp", (1, 28, 28), 10, 0), workload.job(), DEVICE, measure=())
    for _ in range(5):
        run.step()
    if DEVICE == "cuda":
        graph = next(iter(run.engine.recordings._held.values()))._graph
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(rounds):
            graph.replay()
        torch.cuda.synchronize()
        print(f"W2 graph alone: {(time.perf_counter() - begun) / rounds * 1e3:.3f} ms", flush=True)
    begun = time.perf_counter()
    for _ in range(rounds):
        run.step()
    print(f"W2 whole step: {(time.perf_counter() - begun) / rounds * 1e3:.3f} ms", flush=True)


if __name__ == "__main__":
    print(torch.__version__, torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu", flush=True)
    equality()
    where()
    workloads()
    sweep()
