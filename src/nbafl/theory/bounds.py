"""How far the trained model is from the best one: the paper's Theorems 2 and 3, and what can be proved instead.

`printed` evaluates the two theorems letter by letter; it is not an upper bound of anything (docs/errata.md).
`repaired` is one: noise enters with the model's dimension d and the noise scale really used, and clients that
differ enter through the divergence instead of B, which is infinite at the optimum. Every formula says in a
sentence why it has no value outside its domain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from nbafl.privacy.calibration import gaussian_constant, lemma_b, lemma_gamma
from nbafl.theory.assumptions import Constants, Evaluation, TheoremSetting


@dataclass(frozen=True)
class Increment:
    """Lemma 3: the loss grows by at most l2 |grad F|^2 + l1 E|n| |grad F| + l0 E|n|^2 in one aggregation."""

    lambda2: float
    lambda1: float
    lambda0: float

    def expected(self, gradient_norm: float, noise_norm: float, noise_square: float) -> float:
        """The right-hand side of Lemma 3 for |grad F|, E|n| and E|n|^2."""
        return (
            self.lambda2 * gradient_norm**2
            + self.lambda1 * noise_norm * gradient_norm
            + self.lambda0 * noise_square
        )


def lemma3(constants: Constants, mu: float) -> Increment:
    """lambda_2, lambda_1 and lambda_0 as printed, math.md (11.1), for exact local solutions (theta = 0)."""
    rho, dissimilarity = constants.rho, constants.dissimilarity
    return Increment(
        lambda2=-1 / mu + rho * dissimilarity / mu**2 + rho * dissimilarity**2 / (2 * mu**2),
        lambda1=1 / mu + rho * dissimilarity / mu,
        lambda0=rho / 2,
    )


def lemma3_random(constants: Constants, mu: float, clients: int, per_round: int) -> Increment:
    """alpha_2, alpha_1 and alpha_0: the same for K of N clients, as Theorem 3 prints them, math.md (11.4)."""
    rho, b, root = constants.rho, constants.dissimilarity, math.sqrt(per_round)
    inner = rho * b**2 / 2 + rho * b + rho * b**2 / per_round + 2 * rho * b**2 / root + mu * b / root - mu
    return Increment(
        lambda2=inner / mu**2,
        lambda1=1 + 2 * rho * b / mu + 2 * rho * b * root / (mu * clients),
        lambda0=2 * rho * per_round / clients + rho,
    )


def _contraction(name: str, slope: float, slope_name: str, polyak: float) -> tuple[float, str | None]:
    """P (or Q) = 1 + 2 l slope, and why it is no contraction if it is none."""
    factor = 1 + 2 * polyak * slope
    if slope >= 0:
        return (
            factor,
            f"{slope_name} = {slope:.4g} is not negative, so {name} = {factor:.4g} >= 1: mu is too small",
        )
    if factor <= 0:
        return factor, f"{name} = {factor:.4g} is not in (0, 1): l is too large to belong to these rho and B"
    return factor, None


@dataclass(frozen=True)
class Theorem2:
    """h(T) = P^T Theta + (kappa1 T/eps + kappa0 T^2/eps^2)(1 - P^T), T any positive real number."""

    contraction: float  # P
    kappa1: float
    kappa0: float
    initial_gap: float  # Theta
    epsilon: float

    def __call__(self, rounds: float) -> float:
        """The right-hand side of Theorem 2 after T rounds, math.md (11.3)."""
        decay = self.contraction**rounds
        noise = self.kappa1 * rounds / self.epsilon + self.kappa0 * rounds**2 / self.epsilon**2
        return decay * self.initial_gap + noise * (1 - decay)


def theorem2_form(setting: TheoremSetting, constants: Constants) -> tuple[Theorem2 | None, str | None]:
    """Theorem 2 with its constants filled in, math.md (11.2), whatever T; or the reason why there is no such function."""
    if setting.mu == 0:
        return None, "mu = 0: lambda_1 and lambda_2 divide by mu"
    increment = lemma3(constants, setting.mu)
    factor, reason = _contraction("P", increment.lambda2, "lambda_2", constants.polyak)
    if reason is not None:
        return None, reason
    c, m, n = gaussian_constant(setting.delta), setting.samples, setting.clients
    kappa1 = increment.lambda1 * constants.beta * c / (m * (1 - factor)) * math.sqrt(2 / (n * math.pi))
    kappa0 = increment.lambda0 * c**2 / (m**2 * (1 - factor) * n)
    return Theorem2(factor, kappa1, kappa0, constants.initial_gap, setting.epsilon), None


def theorem2(setting: TheoremSetting, constants: Constants) -> Evaluation:
    """Theorem 2 as printed (all N clients, T > L sqrt(N))."""
    form, reason = theorem2_form(setting, constants)
    if form is None:
        return Evaluation.refused(reason or "")
    threshold = setting.exposures * math.sqrt(setting.clients)
    if setting.rounds <= threshold:
        return Evaluation.refused(
            f"T = {setting.rounds} is not above L sqrt(N) = {threshold:.4g}: Theorem 2 leaves that case out"
        )
    return Evaluation(form(setting.rounds))


def theorem3(setting: TheoremSetting, constants: Constants) -> Evaluation:
    """Theorem 3 as printed (K of N clients), math.md (11.5)."""
    if setting.mu == 0:
        return Evaluation.refused("mu = 0: Q divides by mu")
    n, k = setting.clients, setting.per_round
    increment = lemma3_random(constants, setting.mu, n, k)
    factor, reason = _contraction("Q", increment.lambda2, "alpha_2", constants.polyak)
    if reason is not None:
        return Evaluation.refused(reason)
    log, reason = _amplified_share(setting)
    if reason is not None:
        return Evaluation.refused(reason)
    c, m, rounds = gaussian_constant(setting.delta), setting.samples, setting.rounds
    first = c * increment.lambda1 * constants.beta / (m * k * log) * math.sqrt(2 / math.pi)
    second = c**2 * increment.lambda0 / (m**2 * k**2 * log**2)
    decay = factor**rounds
    return Evaluation(decay * constants.initial_gap + (1 - decay) / (1 - factor) * (first + second))


def _amplified_share(setting: TheoremSetting) -> tuple[float, str | None]:
    """-ln(1 - N/K + (N/K) exp(-eps/T)) = b eps / T of the K-random lemma, where T > eps/gamma and it exists."""
    n, k, epsilon, rounds = setting.clients, setting.per_round, setting.epsilon, setting.rounds
    b = lemma_b(epsilon, rounds, k, n)
    if b is None:
        return math.nan, (
            "1 - N/K + (N/K) exp(-eps/T) is not positive and has no logarithm: "
            f"it needs T > -eps/ln(1 - K/N) = {-epsilon / math.log1p(-k / n):.4g}"
        )
    threshold = epsilon / lemma_gamma(epsilon, setting.exposures, k, n)
    if rounds <= threshold:
        return (
            math.nan,
            f"T = {rounds} is not above eps/gamma = {threshold:.4g}, where the lemma's case begins",
        )
    return b * epsilon / rounds, None


def printed(setting: TheoremSetting, constants: Constants) -> Evaluation:
    """The paper's own expression: Theorem 2 for K = N, Theorem 3 for K < N. Not a bound."""
    if setting.per_round == setting.clients:
        return theorem2(setting, constants)
    return theorem3(setting, constants)


