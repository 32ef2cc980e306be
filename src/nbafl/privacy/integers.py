"""Sums of integers with discrete Gaussian noise, in mu-GDP: what secure aggregation releases and what it costs.

Client i encodes z_i = round(q_i u_i / gamma) + n_i, the coordinates of n_i independent draws of the discrete Gaussian
D(s), P(k) ~ exp(-k^2/(2 s^2)) over the integers. Everybody draws the same s, so no set of honest clients hides worse
than another of its size. By math.md (9.1) the sum over the honest clients H, also modulo 2^b,
is mu-GDP for one record of client j with

    mu^2 = A_j^2 / (|H| s^2 - 4),    A_j = q_j Delta_j / gamma + sqrt(d) (1 + 2 q_j rho / gamma)        (9.1)

up to a factor e^(+-tau) of every probability. The 4 is what it takes to pass from a discrete to a continuous Gaussian,
once a coordinate; sqrt(d) is rounding to the grid; rho is what float64 may have moved a coordinate. Over T rounds

    delta(epsilon) <= e^tau delta_GDP(epsilon - 2 tau; mu) + tail(epsilon)                               (9.2)

where tau is the sampler's error (each probability right to 2^-44) and tail what lies beyond 13 spreads.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from nbafl.errors import UsageError
from nbafl.privacy.gaussian import check_delta, gdp_epsilon, gdp_mu
from nbafl.privacy.noise import CELL_ERROR, REACH

ROUNDING = 2.0**-33
"""rho: float64 near the largest broadcast that is accepted, `LARGEST_BROADCAST`, the product q u included."""
LARGEST_BROADCAST = 2.0**20
"""A broadcast whose coordinates, with the radius of an update, reach this is refused before anything is recorded."""
SMALLEST_SPREAD = 2.0**10
"""Below, the sampler's densities are no longer those of cells (`noise.SecureGaussian.integers`)."""
BITS = (32, 40)
PRICE_OF_ROUNDING = 0.02
"""With 32 bits a coordinate, rounding may add so much to the sensitivity; beyond, 40 bits are used."""
SPREADS_OF_ROOM = 12.0
"""Room for the noise of a sum: a coordinate leaves it with probability below 4e-33."""
TAIL_SHARE = 0.01
"""The tail of (9.2) may take so much of delta."""


@dataclass(frozen=True)
class Grid:
    """How vectors become integers: step gamma (a power of two), spread s of each client's noise, bits b of a word."""

    step: float
    spread: float
    bits: int

    @property
    def width(self) -> int:
        """Bytes of a word."""
        return self.bits // 8

    @property
    def numbers(self) -> tuple[float, float, int]:
        """(gamma, s, b), for whoever needs only numbers."""
        return self.step, self.spread, self.bits


