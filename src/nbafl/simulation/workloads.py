"""The fixed workloads of `nbafl bench`, and how they are measured: seconds a round beside the arithmetic floor.

The floor is the time that the algorithm's multiplications and additions would take at the rate of one large matrix
product, measured in the same process. It counts the products as the algorithm is written, without inputs that are zero
for every record; where the engine also skips the zeros inside records, a round may take less than that floor.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from nbafl.data.federation import Federation
from nbafl.errors import UsageError
from nbafl.protocol import Training
from nbafl.simulation.job import Job
from nbafl.simulation.models import build
from nbafl.simulation.simulator import Simulator


@dataclass(frozen=True)
class Workload:
    """Who trains what; the table in PEERS.md."""

    name: str
    sentence: str
    clients: int
    samples: int
    per_round: int | None
    model: str
    training: Training
    eval_every: int
    rounds: int
    """Rounds to measure."""
    warm: int
    """Rounds to run before measuring."""
    population: bool = False
    peer_rounds: int = 10
    """Rounds that other simulators are measured for."""

    def federation(self) -> Federation:
        if self.population:
            return Federation.population(clients=self.clients, samples=self.samples, seed=0)
        return Federation.mnist(clients=self.clients, samples=self.samples, seed=0)

    def job(self) -> Job:
        """Clip 20 and noise 0.001 at every client, as in every peer's run."""
        total = self.warm + self.rounds
        return Job(self.training, total, self.per_round, sigma_uplink=0.001, eval_every=self.eval_every)


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            "W1",
            "50 clients of 1,200 digits, all take part, 5 full-batch steps",
            50, 1200, None, "mlp", Training(steps=5, mu=0.01, clip=20.0), 1, 10, 2,
        ),
        Workload(
            "W2",
            "1,000 clients of 60 digits, 100 take part, one epoch in batches of 20",
            1000, 60, 100, "mlp", Training(steps=3, mu=0.0, batch=20, clip=20.0), 10, 60, 30,
        ),
        Workload(
            "W3",
            "50 clients of 100 digits, all take part, 20 full-batch steps",
            50, 100, None, "mlp", Training(steps=20, mu=0.01, clip=20.0), 1, 40, 5,
        ),
        Workload(
            "W4",
            "a million clients of 10 digits, 1,000 take part, softmax regression",
            1_000_000, 10, 1000, "softmax", Training(steps=5, mu=0.01, clip=20.0), 10, 40, 5, population=True,
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Measurement:
    """What a workload took on this machine."""

    workload: str
    seconds_per_round: float
    floor_seconds: float
    ratio_to_floor: float
    startup_seconds: float
    memory_mb: float
    test_accuracy: float | None
    engine: str
    device: str
    gflops: float
    """Rate of the large matrix product, in GFLOP/s."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def find(name: str) -> Workload:
    """A workload by its name."""
    if name.upper() not in WORKLOADS:
        raise UsageError("workload", name, "one of " + ", ".join(WORKLOADS))
    return WORKLOADS[name.upper()]


def measure(
    workload: Workload, device: str = "auto", engine: str = "auto", tf32: bool = False
) -> Measurement:
    """Run a workload: start-up, warm-up, then the median round, with the matrix product timed in between."""
    started = time.perf_counter()
    federation = workload.federation()
    model = build(workload.model, federation.shape, federation.outputs, seed=0)
    simulator = Simulator(federation, model, workload.job(), device, engine, {"test"}, tf32=tf32)
    simulator.step()
    startup = time.perf_counter() - started
    for _ in range(workload.warm - 1):
        simulator.step()
    seconds, rates, accuracy = [], [], None
    for number in range(workload.rounds):
        if number % max(1, workload.rounds // 5) == 0:
            rates.append(matmul_rate(simulator.device))
        metrics = simulator.step()
        seconds.append(metrics.seconds)
        accuracy = metrics.test_accuracy if metrics.test_accuracy is not None else accuracy
    typical, rate = statistics.median(seconds), statistics.median(rates)
    floor = flops(workload, simulator.engine.name, federation) / rate
    return Measurement(
        workload.name, typical, floor, typical / floor, max(0.0, startup - typical), peak_memory_mb(),
        accuracy, simulator.engine.name, str(simulator.device), rate / 1e9,
    )  # fmt: skip


def flops(workload: Workload, engine: str, federation: Federation) -> float:
    """Additions and multiplications of a round's products, as the engine's algorithm is written."""
    inputs = used_inputs(federation.x) + 1
    widths = [inputs, 256, federation.outputs] if workload.model == "mlp" else [inputs, federation.outputs]
    first = widths[0] * widths[1]
    later = sum(before * after for before, after in pairwise(widths[1:]))
    training, rows = workload.training, workload.samples
    batch = min(training.batch or rows, rows)
    if engine == "dual":
        client = 2 * rows * first + (training.steps - 1) * batch * rows * widths[1]
    else:
        client = training.steps * 2 * batch * first
    client += training.steps * 3 * batch * later  # forward, weight gradient, gradient passed back
    test = (
        0 if workload.eval_every > 1 or federation.test is None else len(federation.test[1]) * (first + later)
    )
    return 2.0 * ((workload.per_round or workload.clients) * client + test)


def used_inputs(x: np.ndarray) -> int:
    """Features that are not zero for every record."""
    used = np.zeros(int(np.prod(x.shape[1:])), dtype=bool)
    for start in range(0, len(x), 4096):
        used |= x[start : start + 4096].reshape(-1, len(used)).any(axis=0)
    return int(used.sum())


def matmul_rate(device: torch.device) -> float:
    """FLOP/s of one large float32 matrix product on all cores (the best of three), or on the GPU."""
    size = 2048 if device.type == "cpu" else 8192
    left, right = (torch.rand(size, size, device=device) for _ in range(2))
    best = float("inf")
    for _ in range(3):
        _wait(device)
        started = time.perf_counter()
        torch.mm(left, right)
        _wait(device)
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best


def peak_memory_mb() -> float:
    """The largest resident size this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
