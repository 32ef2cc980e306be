"""Peak memory of one upload under `gradient` with a model of 10 million weights: 600, 6,000 and 60,000 records.

    PYTHONPATH=src python benchmarks/model_memory.py [tokens | taps | chain]

Each measurement is a process of its own; what a step adds must not grow with the records, because chunks bound it.
`tokens` is an EmbeddingBag with a linear layer (wide but cheap), `taps` a convolution with two linear layers, `chain` two
linear layers alone. The last two multiply 10 million weights for every record: minutes.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
import time

import numpy as np

from nbafl.data.federation import Federation

RECORDS = (600, 6_000, 60_000)
TOKENS, LENGTH = 1_249_000, 24


def model(way: str):
    from torch import nn

    if way == "chain":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 12_600), nn.ReLU(), nn.Linear(12_600, 10))
    if way == "taps":
        convolution = [nn.Conv2d(1, 8, 5, stride=3), nn.ReLU(), nn.Flatten()]
        return nn.Sequential(*convolution, nn.Linear(512, 19_100), nn.ReLU(), nn.Linear(19_100, 10))

    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.EmbeddingBag(TOKENS, 8), nn.Linear(8, 10)

        def forward(self, x):
            return self.head(self.table(x.long()))

    return Bag()


def data(way: str, records: int) -> Federation:
    if way != "tokens":
        return Federation.mnist(clients=1, samples=records, seed=0)
    numbers = np.random.default_rng(0)
    x = numbers.integers(TOKENS, size=(records, LENGTH)).astype(np.float32)
    return Federation.from_arrays([(x, numbers.integers(10, size=records))], outputs=10)


def measured(way: str, records: int) -> dict[str, float]:
    """One round of one client with so many records, in this process."""
    from nbafl.protocol import Training
    from nbafl.simulation.job import Job
    from nbafl.simulation.simulator import Simulator

    job, network = Job(Training(rule="gradient", steps=1, record_clip=1.0), rounds=1), model(way)
    simulator = Simulator(data(way, records), network, job, "cpu", measure=())
    before, begun = _megabytes(), time.perf_counter()
    simulator.step()
    return {
        "records": records, "weights": sum(weight.numel() for weight in network.parameters()), "before_mb": before,
        "peak_mb": _megabytes(), "seconds": round(time.perf_counter() - begun, 1),
    }  # fmt: skip


def _megabytes() -> int:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    way = sys.argv[1] if len(sys.argv) > 1 else "tokens"
    for records in RECORDS:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(json.dumps({"way": way, **pool.apply(measured, (way, records))}), flush=True)


if __name__ == "__main__":
    main()
