"""The dual engine on a GPU as one recorded graph of kernels: a round is a handful of launches from the host.

A round of small clients is a hundred kernels of a few microseconds each, and launching them one by one from Python
takes longer than running them. They are recorded once (CUDA graphs) and replayed with new inputs: the broadcast, who
takes part with which weights, and the salt of the minibatches. Runs that share a federation and differ only in noise
and seed share the recording.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from nbafl.protocol import Training
from nbafl.protocol.randomness import batch_salt, salted_batches
from nbafl.simulation.device_data.features import Block
from nbafl.simulation.device_data.records import distinct
from nbafl.simulation.device_data.teams import Members, Roster
from nbafl.simulation.engines.base import Aggregate, Start
from nbafl.simulation.engines.dual import DualEngine
from nbafl.simulation.engines.gram import reach

HELD_BYTES = 16 * 2**30
"""Gram matrices and record numbers of all clients are held on the device when they fit this."""
PIECE = 256


class Everyone:
    """Indices and Gram matrices of all clients in one tensor each, for clients of equal size."""

    def __init__(self, roster: Roster) -> None:
        self.records, self.features = roster.records, roster.features
        self.index = self.records.rows(None).index
        numbers = torch.arange(len(self.index), device=self.records.device)
        self.gram = torch.cat([self.block(part).gram() for part in numbers.split(PIECE)])
        self.reach = reach(self.gram)

    def block(self, clients: Tensor) -> Block:
        return self.features.gather(self.index[clients])


class DrawnTeam:
    """All of a round's participants, found on the device from their numbers alone (what `Team` is to a host)."""

    def __init__(self, everyone: Everyone, clients: Tensor) -> None:
        self.everyone, self.numbers = everyone, clients
        self.place = torch.arange(len(clients), device=clients.device)
        self.records = len(clients) * everyone.index.shape[1]

    @cached_property
    def index(self) -> Tensor:
        return self.everyone.index[self.numbers]

    @cached_property
    def target(self) -> Tensor:
        return self.everyone.records.y[self.index][:, None]

    @cached_property
    def share(self) -> Tensor:
        clients, rows = self.index.shape
        return torch.full(
            (clients, 1, rows), 1 / rows, dtype=self.everyone.records.dtype, device=self.index.device
        )

    @cached_property
    def features(self) -> Block:
        return self.everyone.block(self.numbers)

    @cached_property
    def gram(self) -> Tensor:
        return self.everyone.gram[self.numbers]

    @cached_property
    def reach(self) -> Tensor:
        return self.everyone.reach[self.numbers]


@contextmanager
def capture() -> Iterator[torch.cuda.CUDAGraph]:
    """Record what is launched inside, with the garbage collector kept out: freeing an earlier recording spoils this one."""
    graph, collecting = torch.cuda.CUDAGraph(), gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        with torch.cuda.graph(graph):
            yield graph
    finally:
        if collecting:
            gc.enable()


