"""Figure 9: the experiment (solid) beside the paper's convergence expression (dotted), over T."""

from __future__ import annotations

import numpy as np

from nbafl.paper.fig08 import Expressions
from nbafl.paper.over_rounds import TOTAL_ROUNDS, Sweep
from nbafl.paper.pictures import Panel, Picture, Series
from nbafl.paper.runs import Runs, Wanted
from nbafl.paper.settings import Settings

NUMBERS = (9,)


def sweeps(settings: Settings, calibration: str) -> list[Sweep]:
    return [
        Sweep(calibration, epsilon, settings.clients, settings.mu_bound)
        for epsilon in settings.epsilons_bound
    ]


def wanted(settings: Settings, calibration: str) -> list[Wanted]:
    return [each for sweep in sweeps(settings, calibration) for each in sweep.wanted(settings)]


def pictures(runs: Runs, expressions: Expressions, calibration: str) -> list[Picture]:
    settings = runs.settings
    series: list[Series] = []
    for rank, sweep in enumerate(sweeps(settings, calibration)):
        series.append(sweep.series(runs, f"experiment, ε = {sweep.epsilon:g}", rank))
        if calibration == "paper":
            series += _theory(expressions, sweep.epsilon, rank)
    note = f"μ = {settings.mu_bound:g} for both; the expression is of F(w_T) - F(w*), drawn with F(w*) = 0"
    if calibration != "paper":
        note = f"μ = {settings.mu_bound:g}; Theorem 2 contains the paper's noise and has no curve under {calibration}"
    panel = Panel(tuple(series), TOTAL_ROUNDS, "training loss (cross-entropy, nats)")
    title = f"experiment and Theorem 2 over T, {settings.clients} clients"
    return [Picture(9, calibration, title, (panel,), note)]


def _theory(expressions: Expressions, epsilon: float, rank: int) -> list[Series]:
    """Theorem 2 for every T where it has a value; nothing where it has none."""
    settings = expressions.settings
    values = [(t, expressions.printed(epsilon, t).value) for t in range(1, settings.round_grid[-1] + 1)]
    known = [(float(t), value) for t, value in values if value is not None]
    if not known:
        return []
    x, curve = zip(*known, strict=True)
    return [Series(f"Theorem 2, ε = {epsilon:g}", x, np.array([curve]), rank, "theorem_2", dotted=True)]