@dataclass(frozen=True)
class IntegerSums:
    """What is summed: q_i, Delta_i and the largest coordinate of each client, d coordinates, T rounds."""

    weights: np.ndarray
    sensitivities: np.ndarray
    largest: float
    dimension: int
    rounds: int

    @property
    def clients(self) -> int:
        """N."""
        return len(self.weights)

    def reach(self, step: float) -> float:
        """max_j A_j of (1): how far one record (or client) can move the sum, in steps."""
        moved = self.weights * self.sensitivities / step
        rounded = math.sqrt(self.dimension) * (1 + 2 * self.weights * ROUNDING / step)
        return float(np.max(moved + rounded))

    def price_of_rounding(self, step: float) -> float:
        """sqrt(d) gamma / max_j q_j Delta_j: what the grid adds to the sensitivity, as a share of it."""
        return math.sqrt(self.dimension) * step / float(np.max(self.weights * self.sensitivities))

    def cost(self, grid: Grid, honest: int, rounds: int | None = None) -> float:
        """mu^2 of so many rounds whose sums hold the noise of `honest` clients, math.md (9.1); infinite without noise."""
        variance = honest * grid.spread**2 - 4
        if honest < 1 or variance <= 0:
            return math.inf
        return (self.rounds if rounds is None else rounds) * self.reach(grid.step) ** 2 / variance

    @property
    def tau(self) -> float:
        """The largest |log ratio| of probabilities, over all rounds: sampler, and the two lemmas' own errors."""
        return self.rounds * self.dimension * (self.clients * (CELL_ERROR + 1.1e-38) + 1.1e-34)

    def tail(self, epsilon: float) -> float:
        """What draws beyond 13 spreads may add to delta: T d N 2 Phi(-13) (1 + e^epsilon)."""
        beyond = math.erfc(REACH / math.sqrt(2))
        return self.rounds * self.dimension * self.clients * beyond * (1 + math.exp(min(epsilon, 700.0)))

    def epsilon(self, cost: float, delta: float) -> float:
        """The epsilon at delta that (2) gives for mu^2 = cost; infinite where the tail passes its share of delta."""
        check_delta(delta)
        return (
            math.inf if math.isinf(cost) else self.with_integers(partial(gdp_epsilon, math.sqrt(cost)), delta)
        )

    def with_integers(self, ideal: Callable[[float], float], delta: float) -> float:
        """The same where `ideal` gives the epsilon at a delta that the releases would have with ideal noise."""
        tail, epsilon = 0.0, 0.0
        for _ in range(4):  # the tail is far below delta wherever it may be used, so this settles at once
            epsilon = ideal((delta - tail) * math.exp(-self.tau)) + 2 * self.tau
            tail = self.tail(epsilon)
            if tail > TAIL_SHARE * delta:
                return math.inf
        return epsilon

    def largest_mu(self, epsilon: float, delta: float) -> float:
        """mu* = mu*(epsilon - 2 tau, (delta - tail) e^-tau): the inverse of `epsilon`."""
        check_delta(delta)
        tail = self.tail(epsilon)
        if tail > TAIL_SHARE * delta:
            allowed = (
                f"small enough that the noise's tail, {tail:.3g}, stays below delta/100 = {delta / 100:.3g}"
            )
            raise UsageError("epsilon", epsilon, f"{allowed} (secure aggregation)")
        if epsilon <= 2 * self.tau:
            raise UsageError(
                "epsilon", epsilon, f"above {2 * self.tau:.3g}, what the sampler's precision takes"
            )
        return gdp_mu(epsilon - 2 * self.tau, (delta - tail) * math.exp(-self.tau))

    def calibrate(self, epsilon: float, delta: float, honest: int) -> Grid:
        """The finest grid, and the least noise, that hold (epsilon, delta) with `honest` clients' noise in each sum."""
        mu = self.largest_mu(epsilon, delta)
        found = None
        for bits in BITS:
            found = self._finest(mu, honest, bits)
            if found is not None and self.price_of_rounding(found.step) <= PRICE_OF_ROUNDING:
                return found
        if found is None:
            raise UsageError(
                "epsilon",
                epsilon,
                f"such that the noise of a sum fits into {BITS[-1]} bits a coordinate: none does with these sensitivities "
                "(less noise, fewer coordinates or a smaller clipping norm help)",
            )
        return found

    def _finest(self, mu: float, honest: int, bits: int) -> Grid | None:
        """The smallest gamma whose sums fit: s and what has to fit both fall as gamma grows."""
        exponents = range(-200, 200)

        def fitting(exponent: int) -> bool:
            return self.fits(self._at(2.0**exponent, mu, honest, bits))

        place = bisect_left(exponents, True, key=fitting)
        if place == len(exponents):
            return None
        grid = self._at(2.0 ** exponents[place], mu, honest, bits)
        return grid if grid.spread >= SMALLEST_SPREAD else None

    def _at(self, step: float, mu: float, honest: int, bits: int) -> Grid:
        """s^2 = (T max_j A_j^2 / mu*^2 + 4) / |H|: (1) over T rounds is mu*^2."""
        spread = math.sqrt((self.rounds * (self.reach(step) / mu) ** 2 + 4) / honest)
        return Grid(step, spread, bits)

    def fits(self, grid: Grid) -> bool:
        """2^(b-1) > sum q_i U_i/gamma + N/2 + 12 s sqrt(N): no coordinate of a sum wraps around."""
        vectors = float(np.sum(self.weights)) * self.largest / grid.step + self.clients / 2
        return 2.0 ** (grid.bits - 1) > vectors + SPREADS_OF_ROOM * grid.spread * math.sqrt(self.clients)
