"""Gaussian noise for a deployment: unpredictable, and on an integer grid.

A simulation may draw its noise from any generator. Noise that hides real people must resist two attacks:

* Guessing the generator. Every release takes a fresh 128-bit key from the operating system for AES in
  counter mode and forgets it afterwards: nothing is left to predict, to fork or to restore. No seed exists.
* Reading the low-order bits (Mironov, CCS 2012). Floating-point numbers are unevenly spaced, so w + noise
  takes values that w' + noise cannot take, and one such value gives the secret away. Here vector and noise
  are whole multiples of one step gamma, added as integers: every integer can come from every vector.

With step gamma, round(w/gamma) + round(n/gamma) is a function of round(w/gamma) + n/gamma, a Gaussian
release whose sensitivity is at most (Delta + gamma sqrt(d))/gamma (rounding moves each coordinate of two
neighbours apart by at most one step): exactly (Delta + gamma sqrt(d))/sigma-GDP, math.md (8.1). `SecureGaussian.add` widens
sigma by the same factor, so that the release costs exactly Delta/sigma, what the plan promised. Rounding the
result to float32 for the wire is post-processing and costs nothing.

What arithmetic of finite precision adds is bounded by `arithmetic_cost` and paid for (`precision`): epsilon by noise
that is wider still, delta by refusing plans whose epsilon is so large that the far tail of the noise would matter.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass

import numpy as np
from randomgen import AESCounter

from nbafl.errors import Refused, UsageError

SPREAD_BITS = 30
"""sigma/gamma lies in [2^30, 2^31): rounding is far below the noise and integers stay exact in float64."""
LARGEST = 2.0**52
"""Coordinates in steps: beyond this gamma times an integer is no longer exact in float64."""
CELL_ERROR = 2.0**-44
"""Relative error of the probability of any integer within REACH spreads (see `_draw`)."""
REACH = 13.0
NEGLIGIBLE = 1e-4
"""Share of delta that the far tail of the noise may take beside it; a plan that needs more is refused."""
BATCH = 2**14
"""Proposals at a time: what fits a core's cache."""


def grid_step(sigma: float) -> float:
    """The step gamma: the power of two that puts sigma/gamma in [2^30, 2^31)."""
    if not 2.0**-900 < sigma < 2.0**900:  # beyond, a step or a multiple of it is no float64 any more
        raise UsageError("sigma", sigma, "a positive number (a release without noise is never made)")
    return 2.0 ** (math.frexp(sigma)[1] - 1 - SPREAD_BITS)


def largest_coordinate(sigma: float) -> float:
    """What the grid of `sigma` can hold, 2^20 sigma or more: ask before there is any data to refuse."""
    return LARGEST / 2 * grid_step(sigma)


def widened(sigma: float, sensitivity: float, dimension: int, rounding: float = 0.0) -> float:
    """sigma as `SecureGaussian.add` draws it: wider by what rounding to the grid adds to the sensitivity."""
    return sigma * (1 + (grid_step(sigma) + 2 * rounding) * math.sqrt(dimension) / sensitivity)


def arithmetic_cost(dimension: int, epsilon: float) -> tuple[float, float]:
    """What finite precision adds to (epsilon, delta) of one release of `dimension` numbers: math.md (8.2).

    Within REACH spreads every probability is within CELL_ERROR of the ideal one, on both sides of the ratio:
    2 d CELL_ERROR. Noise beyond REACH counts as lost: d 2 Phi(-13) of probability, times 1 + e^epsilon.
    """
    tail = dimension * math.erfc(REACH / math.sqrt(2))
    exponent = min(epsilon, 700.0)
    return 2 * dimension * CELL_ERROR, tail * (1 + math.exp(exponent))


@dataclass(frozen=True)
class Precision:
    """How finite precision is paid for in one plan: noise wider by a factor, and what each release adds to epsilon."""

    widening: float
    epsilon: float

    def after(self, before: float, own: float) -> Precision:
        """For a run of cost `own` (mu^2) that goes on with runs of cost `before`, widened or not: its noise pays for all.

        (8.3) asks that before + own/w^2 <= (before + own)/s^2, s being the widening of all rounds together.
        """
        left = (before + own) / self.widening**2 - before
        if left <= 0:
            raise Refused(
                "The earlier runs leave too little of epsilon: finite precision alone would use it up."
            )
        return Precision(math.sqrt(own / left), self.epsilon)


