"""What every adapter shares: the workload given on the command line, its data, and the line that reports a result.

An adapter runs in the peers' own environment (`.venv-peers`), with the package's `src` on its path for the digits.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import dataclass

import numpy as np

from nbafl.data.federation import Federation

BEGUN = time.perf_counter()


@dataclass(frozen=True)
class Cnn:
    """Convolutions of 5 × 5, each with ReLU and a pool of 2 × 2 behind it, as in nbafl.simulation.model_workloads."""

    channels: tuple[int, ...]
    padding: int
    widths: tuple[int, ...]
    """Of the linear layers behind them."""


CNNS = {"small CNN": Cnn((16, 32), 0, (512, 10)), "McMahan CNN": Cnn((32, 64), 2, (3136, 512, 10))}


@dataclass(frozen=True)
class Task:
    """A workload as plain numbers (see nbafl.simulation.workloads)."""

    workload: str
    clients: int
    samples: int
    per_round: int
    model: str
    steps: int
    batch: int
    lr: float
    mu: float
    clip: float
    sigma: float
    eval_every: int
    rounds: int
    warm: int

    @property
    def epochs(self) -> int:
        """Passes over a client's records: full batches are one step each."""
        return max(1, self.steps * self.batch // self.samples)

    @property
    def cnn(self) -> Cnn | None:
        """The convolutions, where the model has some."""
        return CNNS.get(self.model)

    @property
    def widths(self) -> list[int]:
        """Of the linear layers."""
        if self.cnn is not None:
            return list(self.cnn.widths)
        return [784, 256, 10] if self.model == "mlp" else [784, 10]


def task() -> Task:
    """The workload named by the first argument, a JSON object."""
    return Task(**json.loads(sys.argv[1]))


def digits(given: Task) -> tuple[list[tuple[np.ndarray, np.ndarray]], tuple[np.ndarray, np.ndarray]]:
    """Flat records and labels of every client, and of the test set."""
    federation = Federation.mnist(clients=given.clients, samples=given.samples, seed=0)
    clients = [(x.reshape(len(x), -1), y) for x, y in map(federation.client, range(given.clients))]
    assert federation.test is not None
    return clients, (federation.test[0].reshape(10_000, -1), federation.test[1])


class Stopwatch:
    """Times rounds; the first `warm` ones are start-up."""

    def __init__(self, given: Task) -> None:
        self.given = given
        self.seconds: list[float] = []
        self.startup = 0.0
        self.last = time.perf_counter()

    def lap(self) -> None:
        """A round is over."""
        now = time.perf_counter()
        self.seconds.append(now - self.last)
        if len(self.seconds) == 1:
            self.startup = now - BEGUN
        self.last = now

    def report(self, peer: str, accuracy: float | None) -> None:
        """One line of JSON, the last of the adapter's output."""
        typical = statistics.median(self.seconds[self.given.warm :])
        line = {"peer": peer, "workload": self.given.workload, "seconds_per_round": typical}
        print(json.dumps({**line, "startup_seconds": self.startup, "test_accuracy": accuracy}), flush=True)
