"""The statistics under the verdicts: paired comparisons over seeds, trends, and valleys.

Runs of different settings share data, initial weights and noise stream seed by seed, so every comparison is paired:
a one-sided paired t-test on the differences. A test of several comparisons divides the level among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import stats

LEVEL = 0.05
ENOUGH = 5
"""Seeds from which on a claim that the means show and the test does not support counts as failed, not as undecided."""


def p_smaller(first: np.ndarray, second: np.ndarray) -> float:
    """p-value of `first < second` on average; 1 where there are too few seeds to say."""
    difference = np.asarray(second, dtype=float) - np.asarray(first, dtype=float)
    if len(difference) < 2:
        return 1.0
    if np.ptp(difference) <= 1e-12 * np.abs(difference).max():
        return 0.0 if difference[0] > 0 else 1.0
    return float(stats.ttest_1samp(difference, 0.0, alternative="greater").pvalue)


@dataclass(frozen=True)
class Test:
    """Whether the data support a claim, whether they speak against it, and everything that decided it."""

    __test__ = False  # not a pytest class

    supported: bool
    refuted: bool  # False also where the data cannot tell
    details: dict[str, Any]
    shown: bool = False
    """Whether the means alone show the claim."""
    seeds: int | None = None
    """How many seeds it rests on; None for a computed curve."""

    @property
    def undecided(self) -> bool:
        """Whether more seeds could still support it: no test is possible with one, and few may only lack power."""
        if self.supported or self.seeds is None:
            return False
        return self.seeds < 2 or (self.seeds < ENOUGH and self.shown and not self.refuted)


def improves(labels: list[str], values: list[np.ndarray], smaller_is_better: bool = True) -> Test:
    """Each label is better than the one before: means in order, and a trend in the seeds."""
    means = [float(each.mean()) for each in values]
    values = values if smaller_is_better else [-each for each in values]
    ordered = all(later.mean() < earlier.mean() for earlier, later in pairwise(values))
    table = np.stack(values, axis=1)
    index = np.arange(table.shape[1]) - (table.shape[1] - 1) / 2
    slopes = table @ index / (index @ index)
    trend = p_smaller(slopes, np.zeros_like(slopes))
    steps = {
        f"{labels[i]} to {labels[i + 1]}": p_smaller(values[i + 1], values[i]) for i in range(len(labels) - 1)
    }
    details = {
        "sentence": " → ".join(f"{mean:.3f} ({label})" for label, mean in zip(labels, means, strict=True))
        + f"; trend p = {trend:.1g}",
        "means": dict(zip(labels, means, strict=True)),
        "means_in_order": ordered,
        "p_trend": trend,
        "p_steps": steps,
        "level": LEVEL,
    }
    refuted = p_smaller(np.zeros_like(slopes), slopes) < LEVEL
    return Test(ordered and trend < LEVEL, refuted, details, ordered, len(slopes))


def valley(grid: tuple[int, ...], losses: np.ndarray, tests: int = 1) -> Test:
    """The mean is smallest inside the grid, and both ends lie higher; `losses` is (seeds, grid)."""
    means = losses.mean(axis=0)
    best = int(np.argmin(means))
    interior = 0 < best < len(grid) - 1
    ends = {
        str(grid[end]): p_smaller(losses[:, best], losses[:, end]) if end != best else 1.0
        for end in (0, len(grid) - 1)
    }
    level = LEVEL / (2 * tests)
    details = {
        "sentence": f"smallest mean {means[best]:.3f} at {grid[best]}; at the ends {means[0]:.3f} and {means[-1]:.3f}"
        f" (higher: p = {max(ends.values()):.1g})",
        "best": grid[best],
        "interior": interior,
        "means": {str(x): float(mean) for x, mean in zip(grid, means, strict=True)},
        "p_ends_higher": ends,
        "level": level,
    }
    return Test(interior and max(ends.values()) < level, not interior, details, interior, len(losses))


def vertices(grid: tuple[int, ...], losses: np.ndarray) -> np.ndarray:
    """Where each seed's curve is lowest, between grid points: the vertex of a parabola in log x."""
    x = np.log(np.asarray(grid, dtype=float))
    found = []
    for row in losses:
        i = int(np.argmin(row))
        if not 0 < i < len(grid) - 1:
            found.append(float(grid[i]))
            continue
        square, slope, _ = np.polyfit(x[i - 1 : i + 2], row[i - 1 : i + 2], 2)
        found.append(float(np.exp(np.clip(-slope / (2 * square), x[i - 1], x[i + 1]))))
    return np.array(found)