def precision(dimension: int, rounds: int, draws: int, epsilon: float, delta: float) -> Precision:
    """What a plan of (epsilon, delta) needs so that its claim holds with the noise as a machine draws it.

    `draws`: noise vectors in what is seen of a round (the uploads and the server's share in a broadcast; 1 to whoever
    sees each upload by itself). All rounds add e = T·draws·2d·CELL_ERROR to epsilon. With noise wider by
    s = epsilon/(epsilon − e), delta(epsilon − e; mu/s) <= delta(epsilon; mu) for every mu (math.md (8.3)): along the
    line epsilon = x·mu the derivative of delta is e^(x·mu)·(phi(y) − x·Phi(−y)) > 0 with y = x + mu/2, as
    Phi(−y) < phi(y)/y.
    """
    added, lost = (rounds * draws * each for each in arithmetic_cost(dimension, epsilon))
    if lost > NEGLIGIBLE * delta:
        raise Refused(
            f"epsilon {epsilon:g} is too large for noise of finite precision: over {rounds} rounds of {dimension} numbers "
            f"it would add {lost:.2g} to delta {delta:g}."
        )
    if added > epsilon / 2:
        raise Refused(
            f"epsilon {epsilon:g} is too small for a model of {dimension} numbers: finite precision alone adds {added:.2g} "
            f"to it over {rounds} rounds."
        )
    return Precision(epsilon / (epsilon - added), added / rounds)


class SecureGaussian:
    """Gaussian noise keyed by the operating system, added to a vector as integers."""

    def __init__(self, seed: int | None = None) -> None:
        if seed is not None:
            raise Refused(
                f"seed must be absent, got {seed!r}: noise that protects people comes from the operating "
                "system, and a fixed seed would let anyone subtract it."
            )

    def integers(self, spread: float, size: int) -> np.ndarray:
        """`size` draws of round(N(0, spread^2)), as int64; one fresh key for all of them."""
        if not 2.0**10 <= spread <= 2.0**40:
            raise UsageError("spread", spread, "between 2^10 and 2^40 steps")
        words = AESCounter(key=int.from_bytes(secrets.token_bytes(16), "little"))
        parts: list[np.ndarray] = []
        missing = size
        while missing > 0:
            parts.append(_draw(words, spread, min(64 + int(missing * 1.7), BATCH))[:missing])
            missing -= len(parts[-1])
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def add(
        self,
        vector: np.ndarray,
        sigma: float,
        sensitivity: float,
        rounding: float = 0.0,
        widening: float = 1.0,
    ) -> np.ndarray:
        """vector + N(0, sigma^2 I) as float64 multiples of the step: (sensitivity/sigma)-GDP.

        `rounding`: by how much arithmetic may have moved a coordinate off the vector that `sensitivity` is about;
        `widening`: a factor on sigma that pays for finite precision (`precision`).
        """
        if not (math.isfinite(sensitivity) and sensitivity > 0):
            raise UsageError("sensitivity", sensitivity, "a positive number")
        step = grid_step(sigma)
        values = np.asarray(vector, dtype=np.float64).ravel()
        limit = largest_coordinate(sigma)
        if not np.isfinite(values).all() or (values.size and np.abs(values).max() > limit):
            raise Refused(f"the vector must be finite and below {limit:.3g} (sigma {sigma:.3g}).")
        spread = widened(sigma, sensitivity, values.size, rounding) * widening / step
        noise = self.integers(spread, values.size)
        return (np.rint(values / step).astype(np.int64) + noise) * step


def _uniform(words: AESCounter, size: int) -> np.ndarray:
    """Uniform numbers in [0, 1) to 2^-53 of their own size: the small ones get the further bits they need."""
    first = words.random_raw(size)
    values = np.ldexp(first.astype(np.float64), -64)
    small = np.flatnonzero(first < np.uint64(2**56))
    for exponent in (-128, -192):
        values[small] += np.ldexp(words.random_raw(len(small)).astype(np.float64), exponent)
    return values


def _draw(words: AESCounter, spread: float, size: int) -> np.ndarray:
    """Up to `size` integers with probability proportional to exp(-k^2 / (2 spread^2)), by rejection.

    The proposal |k| = B + u is a block start B, a multiple of `width` with probability proportional to
    e^(-B/spread), and u uniform in [0, width), exactly. It stands with probability
    exp(B/spread - k^2/(2 spread^2) - 1/2) <= 1, about two times in three. Every step is relative: block and
    coin keep 53 significant bits where they are tiny, and the exponent is below 100 within REACH, so it is
    right to 100 x 2^-52 < CELL_ERROR. Taking the density at k for the mass of the cell around it is right to
    REACH^2/(24 spread^2): nothing at the spreads `add` uses.
    """
    width = 2 ** (math.floor(math.log2(spread)) - 1)
    start = np.floor(-np.log(_uniform(words, size)) * (spread / width)) * width
    offsets = words.random_raw(size)
    magnitude = start + (offsets & np.uint64(width - 1)).astype(np.float64)
    negative = offsets >= np.uint64(2**63)
    stands = _uniform(words, size) < np.exp(start / spread - (magnitude / spread) ** 2 / 2 - 0.5)
    stands &= ~(negative & (magnitude == 0))  # zero has one sign, not two
    return np.where(negative, -magnitude, magnitude)[stands].astype(np.int64)
