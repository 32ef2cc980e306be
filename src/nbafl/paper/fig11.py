"""Figure 11: loss over the number K of clients drawn, for several protection levels and without noise.

The text speaks of epsilon 50, 60 and 80, the caption of 50, 60 and 100: all four are drawn.
"""

from __future__ import annotations

import numpy as np

from nbafl.paper.pictures import Panel, Picture, Series
from nbafl.paper.runs import Runs, Wanted
from nbafl.paper.settings import Settings

NUMBERS = (11,)


def line(settings: Settings, calibration: str, epsilon: float | None) -> list[Wanted]:
    return [
        Wanted(calibration, epsilon, settings.clients, drawn, settings.rounds, settings.mu)
        for drawn in settings.drawn_grid
    ]


def losses(runs: Runs, calibration: str, epsilon: float | None) -> np.ndarray:
    """Training loss after the last round, shape (seeds, len(drawn_grid))."""
    return np.stack([runs.values(each) for each in line(runs.settings, calibration, epsilon)], axis=1)


def wanted(settings: Settings, calibration: str) -> list[Wanted]:
    levels = (*settings.epsilons_drawn, None)
    return [each for epsilon in levels for each in line(settings, calibration, epsilon)]


def pictures(runs: Runs, calibration: str) -> list[Picture]:
    settings = runs.settings
    series = [
        Series(
            "non-private" if epsilon is None else f"ε = {epsilon:g}",
            settings.drawn_grid,
            losses(runs, calibration, epsilon),
            rank,
            "train_loss",
            best=epsilon is not None,
        )
        for rank, epsilon in enumerate((*settings.epsilons_drawn, None))
    ]
    panel = Panel(
        tuple(series),
        f"chosen clients K (of N = {settings.clients})",
        "training loss (cross-entropy, nats)",
    )
    title = f"loss over K after T = {settings.rounds} rounds"
    return [Picture(11, calibration, title, (panel,), "a star marks the smallest mean of a line")]
