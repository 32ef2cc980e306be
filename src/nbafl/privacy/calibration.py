"""From claim to noise: how much Gaussian noise each client and the server add for a given (ε, δ).

Three rules. `paper` is the paper's as printed: the classical formula with c = sqrt(2 ln(1.25/δ)) outside
the range it was proved for, composed linearly, one requirement for the uplink and one for the downlink.
`separate` keeps the two requirements and makes the arithmetic exact; it shows what the classical formula
costs, but bounds no adversary jointly. `exact` gives the least noise in the broadcast, σ_A, for which the
named adversary is held to (ε, δ).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from nbafl.errors import Refused, UsageError
from nbafl.privacy import accounting, subsampling
from nbafl.privacy.adversary import BROADCAST, Adversary
from nbafl.privacy.gaussian import check_delta, check_epsilon, gdp_epsilon, gdp_mu
from nbafl.privacy.release import Noise, Release, check_coalition
from nbafl.privacy.sensitivity import downlink

RULES = ("paper", "separate", "exact")
LEAST_LEFT = 1e-6
"""Less than this share of a budget is none: noise a thousand times as large would drown any model."""


def calibrate(rule: str, release: Release, epsilon: float, delta: float, adversary: Adversary) -> Noise:
    """The noise of the named rule; only `exact` looks at the adversary."""
    check_epsilon(epsilon)
    check_delta(delta)
    if rule == "paper":
        return paper(release, epsilon, delta)
    if rule == "separate":
        return separate(release, epsilon, delta)
    if rule == "exact":
        return exact(release, epsilon, delta, adversary)
    raise UsageError("calibration", rule, "paper, separate or exact")


def paper(release: Release, epsilon: float, delta: float) -> Noise:
    """The paper's noise, math.md (5.1) to (5.3), with the smallest client's Δ_U: Theorem 1 or the K-lemma."""
    c = gaussian_constant(delta)
    rounds, exposures, drawn = release.rounds, release.exposures, release.per_round
    sensitivity = float(release.uplink.max())
    if release.everyone:
        excess = float(rounds**2 - exposures**2 * drawn)  # Theorem 1: noise only if T > L√N
    else:
        excess = _lemma_excess(epsilon, rounds, exposures, drawn, release.clients)
    sigma_downlink = c * sensitivity * math.sqrt(max(0.0, excess)) / (drawn * epsilon)
    return Noise(np.full(release.clients, c * exposures * sensitivity / epsilon), sigma_downlink)


def gaussian_constant(delta: float) -> float:
    """The paper's c = sqrt(2 ln(1.25/δ))."""
    return math.sqrt(2 * math.log(1.25 / delta))


def lemma_b(epsilon: float, rounds: int, per_round: int, clients: int) -> float | None:
    """The K-lemma's b = −(T/ε)·ln(1 − N/K + (N/K)e^{−ε/T}), or None where T ≤ −ε/ln(1 − K/N) and it does not exist."""
    argument = 1 + math.expm1(-epsilon / rounds) * clients / per_round
    return -rounds / epsilon * math.log(argument) if argument > 0 else None


def lemma_gamma(epsilon: float, exposures: int, per_round: int, clients: int) -> float:
    """The K-lemma's γ = −ln(1 − K/N + (K/N)e^{−ε/(L√K)}); the server adds noise only if T > ε/γ."""
    return -math.log1p(math.expm1(-epsilon / (exposures * math.sqrt(per_round))) * per_round / clients)


def _lemma_excess(epsilon: float, rounds: int, exposures: int, per_round: int, clients: int) -> float:
    """T²/b² − L²K where the K-lemma adds server noise, else 0; wherever T > ε/γ, b exists."""
    b = lemma_b(epsilon, rounds, per_round, clients)
    if b is None or rounds <= epsilon / lemma_gamma(epsilon, exposures, per_round, clients):
        return 0.0
    return rounds**2 / b**2 - exposures**2 * per_round


