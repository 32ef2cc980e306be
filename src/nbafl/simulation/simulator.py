"""Many clients on one machine: the rounds of Algorithm 1, one `step()` each.

The Simulator draws the participants, lets an engine train them, adds the noise, makes the server's step and measures
the broadcast. Its whole state is the broadcast, what the server's optimiser keeps and the number of rounds done: every
random draw is a function of (seed, round, stream), so a restored run continues bit for bit.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nbafl.errors import UsageError
from nbafl.protocol import (
    add_noise,
    draw,
    flatten,
    generator,
    integer_sum,
    load,
    summed_sigma,
)
from nbafl.protocol.losses import BUILT_IN, check_loss
from nbafl.protocol.server import State
from nbafl.simulation.cores import Cores, cores, one_thread
from nbafl.simulation.device_data.records import Data, Records
from nbafl.simulation.device_data.shared import SharedData
from nbafl.simulation.engines.base import clips_weights
from nbafl.simulation.engines.choice import Choice, choose
from nbafl.simulation.engines.graphed import Replayed
from nbafl.simulation.job import Job
from nbafl.simulation.scoring.evaluators import NetworkScorer
from nbafl.simulation.scoring.metrics import RoundMetrics, evaluate
from nbafl.tasks import LOSSES, REGRESSION

MEASURES = frozenset({"train", "test", "clients", "norms"})
POPULATION = 200_000
"""Above so many clients, train and client metrics are those of the round's participants."""


@dataclass(frozen=True)
class Draw:
    """A round's participants, their p_i, and the standard deviation of all of its noise together."""

    round: int
    clients: np.ndarray
    weights: np.ndarray
    sigma: float