@dataclass(frozen=True)
class LocalSolver:
    """How a client treats its proximal problem J = F_i + (mu/2)|w - broadcast|^2."""

    inexactness: float = 0.0  # theta: |grad J(w_i)| <= theta |grad J(broadcast)|; 0: solved exactly
    convex: bool = True  # every F_i is; if not, J is still (mu - rho)-strongly convex where mu > rho

    @staticmethod
    def gradient_descent(steps: int, lr: float, mu: float, rho: float, convex: bool = True) -> LocalSolver:
        """S full-batch steps: grad J(w - lr grad J) = (I - lr H) grad J, H between mu (mu - rho) and mu + rho."""
        least = mu if convex else mu - rho
        return LocalSolver(max(abs(1 - lr * least), abs(1 - lr * (mu + rho))) ** steps, convex)


@dataclass(frozen=True)
class Repaired:
    """E F(next) <= F + slope |grad F|^2 + floor, from which the bound follows as in the proof of Theorem 2."""

    slope: float
    floor: float


def repaired_increment(
    setting: TheoremSetting,
    constants: Constants,
    sigma_aggregate: float,
    dimension: int,
    solver: LocalSolver,
    spread: float | None = None,
) -> Repaired:
    """What takes the place of Lemma 3; needs mu > 0, and mu > rho where the losses are not convex.

    With g = |grad F|, a^2 = g^2 + eps_bar^2 (the mean of |grad F_i|^2) and J strongly convex with constant s:
    |w_i - w| <= (1+theta)|grad F_i|/s and mean w_i - w = -(grad F + e)/mu with |e| <= (rho(1+theta)/s + theta) a.
    Smoothness, g a <= g^2 + eps_bar^2/2 and E n = 0 then give `slope` and `floor` (math.md (11.6) and (11.7)).
    `spread` is V >= (1/N) sum |w_i - mean w|^2 where known; without it, (1+theta)(theta a^2 + eps_bar^2)/s^2 is one,
    by comparing each w_i with the proximal point of F itself.
    """
    theta, mu, rho = solver.inexactness, setting.mu, constants.rho
    strong = mu if solver.convex else mu - rho
    drift = (rho * (1 + theta) / strong + theta) / mu
    reach = rho * (1 + theta) ** 2 / (2 * strong**2)
    drawn = rho / 2 * finite_population(setting.clients, setting.per_round)
    slope = -1 / mu + drift + reach
    floor = rho / 2 * dimension * sigma_aggregate**2 + (drift / 2 + reach) * constants.divergence**2
    if spread is None:
        slope += drawn * (1 + theta) * theta / strong**2
        spread = ((1 + theta) * constants.divergence / strong) ** 2
    return Repaired(slope, floor + drawn * spread)


def repaired(
    setting: TheoremSetting,
    constants: Constants,
    sigma_aggregate: float,
    dimension: int,
    solver: LocalSolver | None = None,
    spread: float | None = None,
) -> Evaluation:
    """An upper bound of E F(w_T) - F(w*), math.md (11.9), if clipping does not bind and the constants hold on the way."""
    solver = solver or LocalSolver()
    if setting.mu == 0:
        return Evaluation.refused("mu = 0: the repaired bound rests on the proximal term")
    if not solver.convex and setting.mu <= constants.rho:
        return Evaluation.refused(
            f"mu = {setting.mu:g} is not above rho = {constants.rho:.4g}, which losses that are not convex need"
        )
    step = repaired_increment(setting, constants, sigma_aggregate, dimension, solver, spread)
    factor, reason = _contraction("P", step.slope, "the slope", constants.polyak)
    if reason is not None:
        return Evaluation.refused(reason)
    decay = factor**setting.rounds
    return Evaluation(decay * constants.initial_gap + step.floor * (1 - decay) / (1 - factor))


def finite_population(clients: int, per_round: int) -> float:
    """phi = (N-K)/(K(N-1)): the variance of a mean of K drawn without replacement, per unit of spread, math.md (11.8)."""
    return 0.0 if per_round == clients else (clients - per_round) / (per_round * (clients - 1))
