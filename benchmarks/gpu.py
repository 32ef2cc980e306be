"""What a GPU machine gives, where only torch and numpy exist: equality with the CPU, then the workloads.

PYTHONPATH=src python3 benchmarks/gpu.py
"""

from __future__ import annotations

import sys
import time

import torch

from gpu_check import check
from nbafl.data.federation import Federation
from nbafl.protocol import Training
from nbafl.simulation import Job, RoundMetrics, Simulator, build, simulate_batch
from nbafl.simulation.workloads import WORKLOADS, measure

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cuda"


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


def sweep(count: int = 40, rounds: int = 25, warm: int = 3) -> None:
    """Runs like those of the paper's figures, one after another over a shared recording.

    Timed inside one batch, from the end of the `warm`-th run to the end of the last: the runs before it load kernels and
    record graphs, which no difference between two batches cancels.
    """
    federation = Federation.mnist(clients=50, samples=100)
    models = [build("mlp", federation.shape, 10, seed) for seed in range(count)]
    for every in (rounds, 1):
        jobs = [
            Job(Training(mu=0.0), rounds, sigma_uplink=0.01, seed=seed, eval_every=every)
            for seed in range(count)
        ]
        ends: list[float] = []

        def note(_: int, metrics: RoundMetrics, ends: list[float] = ends) -> None:
            if metrics.round == rounds:
                ends.append(time.perf_counter())

        begun = time.perf_counter()
        simulate_batch(federation, models, jobs, DEVICE, measure={"train"}, on_round=note)
        each = (ends[-1] - ends[warm - 1]) / (count - warm) / rounds
        print(
            f"sweep, evaluated every {every}: {warm} runs to warm up {ends[warm - 1] - begun:.2f} s, "
            f"then {each * 1e3:.3f} ms a round",
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
        graph = next(iter(run.engine._recordings._held.values()))._graph
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
    different = check(DEVICE)
    where()
    workloads()
    sweep()
    sys.exit(1 if different else 0)