def separate(release: Release, epsilon: float, delta: float) -> Noise:
    """The paper's two requirements, each exact and each alone, math.md (5.4). Not a guarantee."""
    mu = gdp_mu(epsilon, delta)
    sigma_uplink = release.uplink * math.sqrt(release.exposures) / mu
    if release.everyone:
        needed = release.rounds * downlink(release.uplink, release.weights) ** 2 / mu**2
        missing = needed - float(np.sum((release.weights * sigma_uplink) ** 2))
        return Noise(sigma_uplink, math.sqrt(missing) if missing > 1e-12 * needed else 0.0)

    present = Noise(sigma_uplink, 0.0).aggregate(release)

    def server(log_aggregate: float) -> Noise:
        return Noise(sigma_uplink, math.sqrt(max(0.0, math.exp(2 * log_aggregate) - present**2)))

    def spent(log_aggregate: float) -> float:
        return accounting.delta_spent(release, server(log_aggregate), BROADCAST, epsilon)

    if spent(math.log(present)) <= delta:
        return Noise(sigma_uplink, 0.0)
    high = math.log(max(present, exact(release, epsilon, delta, BROADCAST).aggregate(release))) + 1e-9
    while spent(high) > delta:  # clients that differ may need more than the noise made for them
        high += 0.25
    return server(_least(spent, delta, high))


def exact(release: Release, epsilon: float, delta: float, adversary: Adversary) -> Noise:
    """The least σ_A² = Σp_i²σ_i² + σ_D² for the adversary at (ε, δ), math.md (5.5); against colluders with σ_D = 0."""
    check_coalition(release, adversary.colluders)
    if release.everyone:
        return _exact_everyone(release, mu_left(release, epsilon, delta, adversary), adversary)
    if release.earlier:
        raise UsageError("per_round", release.per_round, "unset in a run that goes on with another one")
    return _exact_drawn(release, epsilon, delta, adversary)


def training_share(epsilon: float, delta: float, reserve: float) -> float:
    """The epsilon of the training alone where a share of mu*(epsilon, delta)^2 is kept for scores, math.md (10.4)."""
    if not reserve:
        return epsilon
    left = gdp_epsilon(math.sqrt(1 - reserve) * gdp_mu(epsilon, delta), delta)
    if left < LEAST_LEFT * epsilon:
        raise UsageError("reserve", reserve, f"smaller: it leaves the training no epsilon at delta {delta:g}")
    return left


def mu_left(release: Release, epsilon: float, delta: float, adversary: Adversary) -> float:
    """What earlier runs leave of mu*(epsilon, delta): sqrt(mu*^2 - mu_1^2 - ...); a spent budget is refused."""
    before = release.before(adversary.name)
    whole = gdp_mu(epsilon, delta) ** 2
    if before < whole * (1 - LEAST_LEFT):
        return math.sqrt(whole - before)
    if math.isinf(before):
        raise Refused(f"an earlier run has no price against {adversary.name}, so it cannot be continued.")
    raise Refused(
        f"the budget is spent: the earlier runs alone cost epsilon {gdp_epsilon(math.sqrt(before), delta):.6g} at delta "
        f"{delta:g} against {adversary.name}, and all of them and this run together have noise for epsilon {epsilon:g}."
    )


def _exact_everyone(release: Release, mu: float, adversary: Adversary) -> Noise:
    """K = N. In x_i = (p_iσ_i)², k_i = (p_iΔ_i)², D = σ_D², A = Σx + D each client asks αk/x + βk/(x+D) + γk/A ≤ μ²."""
    shares = (release.weights * release.uplink) ** 2
    needed = release.rounds * float(shares.max()) / mu**2
    if adversary.colluders:
        variances = _among_colluders(release.rounds * shares / mu**2, adversary.colluders)
        return Noise(np.sqrt(variances) / release.weights, 0.0)
    views = adversary.views(release.exposures, np.array([float(release.rounds)]), np.ones(1))
    uploads, tapped, rest = (float(view[0]) for view in views)
    if uploads == 0:
        # Any split gives the same broadcast; noise at the clients is the one that protects the uploads as well.
        return Noise(release.uplink * math.sqrt(needed / np.sum(shares)), 0.0)
    if np.ptp(shares) <= 1e-12 * shares.max():
        scale, ratio = _closed_form(release.clients, uploads, tapped, rest)
        return Noise(release.uplink * scale / mu, math.sqrt(ratio * shares.max()) * scale / mu)
    kinds, kind_of, counts = np.unique(shares, return_inverse=True, return_counts=True)
    variances, server = _own_noise(kinds, counts, mu, uploads, tapped, rest)
    return Noise(np.sqrt(variances[kind_of]) / release.weights, math.sqrt(server))


