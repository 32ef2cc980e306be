"""Figures 6 and 7: loss and accuracy by round for several numbers of clients."""

from __future__ import annotations

from nbafl.paper.by_round import Line, accuracy_picture, loss_picture
from nbafl.paper.pictures import Picture
from nbafl.paper.runs import Runs, Wanted
from nbafl.paper.settings import Settings

NUMBERS = (6, 7)


def lines(settings: Settings, calibration: str) -> list[Line]:
    """A line for each N; every client brings its own records, so more clients also mean more data."""
    return [
        (
            f"N = {clients}",
            Wanted(
                calibration,
                settings.epsilon_clients,
                clients,
                clients,
                settings.rounds,
                settings.mu,
                curve=True,
            ),
        )
        for clients in settings.client_grid
    ]


def wanted(settings: Settings, calibration: str) -> list[Wanted]:
    return [each for _, each in lines(settings, calibration)]


def pictures(runs: Runs, calibration: str) -> list[Picture]:
    drawn = lines(runs.settings, calibration)
    level = f"ε = {runs.settings.epsilon_clients:g}"
    return [
        loss_picture(runs, 6, calibration, f"training loss by number of clients, {level}", drawn),
        accuracy_picture(runs, 7, calibration, f"accuracy by number of clients, {level}", drawn),
    ]
