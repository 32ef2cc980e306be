"""Figure 8: the paper's convergence expression over T, for several protection levels.

Theorem 2 contains the paper's own noise, so its curve belongs to the `paper` calibration. Beside it, and alone under
`exact`, stands the repaired expression with the noise of that calibration. Constants come from a pilot at the figure's
own mu: averages for the printed form, as the paper takes them, the worst met for the repaired one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from nbafl.paper.over_rounds import TOTAL_ROUNDS
from nbafl.paper.pictures import Panel, Picture, Series
from nbafl.paper.settings import Settings
from nbafl.plan import Plan
from nbafl.theory.assumptions import Evaluation
from nbafl.theory.bounds import LocalSolver, printed, repaired
from nbafl.theory.optimum import Optimum, minimise, whole_numbers
from nbafl.theory.planning import Knowledge, broken_premise, explore, setting_of

NUMBERS = (8,)


@dataclass(frozen=True)
class Expressions:
    """Both forms over T at the figure's mu."""

    settings: Settings
    folder: Path  # where the pilot is kept

    @cached_property
    def knowledge(self) -> Knowledge:
        """Constants at the figure's mu, from a pilot that is run once."""
        if not self.measured:
            explore(self._plan).save(self._path)
        return Knowledge.load(self._path)

    @property
    def measured(self) -> bool:
        """Whether the pilot was run by an earlier call."""
        return self._path.exists()

    @property
    def _plan(self) -> Plan:
        return self.settings.plan("paper", self.settings.epsilons[0], mu=self.settings.mu_bound)

    @property
    def _path(self) -> Path:
        return self.folder / f"pilot-{self._plan.digest()[:12]}.json"

    def printed(self, epsilon: float, rounds: int) -> Evaluation:
        """Theorem 2 with average constants."""
        plan = self.settings.plan("paper", epsilon, rounds=rounds, mu=self.settings.mu_bound)
        return printed(setting_of(plan), self.knowledge.constants.average())

    def repaired(self, calibration: str, epsilon: float, rounds: int) -> Evaluation:
        """The repaired expression with the worst constants met and this calibration's noise."""
        settings, worst = self.settings, self.knowledge.constants.worst()
        plan = settings.plan(calibration, epsilon, rounds=rounds, mu=settings.mu_bound)
        solver = LocalSolver.gradient_descent(
            settings.local_steps, settings.lr, settings.mu_bound, worst.rho, convex=False
        )
        sigma = plan.noise_scales().aggregate(plan.release())
        return repaired(setting_of(plan), worst, sigma, self.knowledge.pilot.dimension, solver)

    def best_printed(self, epsilon: float) -> Optimum:
        return minimise("T", lambda t: self.printed(epsilon, t), whole_numbers(self.settings.bound_rounds))

    def best_repaired(self, calibration: str, epsilon: float) -> Optimum:
        candidates = whole_numbers(self.settings.bound_rounds)
        return minimise("T", lambda t: self.repaired(calibration, epsilon, t), candidates)

    def caveat(self) -> str:
        """Why the repaired expression is no bound for this model, or what it still rests on."""
        plan = self.settings.plan("paper", 1.0, mu=self.settings.mu_bound)
        broken = broken_premise(plan, self.knowledge.pilot)
        return broken or "it rests on constants met in a pilot, which may be exceeded later"


def pictures(expressions: Expressions, calibration: str) -> list[Picture]:
    settings = expressions.settings
    panels = []
    if calibration == "paper":
        curves = [expressions.best_printed(epsilon) for epsilon in settings.epsilons]
        panels.append(_panel(settings, curves, "value of Theorem 2 (nats)", "as printed (not a bound)"))
    curves = [expressions.best_repaired(calibration, epsilon) for epsilon in settings.epsilons]
    repaired = _panel(
        settings,
        curves,
        "bound of F(w_T) - F(w*) (nats)",
        f"repaired bound, if its premises hold; {'the paper’s' if calibration == 'paper' else calibration} noise",
    )
    panels.append(replace(repaired, log_x=True, log_y=True))
    note = f"μ = {settings.mu_bound:g}; constants from a pilot; a star marks the smallest value"
    title = f"convergence expressions over T, {settings.clients} clients"
    return [Picture(8, calibration, title, tuple(panels), note)]


def _panel(settings: Settings, curves: list[Optimum], ylabel: str, title: str) -> Panel:
    series = []
    for rank, (epsilon, optimum) in enumerate(zip(settings.epsilons, curves, strict=True)):
        points = [
            (float(x), point.value)
            for x, point in zip(optimum.candidates, optimum.curve, strict=True)
            if point.value is not None
        ]
        if points:
            x, values = zip(*points, strict=True)
            series.append(Series(f"ε = {epsilon:g}", x, np.array([values]), rank, "bound", best=True))
    return Panel(tuple(series), TOTAL_ROUNDS, ylabel, title, empty=curves[0].reason or "")