class Recorded:
    """Work on tensors of fixed shapes: run as it is the first time, recorded the second, replayed from then on."""

    def __init__(self, work: Callable[..., tuple[Tensor, ...]]) -> None:
        self._work, self._plainly = work, 1
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._outputs: tuple[Tensor, ...] = ()
        self._shapes: list[torch.Size] = []

    def fits(self, inputs: Sequence[Tensor]) -> bool:
        """Whether these have the shapes that all inputs so far had."""
        return self._shapes in ([], [each.shape for each in inputs])

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The outputs lie in the same memory every time."""
        self._shapes = [each.shape for each in inputs]
        if self._plainly:
            self._plainly -= 1
            return self._work(*inputs)
        if self._graph is None:
            self._inputs = tuple(each.clone() for each in inputs)
            try:
                with capture() as self._graph:
                    self._outputs = self._work(*self._inputs)
            except RuntimeError:  # a model that waits for the device cannot be recorded
                self._graph, self._plainly = None, sys.maxsize
                return self._work(*inputs)
        for held, given in zip(self._inputs, inputs, strict=True):
            held.copy_(given)
        self._graph.replay()
        return self._outputs


class Recording:
    """A round's kernels with their inputs and outputs; the first round runs them one by one, later ones replay."""

    def __init__(
        self, engine: DualEngine, teams: Sequence[Members] | None, everyone: Everyone | None, count: int
    ) -> None:
        records = engine.roster.records
        self._engine, self._teams, self._everyone = engine, teams, everyone
        sizes = records.sizes
        self._largest, self._smallest = int(sizes.max()), int(sizes.min())
        self._sizes = torch.tensor(sizes[:count], device=records.device)
        self._clients = torch.arange(count, device=records.device)
        self._weights = torch.empty(count, dtype=records.dtype, device=records.device)
        self._salt = torch.zeros((), dtype=torch.int64, device=records.device)
        self._weighed: np.ndarray | None = None
        self._vector: Tensor | None = None
        self._result: Aggregate | None = None
        self._graph: torch.cuda.CUDAGraph | None = None

    def play(self, broadcast: Tensor, clients: np.ndarray, weights: np.ndarray, salt: int) -> Aggregate:
        """One round; the result lasts until the next."""
        first = self._vector is None
        if self._vector is None:
            self._vector = torch.empty_like(broadcast)
        self._vector.copy_(broadcast)
        if self._everyone is not None:
            self._clients.copy_(torch.as_tensor(clients), non_blocking=True)
        if weights is not self._weighed:
            self._weights.copy_(torch.as_tensor(weights, dtype=broadcast.dtype), non_blocking=True)
            self._weighed = weights
        if self._engine.training.batch is not None:
            self._salt.fill_(salt)
        if first or not broadcast.is_cuda:
            return self._round()
        if self._graph is None:
            with capture() as graph:
                self._result = self._round()
            self._graph = graph
        self._graph.replay()
        assert self._result is not None
        return self._result

    def _round(self) -> Aggregate:
        engine, training = self._engine, self._engine.training
        assert self._vector is not None
        start = Start.of(self._vector, engine.network, engine.roster.features)
        teams = self._teams if self._everyone is None else [DrawnTeam(self._everyone, self._clients)]
        order = None
        if training.batch is not None and training.batch < self._largest:
            order = salted_batches(
                self._salt,
                self._clients,
                self._sizes,
                training.steps,
                training.batch,
                self._largest,
                self._smallest,
            )
        assert teams is not None
        result = engine.train(start, teams, self._weights, order)
        norm = None if result.norm is None else result.norm.double()
        return Aggregate(result.vector, result.clipped.double(), norm)


class Replayed:
    """A function of a weight vector, recorded the second time it is called: evaluations are small kernels too."""

    def __init__(self, function: Callable[[Tensor], dict[str, Tensor]]) -> None:
        self._function = function
        self._vector: Tensor | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._values: dict[str, Tensor] = {}

    def __call__(self, vector: Tensor) -> dict[str, Tensor]:
        """The values, which last until the next call."""
        if self._vector is None:
            self._vector = vector.clone()
            return self._function(self._vector)
        self._vector.copy_(vector)
        if self._graph is None:
            with capture() as graph:
                self._values = self._function(self._vector)
            self._graph = graph
        self._graph.replay()
        return self._values


class Recordings:
    """The recordings of one SharedData, shared by its runs: one per kind of training and number of participants."""

    def __init__(self) -> None:
        self._held: dict[tuple[Training, int, bool], Recording | None] = {}
        self._everyone: Everyone | None = None
        self.evaluations: dict[tuple[frozenset[str], bool], Replayed] = {}
        """By what is measured, and whether in TF32."""

    def of(self, engine: DualEngine, count: int) -> Recording | None:
        """The recording for this kind of round; None where rounds differ in more than their inputs."""
        key = (engine.training, count, torch.backends.cuda.matmul.allow_tf32)
        if key not in self._held:
            self._held[key] = self._record(engine, count)
        return self._held[key]

    def _record(self, engine: DualEngine, count: int) -> Recording | None:
        """Everyone's teams never change; drawn participants are found on the device where sizes are equal."""
        roster, records = engine.roster, engine.roster.records
        clients, sizes = records.data.clients, distinct(records.sizes)
        if count == clients:
            return Recording(engine, roster.teams(None), None, count)
        size, item = int(sizes[0]), torch.finfo(records.dtype).bits // 8
        fits = clients * (size**2 * item + size * 8) <= HELD_BYTES and count * size <= roster.limit
        if not fits or (sizes != size).any():
            return None
        if self._everyone is None:
            self._everyone = Everyone(roster)
        return Recording(engine, None, self._everyone, count)


class GraphedDualEngine:
    """The dual engine with recorded rounds."""

    name = DualEngine.name
    lanes = DualEngine.lanes

    def __init__(self, engine: DualEngine, recordings: Recordings) -> None:
        self._engine, self._recordings = engine, recordings

    @torch.no_grad()
    def round(self, broadcast: Tensor, clients: np.ndarray, weights: np.ndarray, round: int) -> Aggregate:
        recording = self._recordings.of(self._engine, len(clients))
        if recording is None:
            return self._engine.round(broadcast, clients, weights, round)
        return recording.play(broadcast, clients, weights, batch_salt(self._engine.seed, round))
