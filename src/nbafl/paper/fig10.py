"""Figure 10: loss over T for two protection levels, all clients and K drawn at random."""

from __future__ import annotations

from nbafl.paper.over_rounds import TOTAL_ROUNDS, Sweep
from nbafl.paper.pictures import Panel, Picture
from nbafl.paper.runs import Runs, Wanted
from nbafl.paper.settings import Settings

NUMBERS = (10,)


def sweeps(settings: Settings, calibration: str, per_round: int) -> list[Sweep]:
    """A line over T for each epsilon."""
    return [Sweep(calibration, epsilon, per_round, settings.mu) for epsilon in settings.epsilons_rounds]


def wanted(settings: Settings, calibration: str) -> list[Wanted]:
    both = sweeps(settings, calibration, settings.clients) + sweeps(settings, calibration, settings.per_round)
    return [each for sweep in both for each in sweep.wanted(settings)]


def pictures(runs: Runs, calibration: str) -> list[Picture]:
    settings = runs.settings
    everyone = sweeps(settings, calibration, settings.clients)
    drawn = sweeps(settings, calibration, settings.per_round)
    lines = [
        sweep.series(runs, f"all clients, ε = {sweep.epsilon:g}", rank) for rank, sweep in enumerate(everyone)
    ]
    lines += [
        sweep.series(runs, f"K = {settings.per_round} at random, ε = {sweep.epsilon:g}", len(everyone) + rank)
        for rank, sweep in enumerate(drawn)
    ]
    panel = Panel(tuple(lines), TOTAL_ROUNDS, "training loss after T rounds (cross-entropy, nats)")
    title = f"loss over T, {settings.clients} clients"
    return [Picture(10, calibration, title, (panel,), "a star marks the smallest mean of a line")]
