"""The fixed workloads of `nbafl bench`, and how they are measured: seconds a round beside two arithmetic floors.

The first floor is the time that the algorithm's multiplications and additions would take at the rate of one large matrix
product, measured in the same process. It counts the products as the algorithm is written, without inputs that are zero
for every record; where the engine also skips the zeros inside records, a round may take less than that floor.

The second counts only what the engine really multiplies. Products that skip zeros count their non-zero entries, at the
rate of one large sparse product measured in the same process: a multiplication takes longer there than in a dense product.
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
from nbafl.simulation.device_data.features import SparseFeatures
from nbafl.simulation.job import Job
from nbafl.simulation.models import build
from nbafl.simulation.simulator import Simulator, precision

SPARSE_ROWS = 10_000
"""Records of the large sparse product."""


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
    floor_gflop: float
    """Additions and multiplications of a round behind `floor_seconds`, in billions: every product as if dense."""
    work_dense_gflop: float
    """Those of the products that the engine really makes dense, in billions."""
    work_sparse_gflop: float
    """Those of the products that skip zeros, non-zero entries only, in billions."""
    sparse_gflops: float | None
    """Rate of the large sparse product, in GFLOP/s; None where no product skips zeros."""
    work_floor_seconds: float
    """The floor of the work really done: dense products at `gflops`, sparse ones at `sparse_gflops`."""
    ratio_to_work_floor: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def find(name: str) -> Workload:
    """A workload by its name."""
    if name.upper() not in WORKLOADS:
        raise UsageError("workload", name, "one of " + ", ".join([*WORKLOADS, "W5", "W6"]))
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
    seconds, rates, sparse_rates, accuracy = [], [], [], None
    features = simulator.shared.features
    for number in range(workload.rounds):
        if number % max(1, workload.rounds // 5) == 0:
            with precision(tf32):
                rates.append(matmul_rate(simulator.device))
            sparse_rates += [sparse_rate(features)] if isinstance(features, SparseFeatures) else []
        metrics = simulator.step()
        seconds.append(metrics.seconds)
        accuracy = metrics.test_accuracy if metrics.test_accuracy is not None else accuracy
    typical, rate = statistics.median(seconds), statistics.median(rates)
    sparse = statistics.median(sparse_rates) if sparse_rates else None
    count = flops(workload, simulator.engine.name, federation)
    work = work_of(workload, simulator)
    floor, least = count / rate, work.dense / rate + (work.sparse / sparse if sparse else 0.0)
    return Measurement(
        workload.name, typical, floor, typical / floor, max(0.0, startup - typical), peak_memory_mb(),
        accuracy, simulator.engine.name, str(simulator.device), rate / 1e9, count / 1e9, work.dense / 1e9,
        work.sparse / 1e9, None if sparse is None else sparse / 1e9, least, typical / least,
    )  # fmt: skip


@dataclass(frozen=True)
class Products:
    """Multiplications of a round, as the engine's algorithm is written."""

    units: int
    """Width of the first layer."""
    client_rows: int
    """Records that clients multiply with the first layer, or whose gradients they sum: each with all units."""
    test_rows: int
    rest: int
    """Multiplications of everything after the first layer, and with Gram matrices."""


@dataclass(frozen=True)
class Work:
    """Additions and multiplications of a round that are really made: in dense products, and in sparse ones."""

    dense: float
    sparse: float


def products(workload: Workload, engine: str, federation: Federation) -> Products:
    widths = [256, federation.outputs] if workload.model == "mlp" else [federation.outputs]
    later = sum(before * after for before, after in pairwise(widths))
    training, rows = workload.training, workload.samples
    batch = min(training.batch or rows, rows)
    dual = engine == "dual"
    client_rows = 2 * rows if dual else training.steps * 2 * batch
    rest = training.steps * 3 * batch * later  # forward, weight gradient, gradient passed back
    if dual:
        rest += (training.steps - 1) * batch * rows * widths[0]
    unseen = workload.eval_every > 1 or federation.test is None
    test_rows = 0 if unseen or federation.test is None else len(federation.test[1])
    clients = workload.per_round or workload.clients
    return Products(widths[0], clients * client_rows, test_rows, clients * rest + test_rows * later)


def flops(workload: Workload, engine: str, federation: Federation) -> float:
    """Additions and multiplications of a round's products, every one as if dense."""
    count = products(workload, engine, federation)
    inputs = used_inputs(federation.x) + 1
    return 2.0 * ((count.client_rows + count.test_rows) * inputs * count.units + count.rest)


def work_of(workload: Workload, simulator: Simulator) -> Work:
    """What the chosen engine multiplies: the non-zero entries where it skips zeros, everything elsewhere."""
    federation, features = simulator.data, simulator.shared.features
    assert isinstance(federation, Federation)
    count = products(workload, simulator.engine.name, federation)
    if not isinstance(features, SparseFeatures):
        return Work(flops(workload, simulator.engine.name, federation), 0.0)
    dense_rows, entries = 0.0, count.test_rows * features.entries_per_record
    if _skips_zeros(workload, simulator.engine.name, features):
        entries += count.client_rows * features.entries_per_record
    else:
        dense_rows = count.client_rows
    inputs = used_inputs(federation.x) + 1
    return Work(2.0 * (dense_rows * inputs * count.units + count.rest), 2.0 * entries * count.units)


def _skips_zeros(workload: Workload, engine: str, features: SparseFeatures) -> bool:
    """Whether clients' products with sparse features are sparse ones."""
    if engine == "plain":
        return workload.training.batch is None
    everyone = workload.per_round in (None, workload.clients)
    return engine == "dual" and (everyone or features.alone(workload.samples))


def sparse_rate(features: SparseFeatures) -> float:
    """FLOP/s of one large sparse product on all cores (the best of three), counting non-zero entries.

    Thousands of the clients' records with a table of the first layer's width, through the operation that the engine
    uses; it is the fastest sparse product in torch (2.4 times its CSR product).
    """
    layer, piece = features.layer, features.piece(0, min(features.records, SPARSE_ROWS))
    table = torch.rand(layer.inputs + layer.bias, layer.outputs)
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        piece.times(table)
        best = min(best, time.perf_counter() - started)
    return 2 * len(piece.column) * layer.outputs / best


def used_inputs(x: np.ndarray) -> int:
    """Features that are not zero for every record."""
    used = np.zeros(int(np.prod(x.shape[1:])), dtype=bool)
    for start in range(0, len(x), 4096):
        used |= x[start : start + 4096].reshape(-1, len(used)).any(axis=0)
    return int(used.sum())


def matmul_rate(device: torch.device) -> float:
    """FLOP/s of one large matrix product on all cores (the best of three), or on the GPU in the precision set there."""
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
