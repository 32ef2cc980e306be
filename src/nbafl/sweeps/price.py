"""What all runs of a sweep would cost together, had they been made in a federation.

Runs on the same data compose: whoever sees several of them adds up what each gives away. With every client in every
round a run is one Gaussian release of cost mu^2 and the costs add up. With K of N drawn, the cost of run i depends on
how often the target took part, and the draws of different runs are independent, so the total cost is a sum of
independent random costs and delta(epsilon) is the mean of delta_GDP over it (math.md (6.1)). The
distribution of the sum is computed on a grid of costs, each rounded up, so the price is never too low. A secret draw
is not used here: knowing who took part can only make the price higher. Sums of secure aggregation cost what their
integers cost (9.2). A finished run that plans go on with counts once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from scipy.signal import fftconvolve

from nbafl.plan import Plan
from nbafl.privacy import accounting
from nbafl.privacy.adversary import Adversary
from nbafl.privacy.gaussian import gdp_epsilon
from nbafl.privacy.integers import IntegerSums

CELLS = 4096
"""Cells of the cost grid: rounding up costs at most one cell a run."""
ROUNDING = 1e-13
"""What a Fourier convolution may take from a probability; counted as lost to delta."""


def composed_epsilon(plans: Sequence[Plan], adversary: Adversary, delta: float) -> float:
    """epsilon at `delta` of all runs together against one adversary; infinite where a run has no noise for it."""
    fixed, drawn = _before(plans, adversary), []
    for plan in plans:
        if plan.drawn < plan.clients:
            drawn.append(_costs(plan, adversary))
        else:
            fixed += _cost(plan, adversary)
    if not math.isfinite(fixed) or any(not np.isfinite(costs).all() for _, costs in drawn):
        return math.inf
    ideal = _with_draws(fixed, drawn) if drawn else partial(gdp_epsilon, math.sqrt(fixed))
    sums = [secure.sums for plan in plans if (secure := plan.secure_sums()) is not None]
    return _all_rounds(sums).with_integers(ideal, delta) if sums else ideal(delta)


def _before(plans: Sequence[Plan], adversary: Adversary) -> float:
    """mu^2 of the finished runs that plans go on with; one that several go on with was made once."""
    runs = {(each.plan, each.model): each for plan in plans for each in plan.continues or ()}
    return sum(each.cost.get(adversary.name, math.inf) for each in runs.values())


def _cost(plan: Plan, adversary: Adversary) -> float:
    """mu^2 of one run with every client in every round."""
    release, secure = plan.release(), plan.secure_sums()
    if not adversary.among(plan.clients):
        return math.inf
    if secure is not None:
        return secure.protecting(release.uplink).cost(adversary)
    return adversary.cost(release, plan.noise_scales(), release.rounds)


def _all_rounds(sums: Sequence[IntegerSums]) -> IntegerSums:
    """Sums whose sampler errs at least as much as that of all these together: it grows with N, d and T."""
    dimension, rounds = max(each.dimension for each in sums), sum(each.rounds for each in sums)
    return replace(max(sums, key=lambda each: each.clients), dimension=dimension, rounds=rounds)


def _with_draws(fixed: float, drawn: list[tuple[np.ndarray, np.ndarray]]) -> Callable[[float], float]:
    weights, costs, lost = _sum_of(fixed, drawn)

    def epsilon(delta: float) -> float:
        if lost >= delta:
            return math.inf
        return accounting.mixture_epsilon(np.log(weights), np.sqrt(costs), delta - lost)

    return epsilon


def _costs(plan: Plan, adversary: Adversary) -> tuple[np.ndarray, np.ndarray]:
    """(probability, mu^2) of every number of participations that matters."""
    release = plan.release()
    log_weights, mu = accounting.participation_costs(release, plan.noise_scales(), adversary)
    return np.exp(log_weights), mu**2


def _sum_of(fixed: float, drawn: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray, float]:
    """(probabilities, costs, probability lost to rounding) of `fixed` plus independent costs, on a grid, rounded up."""
    largest = sum(float(costs.max()) for _, costs in drawn)
    cell = largest / CELLS
    total = np.ones(1)
    for weights, costs in drawn:
        places = np.ceil(costs / cell - 1e-9).astype(int)
        one = np.bincount(places, weights=weights)
        total = np.maximum(fftconvolve(total, one), 0.0)
    lost = ROUNDING * len(drawn) + max(0.0, 1 - float(total.sum()))
    kept = total > 0
    return total[kept], fixed + cell * np.flatnonzero(kept), lost