class Simulator:
    """One run of a Job over a federation."""

    def __init__(
        self,
        federation: Data,
        model: nn.Module,
        job: Job,
        device: str | torch.device = "auto",
        engine: str = "auto",
        measure: Iterable[str] = MEASURES,
        shared: SharedData | None = None,
        threads: int | None = None,
        tf32: bool = False,
    ) -> None:
        self.job, self.device, self.measure = job, pick_device(device), frozenset(measure)
        self.tf32 = tf32
        self._check(federation)
        self._model = copy.deepcopy(model).to(self.device).eval()
        self.vector = flatten(self._model)
        self._server, self._kept = job.server, State()
        self._ready: Draw | None = None
        self._drawn: Draw | None = None
        self.round = 0
        if shared is None:
            shared = SharedData.of(
                Records(federation, self.device, next(self._model.parameters()).dtype), self._model
            )
        self.shared, self.data = shared, shared.records.data
        on_cores = self.device.type == "cpu"  # on GPUs whole engines are dealt to the ranks
        workers = Cores(threads or cores() if on_cores else 1, dealt=on_cores)
        choice = Choice(shared, self._model, job, workers, "norms" in self.measure)
        with precision(tf32=False):  # an engine's trial step compares digits
            self.engine, self._scorer = choose(engine, choice)

    def step(self) -> RoundMetrics:
        """One round: draw, train, clip, aggregate, noise, broadcast, test."""
        # an engine with threads of its own gets them all: sums must not depend on how many threads torch has
        alone = self.device.type == "cpu" and self.engine.name in ("dual", "plain", "clients")
        with precision(self.tf32), one_thread() if alone else nullcontext():
            return self._step()

    def _step(self) -> RoundMetrics:
        started, job, number = time.perf_counter(), self.job, self.round + 1
        counted = number + job.rounds_before  # noise of an earlier run must never come again
        drawn = (
            self._ready if self._ready is not None and self._ready.round == counted else self._draw(counted)
        )
        result = self.engine.round(self.vector, drawn.clients, drawn.weights, counted)
        noisy = self._with_noise(result.vector, drawn)
        if noisy is result.vector:
            noisy = noisy.clone()  # an engine may write its next result into the same memory
        self.vector, self._kept = self._server.step(self.vector, noisy, self._kept, number)
        self.round = number
        norm = torch.linalg.vector_norm(self.vector, dtype=torch.float64)
        values = {"clipped_fraction": result.clipped, "broadcast_norm": norm}
        if result.norm is not None:
            values["upload_norm"] = result.norm
        if job.evaluated(number):
            values.update(self._evaluate(drawn.clients))
        if self.device.type == "cuda":
            self._ready = self._draw(counted + 1)  # while the GPU is busy
        known = numbers(values)
        known["clipped_fraction"] /= len(drawn.clients)
        seconds = time.perf_counter() - started
        return RoundMetrics(round=number, participants=len(drawn.clients), **known, seconds=seconds)

    def _with_noise(self, vector: Tensor, drawn: Draw) -> Tensor:
        """All of a round's noise at once: Gaussian, or as in a secure sum of integers."""
        source = generator(self.job.seed, drawn.round, "noise", self.device)
        if self.job.grid is None:
            return add_noise(vector, drawn.sigma, source)
        centre = torch.zeros_like(self.vector) if clips_weights(self.job.training) else self.vector
        return integer_sum(vector, centre, drawn.weights, self.job.grid, source)

    def _draw(self, number: int) -> Draw:
        job, everyone = self.job, self.data.clients
        if job.per_round in (None, everyone) and self._drawn is not None:
            return replace(self._drawn, round=number)  # the same people as in the last round
        clients = draw(job.seed, number, everyone, job.per_round or everyone)
        weights = self._weights(clients)
        sigma = summed_sigma(weights, job.uplink_of(clients), job.sigma_downlink)
        self._drawn = Draw(number, clients, weights, sigma)
        return self._drawn

    def module(self) -> nn.Module:
        """The model the run has now, on the CPU: the broadcast, or the mean of the last ones where the job asks for it."""
        final = self._server.final(self.vector, self._kept)
        return load(final.cpu(), copy.deepcopy(self._model).cpu())

    def state(self) -> dict[str, Tensor]:
        """Everything a run needs to go on: broadcast, rounds done, and what the server's optimiser keeps."""
        kept = {name: value.cpu().clone() for name, value in self._kept.items()}
        return {"vector": self.vector.cpu().clone(), "round": torch.tensor(self.round), **kept}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go on from a `state()`."""
        weights = state["vector"].numel()
        if weights != self.vector.numel():
            allowed = f"of this model, which has {self.vector.numel()} weights"
            raise UsageError("state", f"one of {weights} weights", allowed)
        self.vector = state["vector"].to(self.device, self.vector.dtype, copy=True)
        self.round = int(state["round"])
        self._kept = {
            name: value.to(self.device, self.vector.dtype, copy=True) if value.ndim else value
            for name, value in state.items()
            if name not in ("vector", "round")
        }

    def _evaluate(self, participants: np.ndarray) -> dict[str, Tensor]:
        if not self.measure - {"norms"}:
            return {}
        clients = None if self.data.clients <= POPULATION else participants
        set_aside = self.data.local_test is not None

        def values(vector: Tensor) -> dict[str, Tensor]:
            return evaluate(self._scorer, vector, clients, self.measure, set_aside)

        repeats = isinstance(self._scorer, NetworkScorer) and clients is None and not set_aside
        if self.device.type == "cpu" or not repeats:
            return values(self.vector)
        known = self.shared.recordings.evaluations
        return known.setdefault((self.measure, self.tf32), Replayed(values))(self.vector)

    def _weights(self, clients: np.ndarray) -> np.ndarray:
        """p_i over the participants."""
        if self.job.weights == "uniform":
            return np.full(len(clients), 1 / len(clients))
        sizes = self.shared.records.units[clients]
        return sizes / sizes.sum()

    def _check(self, federation: Data) -> None:
        count, sigma = federation.clients, self.job.sigma_uplink
        if self.job.per_round is not None and self.job.per_round > count:
            raise UsageError("per_round", self.job.per_round, f"at most the number of clients, {count}")
        if isinstance(sigma, tuple) and len(sigma) != count:
            raise UsageError(
                "sigma_uplink", f"{len(sigma)} numbers", f"one number, or one per client ({count})"
            )
        training = self.job.training
        if training.loss in BUILT_IN and training.loss != LOSSES[federation.task]:
            allowed = f"{LOSSES[federation.task]}, or your own, for the task {federation.task}"
            raise UsageError("loss", training.loss, allowed)
        if training.class_weights is not None and federation.task == REGRESSION:
            raise UsageError("class_weights", training.class_weights, "unset where the target is a number")
        check_loss(training.loss, federation.outputs, federation.task)
        if not self.measure <= MEASURES:
            raise UsageError(
                "measure", sorted(self.measure - MEASURES), "among " + ", ".join(sorted(MEASURES))
            )


def pick_device(device: str | torch.device) -> torch.device:
    """`auto` is CUDA where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = torch.device(device)
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise UsageError("device", str(device), "cpu or auto: no CUDA device was found")
    return chosen


@contextmanager
def precision(tf32: bool) -> Iterator[None]:
    """Products on a GPU in TF32 (10 bits of mantissa, several times faster) or in full float32.

    Convolutions have a switch of their own, which torch leaves on.
    """
    switches: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [switch.allow_tf32 for switch in switches]
    try:
        for switch in switches:
            switch.allow_tf32 = tf32
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.allow_tf32 = value


def numbers(values: dict[str, Tensor]) -> dict[str, float]:
    """All scalars in one transfer: the only moment of a round at which the host waits for the device."""
    packed = torch.stack([value.to(torch.float64) for value in values.values()])
    return dict(zip(values, packed.tolist(), strict=True))
