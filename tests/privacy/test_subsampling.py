"""The amplified client unit between two of dp-accounting's accountants, and against a mechanism worked out exactly."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from nbafl.privacy import accounting, adversary, sensitivity, subsampling
from nbafl.privacy.calibration import calibrate
from nbafl.privacy.gaussian import gdp_delta, gdp_epsilon
from nbafl.privacy.release import Noise, Release
from nbafl.privacy.subsampling import Rounds

REPLACE = dp_accounting.NeighboringRelation.REPLACE_ONE


def client_release(
    clients: int = 50, per_round: int = 10, rounds: int = 25, adjacency: str = "replace", exposures: int = 1
) -> Release:
    model = sensitivity.client(1.0, clients, adjacency)
    return Release(model, np.full(clients, 1 / clients), rounds, per_round, exposures)


def rdp_epsilon(mu: float, clients: int, per_round: int, rounds: int, delta: float) -> float:
    """Rényi accounting of the same draws. Its noise multiplier is σ over the whole change Δ = 2C/K, that is 1/μ."""
    accountant = RdpAccountant(neighboring_relation=REPLACE)
    round_event = dp_accounting.SampledWithoutReplacementDpEvent(
        clients, per_round, dp_accounting.GaussianDpEvent(1 / mu)
    )
    accountant.compose(round_event, rounds)
    return accountant.get_epsilon(delta)


def poisson_epsilon(mu: float, q: float, rounds: int, delta: float) -> float:
    """Poisson draws, add or remove one. When all other clients send the same, removal is one replacement: a floor."""
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(1 / mu)), rounds)
    return accountant.get_epsilon(delta)


@pytest.mark.parametrize(
    ("clients", "per_round", "rounds", "mu"),
    [(50, 10, 25, 0.4), (50, 20, 25, 1.0), (1000, 20, 100, 0.7), (20, 19, 5, 0.5)],
)
def test_between_poisson_and_renyi(clients: int, per_round: int, rounds: int, mu: float) -> None:
    release = client_release(clients, per_round, rounds)
    # σ_A = Δ/μ with Δ = 2C/K, all of it from the clients: σ_U = σ_A·√K.
    noise = Noise(np.full(clients, 2 / per_round / mu * math.sqrt(per_round)), 0.0)
    found = accounting.epsilon_spent(release, noise, adversary.BROADCAST, 1e-5)
    assert found <= rdp_epsilon(mu, clients, per_round, rounds, 1e-5)
    assert found >= poisson_epsilon(mu, per_round / clients, rounds, 1e-5) * (1 - 1e-3)
    public = accounting.mixture_epsilon(
        *accounting.participation_costs(release, noise, adversary.BROADCAST), 1e-5
    )
    assert found < public


def test_what_a_noise_multiplier_means_to_each_accountant() -> None:
    """The same release, σ = 3 and C = 1 replaced: PLD wants σ/C, RDP wants σ/(2C). Mixing them up halves the noise."""
    exact = gdp_epsilon(2 / 3, 1e-5)
    pld = dp_accounting.pld.PLDAccountant(REPLACE)
    pld.compose(dp_accounting.GaussianDpEvent(3.0))
    assert pld.get_epsilon(1e-5) == pytest.approx(exact, rel=1e-3)
    rdp = RdpAccountant(neighboring_relation=REPLACE)
    rdp.compose(dp_accounting.GaussianDpEvent(1.5))
    wrong = RdpAccountant(neighboring_relation=REPLACE)
    wrong.compose(dp_accounting.GaussianDpEvent(3.0))
    assert wrong.get_epsilon(1e-5) < exact <= rdp.get_epsilon(1e-5)


@pytest.mark.parametrize(("mu", "rounds"), [(0.2, 10), (1.0, 4), (2.0, 30)])
def test_without_a_secret_it_is_plain_composition(mu: float, rounds: int) -> None:
    losses = subsampling.composed(Rounds(mu, 1 - 1e-12, rounds))
    for delta in (1e-8, 1e-5, 0.01):
        exact = gdp_epsilon(mu * math.sqrt(rounds), delta)
        assert exact <= losses.get_epsilon_for_delta(delta) * (1 + 1e-9)
        assert losses.get_epsilon_for_delta(delta) == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize("delta", [1e-12, 1e-11, 1e-9])
def test_rounding_over_many_rounds_understates_nothing(delta: float) -> None:
    """A draw that leaves out one of 100,000: what ten thousand rounds spend is known to 1e-5 by plain composition."""
    release = client_release(100_000, 99_999, 10_000)
    noise = Noise(np.zeros(100_000), 2 / (99_999 * 0.05))
    truth = gdp_epsilon(0.05 * math.sqrt(10_000), delta)
    assert subsampling.epsilon(release, noise, adversary.BROADCAST, delta) >= truth * (1 - 2e-5)
    assert subsampling.delta(release, noise, adversary.BROADCAST, truth) >= delta * (1 - 1e-3)
    assert subsampling.delta(release, noise, adversary.BROADCAST, 2 * truth) >= 0


def hockey_stick(first: np.ndarray, second: np.ndarray, width: float, epsilon: float) -> float:
    return float(np.sum(np.maximum(0.0, first - math.exp(epsilon) * second)) * width)


@given(
    clients=st.integers(2, 8),
    data=st.data(),
    sigma=st.floats(0.3, 3),
    epsilon=st.floats(0, 4),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_one_round_of_a_real_draw_is_dominated(
    clients: int, data: st.DataObject, sigma: float, epsilon: float, seed: int
) -> None:
    """One number per client in [−C, C], K drawn, averaged and noised: its density is a sum over all draws of size K."""
    per_round = data.draw(st.integers(1, clients - 1))
    rng = np.random.default_rng(seed)
    values = rng.choice([-1.0, 1.0, rng.uniform(-1, 1)], clients)
    values[0], other = 1.0, values.copy()
    other[0] = -1.0
    points, width = np.linspace(-30 * sigma - 1, 30 * sigma + 1, 20_001, retstep=True)
    draws = [rows for rows in np.ndindex(*(2,) * clients) if sum(rows) == per_round]
    first, second = (
        np.mean([norm.pdf(points, np.dot(rows, v) / per_round, sigma) for rows in draws], axis=0)
        for v in (values, other)
    )
    release = client_release(clients, per_round, 1)
    noise = Noise(np.full(clients, sigma * math.sqrt(per_round)), 0.0)
    bound = accounting.delta_spent(release, noise, adversary.BROADCAST, epsilon)
    assert hockey_stick(first, second, width, epsilon) <= bound + 1e-6  # the sum is over a grid
    assert hockey_stick(second, first, width, epsilon) <= bound + 1e-6  # the sum is over a grid


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.5])
def test_the_bound_of_one_round_is_attained(epsilon: float) -> None:
    """All others at −C: the draw shows only through the target, and δ = q·δ(ln(1 + (e^ε − 1)/q)) with equality."""
    sigma, q = 0.8, 0.25
    points, width = np.linspace(-40, 40, 200_001, retstep=True)
    first = q * norm.pdf(points, 1.0, sigma) + (1 - q) * norm.pdf(points, -1.0, sigma)
    truth = hockey_stick(first, norm.pdf(points, -1.0, sigma), width, epsilon)
    release, noise = client_release(4, 1, 1), Noise(np.full(4, sigma), 0.0)
    assert truth == pytest.approx(q * gdp_delta(math.log1p(math.expm1(epsilon) / q), 2 / sigma), rel=1e-6)
    assert accounting.delta_spent(release, noise, adversary.BROADCAST, epsilon) == pytest.approx(
        truth, rel=1e-4
    )


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 2.0])
def test_a_colluder_that_knows_it_was_not_drawn_is_dominated(epsilon: float) -> None:
    """One of three drawn, one colluding: if the colluder was not drawn (2/3), the target was with probability 1/2."""
    sigma = 0.8
    points, width = np.linspace(-40, 40, 200_001, retstep=True)
    first = (norm.pdf(points, 1.0, sigma) + norm.pdf(points, -1.0, sigma)) / 2
    truth = 2 / 3 * hockey_stick(first, norm.pdf(points, -1.0, sigma), width, epsilon)
    release, noise = client_release(3, 1, 1), Noise(np.zeros(3), sigma)
    assert accounting.delta_spent(release, noise, adversary.colluders(1), epsilon) >= truth * (1 - 1e-6)
    assert accounting.delta_spent(release, noise, adversary.BROADCAST, epsilon) < truth


def test_two_adaptive_rounds_are_dominated() -> None:
    """Two rounds of the worst pair, composed numerically on a plane."""
    sigma, q, epsilon = 1.2, 0.25, 0.7
    points, width = np.linspace(-14, 14, 1401, retstep=True)
    first = q * norm.pdf(points, 1.0, sigma) + (1 - q) * norm.pdf(points, -1.0, sigma)
    second = norm.pdf(points, -1.0, sigma)
    plane = np.outer(first, first) - math.exp(epsilon) * np.outer(second, second)
    truth = float(np.sum(np.maximum(0.0, plane)) * width**2)
    release, noise = client_release(4, 1, 2), Noise(np.full(4, sigma), 0.0)
    bound = accounting.delta_spent(release, noise, adversary.BROADCAST, epsilon)
    assert truth <= bound * (1 + 1e-6)
    assert bound <= 1.3 * truth


@pytest.mark.parametrize("adjacency", ["replace", "drop"])
@pytest.mark.parametrize("which", [adversary.BROADCAST, adversary.colluders(3)])
def test_calibration_is_inverse(adjacency: str, which: adversary.Adversary) -> None:
    release = client_release(40, 8, 12, adjacency)
    noise = calibrate("exact", release, 2.0, 1e-5, which)
    assert accounting.epsilon_spent(release, noise, which, 1e-5) == pytest.approx(2.0, rel=1e-6)
    assert accounting.delta_spent(release, noise, which, 2.0) == pytest.approx(1e-5, rel=1e-5)


@pytest.mark.parametrize(
    ("clients", "per_round", "rounds", "epsilon"), [(10_000, 1053, 5, 0.89), (7, 5, 25, 1.97)]
)
def test_calibration_never_ends_on_the_wrong_side(
    clients: int, per_round: int, rounds: int, epsilon: float
) -> None:
    """At a tiny δ the composed loss is rough in its last digits: the noise must still be worth what was asked for."""
    release = client_release(clients, per_round, rounds)
    for which in (adversary.BROADCAST, adversary.colluders(1)):
        noise = calibrate("exact", release, epsilon, 1e-12, which)
        spent = accounting.epsilon_spent(release, noise, which, 1e-12)
        assert epsilon * (1 - 1e-4) <= spent <= epsilon * (1 + 1e-9)


def test_who_is_amplified() -> None:
    release, noise = client_release(), Noise(np.ones(50), 0.0)
    assert subsampling.amplifies(release, noise, adversary.BROADCAST)
    assert subsampling.amplifies(release, noise, adversary.colluders(39))
    assert not subsampling.amplifies(release, noise, adversary.colluders(40))
    for seeing in (each for each in adversary.table() if each.sees_participation):
        assert not subsampling.amplifies(release, noise, seeing)
    assert not subsampling.amplifies(client_release(per_round=50), noise, adversary.BROADCAST)
    assert not subsampling.amplifies(release, Noise(np.arange(1, 51.0), 0.0), adversary.BROADCAST)
    uneven = Release(release.sensitivity, np.arange(1, 51) / 1275, 25, 10, 1)
    assert not subsampling.amplifies(uneven, noise, adversary.BROADCAST)
    record = Release(sensitivity.paper(1, [1] * 50), np.full(50, 0.02), 25, 10, 1)
    assert not subsampling.amplifies(record, noise, adversary.BROADCAST)


def test_a_record_is_not_amplified() -> None:
    """The same μ per round: for a record the draw shows in the broadcast, so only fewer participations help."""
    noise = Noise(np.full(50, 2.0), 0.0)
    record = Release(sensitivity.paper(1, [1] * 50), np.full(50, 0.02), 25, 10, 1)
    assert record.uplink[0] == client_release().uplink[0]
    amplified = accounting.epsilon_spent(client_release(), noise, adversary.BROADCAST, 1e-5)
    assert amplified < 0.8 * accounting.epsilon_spent(record, noise, adversary.BROADCAST, 1e-5)


def test_colluders_know_more_than_an_outsider() -> None:
    noise = Noise(np.full(50, 2.0), 0.1)
    spent = [
        accounting.epsilon_spent(client_release(), noise, which, 1e-5)
        for which in (adversary.BROADCAST, *(adversary.colluders(a) for a in (1, 5, 9, 39, 45)))
    ]
    assert spent == sorted(spent)


def test_more_rounds_and_larger_draws_spend_more() -> None:
    by_rounds = [
        subsampling.composed(Rounds(0.5, 0.2, rounds)).get_epsilon_for_delta(1e-6)
        for rounds in (1, 5, 25, 100)
    ]
    by_share = [
        subsampling.composed(Rounds(0.5, q, 25)).get_epsilon_for_delta(1e-6) for q in (0.01, 0.1, 0.5, 0.99)
    ]
    assert by_rounds == sorted(by_rounds)
    assert by_share == sorted(by_share)


def test_extremes() -> None:
    release = client_release()
    assert accounting.epsilon_spent(release, Noise(np.zeros(50), 0.0), adversary.BROADCAST, 1e-5) == math.inf
    assert accounting.delta_spent(release, Noise(np.zeros(50), 0.0), adversary.BROADCAST, 3.0) == 1
    assert accounting.epsilon_spent(release, Noise(np.full(50, 1e6), 0.0), adversary.BROADCAST, 1e-5) == 0
    little = accounting.epsilon_spent(release, Noise(np.full(50, 1e-3), 0.0), adversary.BROADCAST, 1e-5)
    assert 1e5 < little < math.inf
    less = accounting.epsilon_spent(release, Noise(np.full(50, 1e-9), 0.0), adversary.BROADCAST, 1e-5)
    assert 1e15 < less < math.inf
    assert accounting.delta_spent(release, Noise(np.full(50, 1e-9), 0.0), adversary.BROADCAST, 3.0) > 0.99
