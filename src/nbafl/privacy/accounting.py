"""From noise to guarantee: what a run with a given noise spends against a given adversary.

With every client in every round the whole run is one Gaussian release and the answer is exact. With K of
N drawn, a record's client takes part r times with r ~ Binomial(T, K/N), and whether it did shows in the
broadcast; so nothing is amplified, and δ(ε) is the mean over r of what r rounds give (math.md (6.1)).
Only the client unit against an adversary that cannot tell who took part is amplified; that is
`subsampling`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq
from scipy.special import logsumexp, ndtr, ndtri
from scipy.stats import binom

from nbafl.errors import UsageError
from nbafl.privacy import subsampling
from nbafl.privacy.adversary import BROADCAST, Adversary
from nbafl.privacy.gaussian import check_delta, gdp_delta, gdp_epsilon, log_gdp_delta
from nbafl.privacy.release import Noise, Release


def epsilon_spent(release: Release, noise: Noise, adversary: Adversary, delta: float) -> float:
    """The ε at δ that holds against the adversary; infinite where no ε does."""
    check_delta(delta)
    if release.everyone:
        return gdp_epsilon(math.sqrt(whole_cost(release, noise, adversary)), delta)
    public = mixture_epsilon(*participation_costs(release, noise, adversary), delta)
    if not subsampling.amplifies(release, noise, adversary):
        return public
    return min(public, subsampling.epsilon(release, noise, adversary, delta))


def delta_spent(release: Release, noise: Noise, adversary: Adversary, epsilon: float) -> float:
    """The δ at ε that holds against the adversary; 1 where nothing is protected."""
    if release.everyone:
        return gdp_delta(epsilon, math.sqrt(whole_cost(release, noise, adversary)))
    public = math.exp(log_mixture_delta(*participation_costs(release, noise, adversary), epsilon))
    if not subsampling.amplifies(release, noise, adversary):
        return public
    return min(public, subsampling.delta(release, noise, adversary, epsilon))


def whole_cost(release: Release, noise: Noise, adversary: Adversary) -> float:
    """mu^2 of all rounds of this run, the target in each of them, and of the runs it goes on with."""
    return release.before(adversary.name) + adversary.cost(release, noise, release.rounds)


def paper_requirement(release: Release, noise: Noise, delta: float) -> dict[str, float]:
    """ε of the paper's two requirements, each alone: L uploads; all broadcasts. Arithmetic, no guarantee."""
    check_delta(delta)
    with np.errstate(divide="ignore"):
        mu = math.sqrt(release.exposures) * float(np.max(release.uplink / noise.sigma_uplink))
    return {"uplink": gdp_epsilon(mu, delta), "downlink": epsilon_spent(release, noise, BROADCAST, delta)}


def participation_weights(release: Release) -> tuple[np.ndarray, np.ndarray]:
    """(r, ln Bin(r; T, K/N)) for every number r of rounds in which a client may find itself."""
    participations = np.arange(release.rounds + 1)
    return participations, binom.logpmf(participations, release.rounds, release.per_round / release.clients)


def participation_costs(
    release: Release, noise: Noise, adversary: Adversary
) -> tuple[np.ndarray, np.ndarray]:
    """(ln weight, μ) for every number of participations, the worst target at each."""
    participations, log_weights = participation_weights(release)
    return log_weights, np.sqrt(
        release.before(adversary.name) + adversary.costs(release, noise, participations)
    )


def log_mixture_delta(log_weights: np.ndarray, mu: np.ndarray, epsilon: float) -> float:
    """ln Σ_r Bin(r; T, q)·δ(ε; μ_r); 0 as soon as some number of participations is not protected at all."""
    if np.isinf(mu).any():
        return 0.0
    return min(0.0, float(_log_mean(log_weights, log_gdp_delta(epsilon, mu))))


def log_mixture_slope(
    log_weights: np.ndarray, mu: np.ndarray, epsilon: float
) -> tuple[np.ndarray, np.ndarray]:
    """For each row of μ: `log_mixture_delta`, and how fast it falls as all μ_r shrink by e^{−x}: ∂δ/∂μ = φ(ε/μ − μ/2)."""
    log_delta = np.minimum(-1e-300, _log_mean(log_weights, log_gdp_delta(epsilon, mu)))
    with np.errstate(divide="ignore"):
        log_change = np.log(mu) - (epsilon / mu - mu / 2) ** 2 / 2 - math.log(2 * math.pi) / 2
    with np.errstate(over="ignore"):
        return log_delta, -np.exp(_log_mean(log_weights, log_change) - log_delta)


def _log_mean(log_weights: np.ndarray, logs: np.ndarray) -> np.ndarray:
    """ln Σ_r e^{log_weight + log} over the last axis."""
    return np.asarray(logsumexp(log_weights + logs, axis=-1))


def mixture_epsilon(log_weights: np.ndarray, mu: np.ndarray, delta: float) -> float:
    """The ε at which the mixture over participations falls to δ."""
    if np.isinf(mu).any():
        # A δ above the chance of being drawn would "hold" with no noise whatever: that is not called private.
        return math.inf
    target = math.log(delta)
    if log_mixture_delta(log_weights, mu, 0.0) <= target:
        return 0.0
    highest = gdp_epsilon(float(mu.max()), delta)
    return float(
        brentq(
            lambda epsilon: log_mixture_delta(log_weights, mu, epsilon) - target,
            0.0,
            highest * (1 + 1e-9),
            xtol=1e-13,
        )
    )


def attack_power(release: Release, noise: Noise, adversary: Adversary, false_positive_rate: float) -> float:
    """The highest true positive rate of any test of the target's data at that false positive rate."""
    if not 0 < false_positive_rate < 1:
        raise UsageError("false_positive_rate", false_positive_rate, "above 0 and below 1")
    whole = gaussian_power(whole_cost(release, noise, adversary), false_positive_rate)
    if release.everyone or whole == 1.0:
        return whole
    spent = functools.partial(delta_spent, release, noise, adversary)
    return min(whole, dual_power(spent, false_positive_rate))


def gaussian_power(cost: float, false_positive_rate: float) -> float:
    """The trade-off curve of μ-GDP: Φ(Φ⁻¹(α) + μ), with μ² = `cost`."""
    return 1.0 if math.isinf(cost) else float(ndtr(ndtri(false_positive_rate) + math.sqrt(cost)))


def dual_power(delta_at: Callable[[float], float], false_positive_rate: float) -> float:
    """By duality every ε gives the bound e^ε·α + δ(ε); beyond ln(1/α) it exceeds 1."""
    epsilons = np.linspace(0.0, -math.log(false_positive_rate), 25)
    spent = [delta_at(float(epsilon)) for epsilon in epsilons]
    return float(np.min(false_positive_rate * np.exp(epsilons) + spent))
