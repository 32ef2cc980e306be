"""One Gaussian release in one number.

A vector of sensitivity Δ released with Gaussian noise σ is μ-GDP with μ = Δ/σ, and a sequence of such
releases, each chosen after seeing the ones before, is sqrt(Σμ²)-GDP. So a whole run is one μ, and these
functions translate between μ and (ε, δ) exactly (Dong, Roth and Su, "Gaussian differential privacy",
Corollary 1):

    δ(ε; μ) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2).

The two inverses are dp-accounting's own; δ itself is written here because dp-accounting has no public
function for it, and because accounting needs it for many μ at once.
"""

from __future__ import annotations

import functools
import math

import dp_accounting
import numpy as np
from scipy.special import erfcx, log_ndtr

from nbafl.errors import UsageError

# dp-accounting's tolerance is absolute; this one leaves brentq's relative 1e-15 in charge for small values too.
_TOLERANCE = 1e-15
LEAST_EPSILON, MOST_EPSILON, LEAST_DELTA = 1e-9, 1e9, 1e-300
"""Beyond these no double tells a noise from none, or one guarantee from another."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)


def gdp_delta(epsilon: float, mu: float) -> float:
    """The smallest δ for which a μ-GDP mechanism is (ε, δ)-DP, math.md (3.1); 1 when μ is infinite (no noise)."""
    return float(np.exp(log_gdp_delta(epsilon, mu)[0]))


def log_gdp_delta(epsilon: float | np.ndarray, mu: float | np.ndarray) -> np.ndarray:
    """ln δ(ε; μ) for arrays of ε or μ, without overflow or cancellation at any ε ≥ 0."""
    epsilons, mus = np.broadcast_arrays(np.atleast_1d(np.asarray(epsilon, float)), np.asarray(mu, float))
    if not np.all(epsilons >= 0):
        raise UsageError("epsilon", epsilon, "a number of at least 0")
    if not np.all(mus >= 0):
        raise UsageError("mu", mu, "a number of at least 0")
    answer = np.where(np.isinf(mus), 0.0, -np.inf)
    ordinary = (mus > 0) & np.isfinite(mus) & np.isfinite(epsilons)
    if ordinary.any():
        answer[ordinary] = _log_delta(epsilons[ordinary], mus[ordinary])
    return answer


@functools.lru_cache(maxsize=4096)
def gdp_epsilon(mu: float, delta: float) -> float:
    """The smallest ε for which a μ-GDP mechanism is (ε, δ)-DP; infinite when μ is."""
    check_delta(delta)
    if not mu >= 0:
        raise UsageError("mu", mu, "at least 0")
    if mu == 0:
        return 0.0
    with np.errstate(divide="ignore"):
        return float(dp_accounting.get_epsilon_gaussian(1 / mu, delta, tol=_TOLERANCE))


@functools.lru_cache(maxsize=4096)
def gdp_mu(epsilon: float, delta: float) -> float:
    """μ*(ε, δ): the largest μ that is still (ε, δ)-DP; the inverse of `gdp_epsilon` and `gdp_delta`."""
    check_delta(delta)
    check_epsilon(epsilon)
    with np.errstate(divide="ignore"):
        return 1 / float(dp_accounting.get_sigma_gaussian(epsilon, delta, tol=_TOLERANCE))


def check_epsilon(epsilon: float) -> None:
    """Refuse an ε that no finite noise could be made for, or none that double precision could tell from another."""
    if not LEAST_EPSILON <= epsilon <= MOST_EPSILON:
        raise UsageError("epsilon", epsilon, f"a number from {LEAST_EPSILON:g} to {MOST_EPSILON:g}")


def check_delta(delta: float) -> None:
    """Refuse a δ that is not a probability strictly between 0 and 1, or too small for double precision."""
    if not LEAST_DELTA <= delta < 1:
        raise UsageError("delta", delta, f"at least {LEAST_DELTA:g} and below 1")


def _log_delta(epsilon: np.ndarray, mu: np.ndarray) -> np.ndarray:
    """ln δ = ln Φ(−a) + ln(1 − R(a+μ)/R(a)), with a = ε/μ − μ/2 and Mills' ratio R: no e^ε, so no overflow."""
    lower = epsilon / mu - mu / 2
    return log_ndtr(-lower) + np.log(-np.expm1(_log_mills_ratio_step(lower, mu)))


def _log_mills_ratio_step(lower: np.ndarray, step: np.ndarray) -> np.ndarray:
    """ln R(a+μ) − ln R(a), with R(x) = Φ(−x)/φ(x); always negative."""
    answer = np.log(erfcx((lower + step) / math.sqrt(2))) - _log_scaled_mills_ratio(lower)
    # For small μ the two logarithms agree in most digits: integrate d/dx ln R = −(1/R − x) instead.
    small = step <= 1
    if small.any():
        half = step[small] / 2
        points = (lower[small] + half)[:, None] + half[:, None] * _NODES
        answer[small] = -(_hazard_excess(points) @ _WEIGHTS) * half
    return answer


def _log_scaled_mills_ratio(x: np.ndarray) -> np.ndarray:
    """ln(R(x)·sqrt(2/π)); below zero R itself may overflow, so there it is taken from ln Φ and ln φ."""
    below = np.minimum(x, 0.0)
    return np.where(
        x < 0, log_ndtr(-below) + below**2 / 2 + math.log(2), np.log(erfcx(np.maximum(x, 0.0) / math.sqrt(2)))
    )


def _hazard_excess(x: np.ndarray) -> np.ndarray:
    """1/R(x) − x > 0; from 6 on by the continued fraction 1/(x + 2/(x + 3/(x + …))), as the difference cancels."""
    near = np.minimum(x, 6.0)
    answer = math.sqrt(2 / math.pi) / erfcx(near / math.sqrt(2)) - near
    far = x > 6
    if far.any():
        fraction = x[far]
        for term in range(40, 1, -1):
            fraction = x[far] + term / fraction
        answer[far] = 1 / fraction
    return answer