def _among_colluders(needed: np.ndarray, coalition: int) -> np.ndarray:
    """x_i = (p_iσ_i)² of least sum for which any N − a clients, j among them, hold `needed`_j = Tk_j/μ² or more.

    The server could do with less noise, but then uploads would carry none and no client would send one: σ_D = 0. All
    clients hold y, and those who need more than (N − a)y hold what (N − 1 − a)y leaves open; as long as they are at most
    a + 1, each finds N − 1 − a others of y, so every requirement is met (math.md (5.10)). The sum is piecewise linear in
    y: its least value is at one of the corners. Equal clients, math.md (5.9): y = Tk/(μ²(N − a)), so
    σ_U = (Δ_U/μ)·sqrt(T/(N − a)).
    """
    honest = len(needed) - coalition
    largest = np.sort(needed)[::-1][: coalition + 2]
    corners = [*(largest / honest), *([0.0] if honest == 1 else [])]
    splits = [np.maximum(y, needed - (honest - 1) * y) for y in corners]
    return min(splits, key=lambda variances: float(variances.sum()))


def _closed_form(clients: int, uploads: float, tapped: float, rest: float) -> tuple[float, float]:
    """(μσ_U/Δ_U, r = D/x) for constant p_iΔ_i: r = max(0, sqrt(L'(N−1)/L) − 1) (math.md (5.6))."""
    ratio = max(0.0, math.sqrt(tapped * (clients - 1) / uploads) - 1)
    return math.sqrt(uploads + tapped / (1 + ratio) + rest / (clients + ratio)), ratio


def _own_noise(
    shares: np.ndarray, counts: np.ndarray, mu: float, uploads: float, tapped: float, rest: float
) -> tuple[np.ndarray, float]:
    """(x_i, D) of least A where p_iΔ_i differ: a convex problem, solved for A at each D and then over D."""

    def client_variances(aggregate: float, server: float) -> np.ndarray:
        # The positive root of Rx² + (RD − (α+β)k)x − αkD = 0, in the form that does not cancel.
        left = mu**2 - rest * shares / aggregate
        linear = (uploads + tapped) * shares - left * server
        product = 4 * left * uploads * shares * server
        root = np.sqrt(linear**2 + product)
        conjugate = product / np.where(linear > 0, 1.0, root - linear)
        return np.where(linear > 0, root + linear, conjugate) / (2 * left)

    def aggregate_for(server: float) -> float:
        def excess(aggregate: float) -> float:
            return float(counts @ client_variances(aggregate, server)) + server - aggregate

        low = rest * shares.max() / mu**2
        high = 2 * (low + server + float(counts @ shares) * (uploads + tapped) / mu**2)
        while excess(high) > 0:
            high *= 2
        if rest == 0:
            return excess(high) + high
        return float(brentq(excess, low * (1 + 1e-13), high, xtol=1e-15 * high, rtol=1e-14))

    none = aggregate_for(0.0)
    server = 0.0
    if tapped > 0:
        best = minimize_scalar(
            aggregate_for, bounds=(0.0, none), method="bounded", options={"xatol": 1e-9 * none}
        )
        server = float(best.x) if best.fun < none else 0.0
    return client_variances(aggregate_for(server), server), server


def _exact_drawn(release: Release, epsilon: float, delta: float, adversary: Adversary) -> Noise:
    """K < N: σ_i ∝ Δ_i, the best ratio of server to client noise, and the scale at which the target δ is met."""
    drawn = -math.expm1(release.rounds * math.log1p(-release.per_round / release.clients))
    if delta >= drawn:
        allowed = f"below {drawn:.6g}, the chance that a client is drawn at all, or no noise would be needed"
        raise UsageError("delta", delta, allowed)
    unit = downlink(release.uplink, release.weights) * release.clients / release.per_round
    if adversary.others == "none":
        return _scaled(release, epsilon, delta, adversary, Noise(release.uplink, 0.0))
    participations, log_weights = accounting.participation_weights(release)
    nearby: float | None = None  # the scale found last is where the next search starts

    def shape(log_ratio: float) -> Noise:
        return Noise(release.uplink, unit * math.sqrt(math.expm1(log_ratio)))

    def aggregates(log_ratios: np.ndarray) -> np.ndarray:
        nonlocal nearby
        shapes = [shape(float(log_ratio)) for log_ratio in log_ratios]
        mu = np.sqrt([adversary.costs(release, each, participations) for each in shapes])
        scales = _log_scales(log_weights, mu, epsilon, delta, nearby)
        found = np.array([each.aggregate(release) for each in shapes]) * np.exp(scales)
        nearby = float(scales[np.argmin(found)])
        return found

    best = _minimise(aggregates, math.log1p(10 * release.clients))
    return _scaled(release, epsilon, delta, adversary, shape(best))


