"""Figures 4 and 5: the same as 2 and 3 with K clients drawn at random in each round."""

from __future__ import annotations

from nbafl.paper import fig02_03
from nbafl.paper.by_round import accuracy_picture, loss_picture
from nbafl.paper.pictures import Picture
from nbafl.paper.runs import Runs, Wanted
from nbafl.paper.settings import Settings

NUMBERS = (4, 5)


def wanted(settings: Settings, calibration: str) -> list[Wanted]:
    return [each for _, each in fig02_03.lines(settings, calibration, settings.per_round)]


def pictures(runs: Runs, calibration: str) -> list[Picture]:
    settings = runs.settings
    drawn = fig02_03.lines(settings, calibration, settings.per_round)
    who = f"K = {settings.per_round} of {settings.clients} clients"
    return [
        loss_picture(runs, 4, calibration, f"training loss by privacy level, {who}", drawn),
        accuracy_picture(runs, 5, calibration, f"accuracy by privacy level, {who}", drawn),
    ]
