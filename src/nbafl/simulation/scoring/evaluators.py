"""Two ways to evaluate a weight vector: any module, in pieces; and networks, on the engines' own blocks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from nbafl.protocol import unflatten
from nbafl.protocol.losses import Loss
from nbafl.simulation.cores import Cores, lane_count, lanes
from nbafl.simulation.device_data.features import Block
from nbafl.simulation.device_data.records import Records, Rows
from nbafl.simulation.device_data.teams import Roster, team_lanes
from nbafl.simulation.engines.backward import Scratch, Tail
from nbafl.simulation.engines.network import Network
from nbafl.simulation.scoring.metrics import Tally

PIECE = 1024


class ModuleScorer:
    """Runs the module itself, in evaluation mode."""

    def __init__(self, records: Records, model: nn.Module, loss: Loss) -> None:
        self.records, self.model, self.loss = records, model, loss

    def train(self, vector: Tensor, clients: np.ndarray | None) -> Tally:
        return self._clients(vector, self.records.rows(clients))

    def local(self, vector: Tensor, clients: np.ndarray | None) -> Tally:
        return self._clients(vector, self.records.rows(clients, local=True))

    def test(self, vector: Tensor) -> Tally | None:
        if self.records.test is None:
            return None
        x, y = self.records.test
        parts = []
        for start in range(0, len(y), PIECE):
            piece = slice(start, start + PIECE)
            output = self._outputs(vector, x[piece])
            real = torch.ones_like(y[None, piece], dtype=torch.bool)
            parts.append(Tally.of(output.t()[None], y[None, piece], real, self.loss))
        return Tally.join(parts)

    def _clients(self, vector: Tensor, rows: Rows) -> Tally:
        index, real = rows.index, rows.real
        step = max(1, PIECE // index.shape[1])
        parts = []
        for start in range(0, len(index), step):
            piece = index[start : start + step]
            output = self._outputs(vector, self.records.x[piece.reshape(-1)]).unflatten(0, piece.shape)
            here = real[start : start + step]
            parts.append(Tally.of(output.transpose(1, 2), self.records.y[piece], here, self.loss))
        return Tally.join(parts)

    @torch.no_grad()
    def _outputs(self, vector: Tensor, x: Tensor) -> Tensor:
        """(records, outputs)."""
        output = functional_call(self.model, unflatten(vector, self.model), (x,))
        return output.reshape(len(x), -1)


class Ahead:
    """Pre-activations X W of a broadcast that was evaluated: the next round's training starts from the same ones."""

    def __init__(self) -> None:
        self._vector: Tensor | None = None
        self._held: dict[int, Tensor] = {}

    def begin(self, vector: Tensor) -> None:
        self._vector, self._held = vector, {}

    def put(self, number: int, z: Tensor) -> None:
        self._held[number] = z

    def take(self, vector: Tensor, number: int) -> Tensor | None:
        return self._held.get(number) if vector is self._vector else None


class NetworkScorer:
    """Evaluates through the engine's teams, on all cores; leaves X W behind in `ahead` for the engine to start from."""

    def __init__(
        self,
        model: nn.Module,
        network: Network,
        roster: Roster,
        test: list[tuple[Block, Tensor]],
        cores: Cores,
        loss: Loss,
        ahead: Ahead | None,
    ) -> None:
        self.model, self.network, self.roster = model, network, roster
        self.cores, self.loss = cores, loss
        self._test, self._ahead = test, ahead

    def train(self, vector: Tensor, clients: np.ndarray | None) -> Tally:
        teams = self.roster.teams(clients)
        table, later = self.network.split(vector)
        table = self.roster.features.narrow(table)
        ahead = self._ahead if clients is None else None
        if ahead is not None:
            ahead.begin(vector)

        def one(number: int, scratch: Scratch) -> Tally:
            team = teams[number]
            z = team.features.times(table)
            if ahead is not None:
                ahead.put(number, z)
                z = scratch("z", *z.shape).copy_(z)
            return self._tally(z, later, team.target[:, 0], team.real, scratch)

        joined = self._each(one, team_lanes(teams), table)
        back = torch.cat([team.place for team in teams]).argsort()
        correct = None if joined.correct is None else joined.correct[back]
        return Tally(joined.loss[back], correct, joined.count[back])

    def local(self, vector: Tensor, clients: np.ndarray | None) -> Tally:
        return ModuleScorer(self.roster.records, self.model, self.loss).local(vector, clients)

    def test(self, vector: Tensor) -> Tally | None:
        if not self._test:
            return None
        table, later = self.network.split(vector)

        def one(number: int, scratch: Scratch) -> Tally:
            block, target = self._test[number]
            real = torch.ones_like(target, dtype=torch.bool)
            return self._tally(block.times(table), later, target, real, scratch)

        dealt = lanes(len(self._test), lane_count(sum(target.numel() for _, target in self._test)))
        return self._each(one, dealt, table)

    def _each(self, one: Callable[[int, Scratch], Tally], dealt: list[range], like: Tensor) -> Tally:
        """one(number) for all numbers, lane by lane, joined in order of the numbers."""

        def work(numbers: range) -> list[Tally]:
            scratch = Scratch(like)
            return [one(number, scratch) for number in numbers]

        parts: dict[int, Tally] = {}
        for numbers, tallies in zip(dealt, self.cores.map(work, dealt), strict=True):
            parts.update(zip(numbers, tallies, strict=True))
        return Tally.join([parts[number] for number in sorted(parts)])

    def _tally(self, z: Tensor, later: Tensor, target: Tensor, real: Tensor, scratch: Scratch) -> Tally:
        """Scores of records whose first pre-activations are z (B, m, units); z is overwritten."""
        clients, rows = z.shape[:2]
        tail = Tail(self.network, later[None], clients * rows, scratch)
        _, outputs = tail.forward(z.view(1, clients * rows, -1))
        return Tally.of(outputs.view(-1, clients, rows).transpose(0, 1), target, real, self.loss)
