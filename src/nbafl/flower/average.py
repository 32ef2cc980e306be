"""The server's average of a round: an exact sum of uploads, its own noise, and a top-up for those who are missing."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from nbafl.flower.open_round import OpenRound
from nbafl.flower.release import precision_of
from nbafl.plan import Plan
from nbafl.privacy.common_grid import CommonGrid
from nbafl.privacy.dropouts import top_up_variance
from nbafl.privacy.noise import SecureGaussian
from nbafl.privacy.sensitivity import downlink
from nbafl.protocol import normalise


def noisy_average(
    plan: Plan, happened: OpenRound, uploads: Mapping[int, np.ndarray], start: np.ndarray
) -> np.ndarray:
    """sum p_i w_i over those who answered, plus the server's noise, which is written into `happened`.

    `uploads`: by client, in whole steps of the common grid. Their sum is exact, and the noise is added to it on a finer
    grid: math.md (8.4).
    """
    release, noise, reach = plan.release(), plan.noise_scales(), plan.rule.reach(plan)
    drawn, answered = np.array(happened.drawn), np.array(happened.answered)
    share = float(release.weights[answered].sum())
    steps = np.sum([uploads[client] for client in happened.answered], axis=0)
    total = steps * CommonGrid.of(release, noise, reach.radius).step
    weights, sigma_downlink = release.weights[drawn], noise.sigma_downlink
    there = np.isin(drawn, answered)
    extra = top_up_variance(weights, noise.sigma_uplink[drawn], sigma_downlink, there)
    happened.sigma_downlink = math.sqrt(sigma_downlink**2 + extra)
    if happened.sigma_downlink > 0:
        sensitivity = share * downlink(release.uplink[drawn], normalise(weights))
        widening = precision_of(plan, total.size).widening
        nothing = np.zeros_like(total)
        # One float64 addition rounds the exact sum: that reads nothing else, and no sum is too large for it.
        total += SecureGaussian().add(
            nothing, share * happened.sigma_downlink, sensitivity, widening=widening
        )
    return total / share + reach.centre(start)
