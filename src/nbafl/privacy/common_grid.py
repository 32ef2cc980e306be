"""One grid for the uploads of all clients, so that who sees only their sum learns no more than from the exact sum.

An upload is rounded before it travels. Whoever sees it sees a function of the noisy vector, which costs nothing more. But
a sum of rounded uploads is no function of the sum of noisy vectors: where every upload is rounded on an uneven grid of
its own, as float32 does it, the other clients' noise may be rounded away, and then it hides nobody.

So p_i times client i's noisy offset is rounded to multiples of one step c, at most a quarter of the smallest noise in the
sum, and the server adds up whole multiples: math.md (8.4) shows that such a sum costs what the exact one does. c follows
from the plan alone. What travels is the offset itself, since float32 holds it more finely than the weights around it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nbafl.errors import Refused
from nbafl.privacy.noise import REACH
from nbafl.privacy.release import Noise, Release

FEWEST_STEPS = 4.0
"""Steps in the smallest noise: the sum is then that of exact vectors up to 1e-68 in every coordinate."""
FINER = 2.0**-10
"""How much finer than that the grid is made where float32 can hold it: rounding then adds nothing to the noise."""
HELD = 2.0**22
"""Multiples of the step that float32 tells apart with room to spare."""
SPREADS = 2 * REACH
"""Beyond so many spreads there is no noise, though it be drawn twice as wide as planned."""

SMALLEST, LARGEST = (float(each) for each in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))


@dataclass(frozen=True)
class CommonGrid:
    """Multiples of c, on which p_i times the upload of every client lies."""

    step: float
    """c, a power of two: a multiple of the finer grids that noise is drawn on."""
    weights: np.ndarray
    """p_i of every client."""

    @classmethod
    def of(cls, release: Release, noise: Noise, radius: float) -> CommonGrid:
        """The finest grid that float32 can hold; `radius`: where the last clip keeps an offset. math.md (8.4)."""
        weights, sigma = release.weights, noise.sigma_uplink
        least = float(np.min(weights * sigma))
        if noise.sigma_downlink > 0:
            share = float(np.partition(weights, release.per_round - 1)[: release.per_round].sum())
            least = min(least, share * noise.sigma_downlink)
        farthest = float(np.max(weights * (radius + SPREADS * sigma)))
        if not 0 < farthest <= HELD / 2 * least / FEWEST_STEPS:  # the half: steps are powers of two
            raise Refused(
                f"this plan's noise ({least:.3g} in the average) is too small for its clipping norm {radius:.3g}: "
                "rounded to float32, uploads would not hide each other."
            )
        coarsest = _power_of_two(least / FEWEST_STEPS)
        grid = cls(max(2 * _power_of_two(farthest / HELD), coarsest * FINER), weights)
        # Below its normal numbers float32 has no digits for multiples, and above them infinity.
        if not (grid.step / weights.max() >= SMALLEST and HELD * grid.step / weights.min() <= LARGEST):
            raise Refused(f"this plan's clipping norm {radius:.3g} is out of the range of float32.")
        return grid

    def holds(self, largest: float) -> bool:
        """Whether float32 tells multiples apart as far out as that."""
        return largest <= HELD * self.step

    def rounded(self, noisy: np.ndarray, client: int) -> np.ndarray:
        """What client i sends, float32; `noisy`: p_i times its offset, with noise."""
        # floor(z + 1/2) and not rint: adding a multiple of the step before or after must come to the same.
        return (np.floor(noisy / self.step + 0.5) * (self.step / self.weights[client])).astype(np.float32)

    def multiples(self, offset: np.ndarray, client: int) -> np.ndarray:
        """What client i sent, in whole steps: exact, and so is every sum of them in float64."""
        return np.rint(offset * (self.weights[client] / self.step))


def _power_of_two(value: float) -> float:
    """The largest power of two that is not above the value."""
    return 2.0 ** (math.frexp(value)[1] - 1)
