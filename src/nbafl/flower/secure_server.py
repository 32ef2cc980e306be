"""The server of a real federation under secure aggregation: `Server` with rounds whose uploads it cannot read."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Any

import torch

from nbafl.errors import Refused
from nbafl.evaluation import Evaluation
from nbafl.flower import wire
from nbafl.flower.roster import Roster
from nbafl.flower.secure_rounds import SecureRounds
from nbafl.flower.secure_scores import ScoreRounds
from nbafl.flower.server import Server
from nbafl.flower.strategy import OpenRound
from nbafl.secure.server import RoundLost

log = logging.getLogger("nbafl")

SCORES = "scores"
PATIENCE = 60.0
"""Seconds that an evaluation waits for clients: a number is not worth more."""


class SecureServer(Server):
    """A lost round is no reason to stop: the model stays, the next round is made."""

    def __init__(
        self, *arguments: Any, roster: Roster, folder: Path, wait: float = 600.0, **options: Any
    ) -> None:
        """`folder`: where the run's opens, lists and sets are kept."""
        options.pop("min_answers", None)  # M stands in the plan
        super().__init__(*arguments, wait=wait, **options)
        self.rounds = SecureRounds(
            self.plan, roster, folder, self.hub.exchange, self._connected, self.timeout, wait
        )
        self._roster, self._folder, self._wait = roster, folder, wait

    @functools.cached_property
    def _scoring(self) -> ScoreRounds:
        """Sums of scores, beside the rounds of the training."""
        patience = min(self._wait, PATIENCE)
        place, grid = self._folder / SCORES, self.hub.exchange
        return ScoreRounds(
            self.plan,
            self._roster,
            place,
            grid,
            self._connected,
            self.timeout,
            patience,
            evaluation=self.evaluation,
        )

    def _ask_for_counts(self, number: int, agreed: Evaluation) -> dict[str, float]:
        """Accuracy or loss from a secure sum of scores; a lost one costs a number and nothing else."""
        broadcast = wire.to_record(self._layout.arrays(self.vector.numpy(), {}))
        with self.progress.during("evaluating"):
            try:
                found = self._scoring.share(self._scoring.mean(agreed.index(number), broadcast, self._layout))
            except (RoundLost, Refused) as lost:
                log.warning("round %d: the sum of scores is lost: %s", number, lost)
                found = None
        return {} if found is None else agreed.metrics(found)

    def _connected(self) -> dict[int, int]:
        online = set(self.hub.exchange.get_node_ids())
        return {client + 1: node for node, client in self.hub.nodes.items() if node in online}

    def _round(self, number: int) -> OpenRound:
        broadcast = wire.to_record(self._layout.arrays(self.vector.numpy(), {}))
        online = sorted(each - 1 for each in self._connected())
        happened = OpenRound(number, list(range(self.plan.clients)), online=online)
        self.strategy.last = happened
        with self.progress.during("training"):
            try:
                found = self.rounds.mean(number, broadcast, self._layout)
            except RoundLost as lost:
                log.warning("round %d is lost; the model stays as it was: %s", number, lost)
                found = None
        happened.missing = {who - 1: why for who, why in self.rounds.missing.items()}
        if found is not None:
            happened.answered = found.members
            self._step_to(torch.from_numpy(found.vector), number)
        happened.still_online = sorted(each - 1 for each in self._connected())
        self.progress.count(len(happened.answered), ["lost" for _ in happened.missing])
        return happened

    def _step_to(self, mean: torch.Tensor, number: int) -> None:
        """The server's step, as in every other federation and simulation."""
        current = torch.from_numpy(self._layout.vector(self._layout.arrays(self.vector.numpy(), {})))
        self.vector = self.strategy.advance(current, mean, number).float()
