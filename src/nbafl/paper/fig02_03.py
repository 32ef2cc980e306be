"""Figures 2 and 3: loss and accuracy by round for several protection levels, all clients taking part."""

from __future__ import annotations

from nbafl.paper.by_round import Line, accuracy_picture, loss_picture
from nbafl.paper.pictures import Picture
from nbafl.paper.runs import Runs, Wanted
from nbafl.paper.settings import Settings

NUMBERS = (2, 3)


def lines(settings: Settings, calibration: str, per_round: int | None = None) -> list[Line]:
    """A line for each epsilon, the non-private one last; `per_round` None: everyone takes part."""

    def wanted(epsilon: float | None) -> Wanted:
        drawn = per_round or settings.clients
        return Wanted(calibration, epsilon, settings.clients, drawn, settings.rounds, settings.mu, curve=True)

    private = [(f"NbAFL, ε = {epsilon:g}", wanted(epsilon)) for epsilon in settings.epsilons]
    return [*private, ("non-private", wanted(None))]


def wanted(settings: Settings, calibration: str) -> list[Wanted]:
    return [each for _, each in lines(settings, calibration)]


def pictures(runs: Runs, calibration: str) -> list[Picture]:
    settings = runs.settings
    drawn = lines(settings, calibration)
    who = f"{settings.clients} clients"
    return [
        loss_picture(runs, 2, calibration, f"training loss by protection level, {who}", drawn),
        accuracy_picture(runs, 3, calibration, f"accuracy by protection level, {who}", drawn),
    ]