def _scaled(release: Release, epsilon: float, delta: float, adversary: Adversary, shape: Noise) -> Noise:
    """The smallest multiple of a noise that holds the adversary to (ε, δ)."""
    log_weights, mu = accounting.participation_costs(release, shape, adversary)
    scale = float(_log_scales(log_weights, mu[None], epsilon, delta)[0])
    if subsampling.amplifies(release, shape, adversary):

        def spent(log_scale: float) -> float:
            return accounting.delta_spent(release, _multiple(shape, math.exp(log_scale)), adversary, epsilon)

        scale = _least(spent, delta, scale + 1e-9)
    return _multiple(shape, math.exp(scale))


def _log_scales(
    log_weights: np.ndarray, mu: np.ndarray, epsilon: float, delta: float, start: float | None = None
) -> np.ndarray:
    """For each row of μ_r the x at which Σ_r Bin(r; T, q)·δ(ε; μ_r·e^{−x}) = δ, all rows at once.

    ln ln(1/δ) is nearly straight in x (of slope 2 where δ is small), so Newton's method needs few steps; a bracket
    catches it where the line bends.
    """
    low = np.full(len(mu), -np.inf)
    # Enough noise for T participations is enough.
    high = np.log(mu.max(axis=1) / gdp_mu(epsilon, delta)) + 1e-9
    x = high if start is None else np.minimum(start, high)
    likely = log_weights > math.log(delta) - 40  # all others together add less than 1e-13 of δ
    log_weights, mu = log_weights[likely], mu[:, likely]
    for _ in range(100):
        log_delta, slope = accounting.log_mixture_slope(log_weights, mu * np.exp(-x)[:, None], epsilon)
        excess = _log_log(delta) - np.log(-log_delta)
        low, high = np.where(excess > 0, x, low), np.where(excess > 0, high, x)
        with np.errstate(all="ignore"):
            newton = x + excess * log_delta / slope
        # Beyond, where little noise is left, the line is steep and curved. A huge ε makes stairs of it: no step is long.
        near = (excess < 0.5) & (slope < 0) & np.isfinite(slope)
        close = near & (np.abs(newton - x) < 1e-7)  # errors square: this step leaves about 1e-14
        middle = np.where(np.isinf(low), high - 1, (low + high) / 2)
        inside = near & (np.maximum(low, x - 1) < newton) & (newton < high)
        x = np.where(close | inside, newton, middle)
        if close.all():
            break
    return x


def _multiple(noise: Noise, scale: float) -> Noise:
    return Noise(noise.sigma_uplink * scale, noise.sigma_downlink * scale)


def _least(spent: Callable[[float], float], delta: float, high: float) -> float:
    """The least x, to 1e-9, at which a decreasing δ(x) does not exceed δ; it does not at `high`."""

    def excess(x: float) -> float:
        return _log_log(delta) - _log_log(min(max(spent(x), 1e-300), 1 - 1e-15))

    step = 0.25
    low = high - step
    while excess(low) <= 0:
        high, step = low, 2 * step
        low = high - step
    root = float(brentq(excess, low, high, xtol=1e-9))
    more = 1e-9
    while excess(root) > 0:  # δ(x) is rough in its last digits: end where it is met
        root, more = root + more, 2 * more
    return root


def _log_log(delta: float) -> float:
    return math.log(-math.log(delta))


def _minimise(function: Callable[[np.ndarray], np.ndarray], high: float) -> float:
    """The minimiser over [0, high]: a coarse grid finds the valley, a bounded search its floor."""
    grid = np.linspace(0.0, high, 9)
    values = function(grid)
    lowest = int(np.argmin(values))
    bounds = (float(grid[max(0, lowest - 1)]), float(grid[min(8, lowest + 1)]))
    # The function is flat at its minimum: 1e-5 here is about 1e-10 in σ_A.
    best = minimize_scalar(
        lambda x: float(function(np.array([x]))[0]), bounds=bounds, method="bounded", options={"xatol": 1e-5}
    )
    return float(best.x) if best.fun < values[lowest] else float(grid[lowest])
