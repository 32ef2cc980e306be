"""An accountant that shares no line with nbafl's: 30-digit arithmetic and brute enumeration of who sees what.

What a view of a round tells comes from the Gaussian linear model of what is seen (the shortest noise vector that explains
the shift); the adversary's best choice of rounds, the worst participants and the worst coalition are found by trying all;
epsilon from delta is computed in mpmath; rounds with a secret draw are composed from the analytic distribution of their
privacy loss by a Fourier transform. Slow on purpose, and only for a handful of clients and rounds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import mpmath as mp
import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr

mp.mp.dps = 30


# --- delta and epsilon of a Gaussian, in 30 digits -------------------------------------------------------------------


def gaussian_delta(epsilon: mp.mpf, mu: mp.mpf) -> mp.mpf:
    if mu == 0:
        return mp.mpf(0)
    return mp.ncdf(-epsilon / mu + mu / 2) - mp.exp(epsilon) * mp.ncdf(-epsilon / mu - mu / 2)


def mixture_epsilon(weights: list[mp.mpf], mus: list[mp.mpf], delta: float, guess: float) -> float:
    """The epsilon at which sum_r w_r delta(epsilon; mu_r) falls to delta; `guess` is only where the search begins."""
    if any(math.isinf(mu) for mu in mus):
        return math.inf

    def spent(epsilon: mp.mpf) -> mp.mpf:
        return mp.fsum(weight * gaussian_delta(epsilon, mu) for weight, mu in zip(weights, mus, strict=True))

    if spent(mp.mpf(0)) <= delta:
        return 0.0
    near = _secant(lambda e: mp.log(spent(e) / delta), guess)
    if near is not None:
        return near
    low, high = 0.0, 1.0
    while spent(mp.mpf(high)) > delta:
        low, high = high, 2 * high
    root = brentq(
        lambda e: float(mp.log(spent(mp.mpf(e)) / delta)), low, high, xtol=1e-14, rtol=1e-14, maxiter=200
    )
    return float(root)


def _secant(function: Callable[[mp.mpf], mp.mpf], guess: float) -> float | None:
    """The root near a guess, to 1e-15; None where the search does not settle at once."""
    if not 1e-6 < guess < 1e12:
        return None
    one, other = mp.mpf(guess), mp.mpf(guess) * (1 + mp.mpf("1e-5"))
    at_one, at_other = function(one), function(other)
    for _ in range(6):
        if at_one == at_other:
            return None
        following = other - at_other * (other - one) / (at_other - at_one)
        if not following > 0:
            return None
        one, at_one, other = other, at_other, following
        if abs(one - other) <= 1e-12 * other:
            return float(other)
        at_other = function(other)
    return None


# --- what a view of one round tells ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """A federation as plain numbers."""

    shift: tuple[float, ...]  # how far the protected change moves each client's upload
    weight: tuple[float, ...]
    sigma: tuple[float, ...]
    server: float
    drawn: int
    rounds: int
    exposures: int

    @property
    def clients(self) -> int:
        return len(self.shift)


def view_cost(
    world: World, target: int, members: tuple[int, ...], seen: frozenset[int], extra: float = 0.0
) -> float:
    """mu^2 of one round for whoever sees the broadcast over `members` and the uploads of `seen`.

    What is seen is A D w + shift with w standard normal; the two worlds are as far apart as the shortest w that
    explains the shift, and infinitely far if none does.
    """
    total = sum(world.weight[i] for i in members)
    columns = {client: place for place, client in enumerate(members)}
    spread = np.array([world.sigma[i] for i in members] + [math.sqrt(world.server**2 + extra)])
    rows = [[world.weight[i] / total for i in members] + [1.0]]
    moved = [world.weight[target] / total * world.shift[target]]
    for client in sorted(seen & set(members)):
        rows.append([float(place == columns[client]) for place in range(len(members))] + [0.0])
        moved.append(world.shift[target] if client == target else 0.0)
    matrix, step = np.array(rows) * spread, np.array(moved)
    scale = np.abs(matrix).max() or 1.0
    found, *_ = np.linalg.lstsq(matrix / scale, step / scale, rcond=1e-13)
    if np.abs(matrix @ found - step).max() > 1e-9 * np.abs(step).max():
        return math.inf
    return float(found @ found)


def views(
    world: World, target: int, members: tuple[int, ...], coalition: tuple[int, ...], extra: float = 0.0
) -> tuple[float, float, float]:
    """(its upload is seen, all others are, only the broadcast is), each with what the coalition knows of itself."""
    known = frozenset(coalition)
    return (
        view_cost(world, target, members, known | {target}, extra),
        view_cost(world, target, members, known | (frozenset(members) - {target}), extra),
        view_cost(world, target, members, known, extra),
    )


def allowed(name: str, exposures: int) -> tuple[float, float]:
    """(uploads of the target that may be seen, rounds in which all others may be tapped)."""
    return {
        "broadcast": (0, 0),
        "colluders": (0, 0),
        "targeted": (exposures, 0),
        "eavesdropper": (exposures, exposures),
        "eavesdropper-spread": (exposures, exposures),
        "curious-server": (math.inf, math.inf),
    }[name]


def best_choice(costs: list[tuple[float, float, float]], uploads: float, taps: float) -> float:
    """The most that a choice of what to see in which round brings, all choices tried (counts only where rounds agree)."""
    if len(set(costs)) <= 1:
        own, tapped, bare = costs[0] if costs else (0.0, 0.0, 0.0)
        options = (
            _times(first, own) + _times(second, tapped) + _times(len(costs) - first - second, bare)
            for first in range(int(min(uploads, len(costs))) + 1)
            for second in range(int(min(taps, len(costs) - first)) + 1)
        )
        return max(options)
    best = 0.0
    for choice in itertools.product(range(3), repeat=len(costs)):
        if choice.count(0) <= uploads and choice.count(1) <= taps:
            best = max(best, math.fsum(cost[kind] for cost, kind in zip(costs, choice, strict=True)))
    return best


def _times(count: int, cost: float) -> float:
    return count * cost if count else 0.0


def coalitions(world: World, target: int, size: int) -> list[tuple[int, ...]]:
    return list(itertools.combinations([i for i in range(world.clients) if i != target], size))


# --- whole runs --------------------------------------------------------------------------------------------------------


def worst_rounds(world: World, target: int, name: str, size: int) -> list[tuple[float, float, float]]:
    """The dearest views of a round with the target, over all participants and coalitions; each kind by itself."""
    others = [i for i in range(world.clients) if i != target]
    return [
        views(world, target, tuple(sorted((target, *fellows))), coalition)
        for fellows in itertools.combinations(others, world.drawn - 1)
        for coalition in (coalitions(world, target, size) if name == "colluders" else [()])
    ]


def cost_of(world: World, target: int, name: str, size: int, participations: int) -> float:
    """mu^2 of so many rounds with the target, the same participants in all of them; the worst are found by trying."""
    uploads, taps = allowed(name, world.exposures)
    rounds = set(worst_rounds(world, target, name, size))
    return max(best_choice([each] * participations, uploads, taps) for each in rounds)


def public_epsilon(world: World, name: str, size: int, delta: float, guess: float) -> float:
    """Everybody knows who takes part: the mean over how often a client is drawn, the worst client."""
    if world.drawn == world.clients:
        worst = max(cost_of(world, j, name, size, world.rounds) for j in range(world.clients))
        return mixture_epsilon([mp.mpf(1)], [mp.sqrt(worst)], delta, guess)
    q = mp.mpf(world.drawn) / world.clients
    weights = [
        mp.binomial(world.rounds, r) * q**r * (1 - q) ** (world.rounds - r) for r in range(world.rounds + 1)
    ]
    if any(math.isinf(cost_of(world, j, name, size, 1)) for j in range(world.clients)):
        return math.inf
    return max(
        mixture_epsilon(
            weights,
            [mp.sqrt(cost_of(world, j, name, size, r)) if r else mp.mpf(0) for r in range(world.rounds + 1)],
            delta,
            guess,
        )
        for j in kinds_of(world)
    )


def kinds_of(world: World) -> list[int]:
    """One client of each kind."""
    seen: dict[tuple[float, ...], int] = {}
    for j in range(world.clients):
        seen.setdefault((world.shift[j], world.weight[j], world.sigma[j]), j)
    return list(seen.values())


# --- the secret draw -----------------------------------------------------------------------------------------------------


def loss_tail(losses: np.ndarray, mu: float, q: float, secret: bool) -> np.ndarray:
    """P(loss > l) under the first world of one round.

    From the curve: P(loss > l) = delta(l) - delta'(l). A secret draw has delta(l) = q D(ln(1 + (e^l - 1)/q)) for l >= 0 with
    D of the Gaussian; a public one q D(l). Below zero replacement is symmetric: delta(-l) = 1 - e^-l + e^-l delta(l).
    """
    size = np.abs(losses)
    inner = np.log1p(np.expm1(size) / q) if secret else size
    above = ndtr(-inner / mu + mu / 2)  # P(loss > inner) of the Gaussian round
    below = ndtr(-inner / mu - mu / 2)  # the same under the second world
    if secret:
        # d inner/dl = e^l/(q + e^l - 1), and delta' = -q Q(inner) e^inner inner': what is left of delta - delta' is
        slope = np.exp(size) / (q + np.expm1(size))
        delta = q * (above - np.exp(inner) * below)
        first = delta + q * np.exp(inner) * below * slope
        second = q * below * np.exp(inner) * slope * np.exp(-size)
    else:
        first, second = q * above, q * below
    return np.where(losses >= 0, first, 1 - second)


def secret_epsilon(kinds: list[tuple[float, float, int, bool]], delta: float) -> float:
    """epsilon of rounds (mu, q, how many, secret), composed by a Fourier transform of their loss distributions."""
    reach = sum(count * (mu**2 / 2) for mu, _, count, _ in kinds) + 9 * math.sqrt(
        sum(count * mu**2 for mu, _, count, _ in kinds)
    )
    half = 2**16
    step = 2 * reach / half
    edges = step * (np.arange(-half, half + 1) - 0.5)
    total = np.ones(half + 1, dtype=complex)
    for mu, q, count, secret in kinds:
        mass = -np.diff(loss_tail(edges, mu, q, secret))
        total = total * np.fft.rfft(np.fft.ifftshift(mass)) ** count
    masses = np.fft.fftshift(np.fft.irfft(total, 2 * half))[half:]
    # delta(e) = sum over losses l > e of m(l) - e^e m(l) e^-l: both sums once, from the top.
    losses = step * np.arange(half)
    above = np.cumsum(masses[::-1])[::-1]
    weighed = np.cumsum((masses * np.exp(-losses))[::-1])[::-1]

    def spent(epsilon: float) -> float:
        place = int(np.searchsorted(losses, epsilon, side="right"))
        return float(above[place] - math.exp(epsilon) * weighed[place]) if place < half else 0.0

    if spent(0.0) <= delta:
        return 0.0
    low, high = 0.0, reach
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) > delta else (low, middle)
    return high
