"""Loss after T rounds as a function of T: what figures 9 and 10 draw. Each point is a training planned for that T."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nbafl.paper.pictures import Series
from nbafl.paper.runs import Runs, Wanted
from nbafl.paper.settings import Settings

TOTAL_ROUNDS = "maximum aggregation times T (rounds)"


@dataclass(frozen=True)
class Sweep:
    """One line over T."""

    calibration: str
    epsilon: float
    per_round: int
    mu: float

    def wanted(self, settings: Settings) -> list[Wanted]:
        return [
            Wanted(self.calibration, self.epsilon, settings.clients, self.per_round, rounds, self.mu)
            for rounds in settings.round_grid
        ]

    def losses(self, runs: Runs) -> np.ndarray:
        """Training loss after the last round, shape (seeds, len(round_grid))."""
        return np.stack([runs.values(each) for each in self.wanted(runs.settings)], axis=1)

    def series(self, runs: Runs, label: str, rank: int) -> Series:
        return Series(label, runs.settings.round_grid, self.losses(runs), rank, "train_loss", best=True)
