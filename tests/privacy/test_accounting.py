"""Noise to guarantee: the reference table, dp-accounting's PLD, and Monte Carlo of the mixture over participations."""

from __future__ import annotations

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

from nbafl.errors import UsageError
from nbafl.privacy import accounting, adversary, calibration, sensitivity
from nbafl.privacy.release import Noise, Release


def paper_release(per_round: int = 50, exposures: int = 1, rounds: int = 25) -> Release:
    return Release(sensitivity.paper(10, [100] * 50), np.full(50, 0.02), rounds, per_round, exposures)


REALITY = {  # what the paper's noise gives at δ = 0.01, math.md, section 13
    50: (165.943, 11.9182, 171.624, 171.644, 3422.29, 112.383, 247.038, 379.938),
    60: (230.374, 15.6626, 238.385, 238.414, 4883.61, 157.94, 347.781, 535.967),
    100: (591.676, 34.8333, 612.982, 613.057, 13317.8, 420.801, 927.878, 1433.83),
}


@pytest.mark.parametrize("claimed", sorted(REALITY))
def test_what_the_papers_noise_really_gives(claimed: int) -> None:
    release, drawn = paper_release(), paper_release(per_round=20)
    noise = calibration.paper(release, claimed, 0.01)
    noise_drawn = calibration.paper(drawn, claimed, 0.01)
    found = [accounting.paper_requirement(release, noise, 0.01)["uplink"]]
    found += [accounting.epsilon_spent(release, noise, each, 0.01) for each in adversary.standard()[:4]]
    found += [accounting.epsilon_spent(drawn, noise_drawn, each, 0.01) for each in adversary.standard()[:3]]
    assert found == pytest.approx(REALITY[claimed], rel=5e-6)
    requirement = accounting.paper_requirement(release, noise, 0.01)
    assert requirement["downlink"] == pytest.approx(REALITY[claimed][1], rel=5e-6)
    assert accounting.paper_requirement(drawn, noise_drawn, 0.01)["uplink"] == pytest.approx(found[0])


def test_separate_is_refuted_by_an_eavesdropper() -> None:
    release = paper_release()
    noise = calibration.separate(release, 50, 0.01)
    assert accounting.epsilon_spent(release, noise, adversary.EAVESDROPPER, 0.01) == pytest.approx(
        107.592, rel=5e-6
    )


def composed_epsilon(costs: list[tuple[float, int]], delta: float) -> float:
    """dp-accounting's ε of Gaussian releases, each (μ², how often), on a grid fine enough for this ε."""
    size = math.sqrt(sum(cost * times for cost, times in costs))
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=2e-3 * max(size, 0.1))
    for cost, times in costs:
        if times and cost:
            accountant.compose(dp_accounting.GaussianDpEvent(1 / math.sqrt(cost)), times)
    return accountant.get_epsilon(delta)


@st.composite
def settings_of_a_federation(draw: st.DrawFn) -> tuple[Release, Noise, float]:
    clients = draw(st.integers(2, 60))
    rounds = draw(st.integers(1, 40))
    exposures = draw(st.integers(1, rounds))
    weights = draw(st.sampled_from(["uniform", "records", "any"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = rng.integers(5, 300, clients) if weights != "uniform" else np.full(clients, 50)
    shares = {
        "uniform": np.full(clients, 1 / clients),
        "records": sizes / sizes.sum(),
        "any": rng.dirichlet(np.full(clients, 2.0)),
    }
    release = Release(sensitivity.paper(10, sizes), shares[weights], rounds, clients, exposures)
    sigma = release.uplink * math.exp(draw(st.floats(-1.5, 3))) * rng.uniform(0.5, 2, clients)
    server = float(draw(st.sampled_from([0.0, 0.3, 2.0])) * np.max(release.weights * sigma))
    return release, Noise(sigma, server), math.exp(draw(st.floats(math.log(1e-7), math.log(0.1))))


@given(setting=settings_of_a_federation(), coalition=st.integers(1, 5), chosen=st.integers(0, 5))
@settings(max_examples=300, deadline=None, derandomize=True, phases=[Phase.generate])
def test_all_clients_agree_with_dp_accounting(
    setting: tuple[Release, Noise, float], coalition: int, chosen: int
) -> None:
    """The three costs from first principles, composed round by round by dp-accounting, for the worst target."""
    release, noise, delta = setting
    coalition = min(coalition, release.clients - 1)
    moved = (release.weights * release.uplink) ** 2
    own = (release.weights * noise.sigma_uplink) ** 2
    server, total = noise.sigma_downlink**2, float(own.sum()) + noise.sigma_downlink**2
    upload, broadcast, tapped = (
        (release.uplink / noise.sigma_uplink) ** 2,
        moved / total,
        moved / (own + server),
    )
    subtracted = np.array(
        [np.sort(np.delete(own, j))[::-1][:coalition].sum() for j in range(release.clients)]
    )
    seen = release.exposures
    other = min(seen, release.rounds - seen)
    rest = release.rounds - seen
    views = {
        "broadcast": [(broadcast, release.rounds)],
        "targeted": [(upload, seen), (broadcast, rest)],
        "eavesdropper": [(upload, seen), (tapped, other), (broadcast, rest - other)],
        "eavesdropper-spread": [(upload, seen), (tapped, other), (broadcast, rest - other)],
        "curious-server": [(upload, release.rounds)],
        f"colluders:{coalition}": [(moved / (total - subtracted), release.rounds)],
    }
    name, parts = list(views.items())[chosen]
    target = int(np.argmax(sum(cost * times for cost, times in parts)))
    found = accounting.epsilon_spent(release, noise, adversary.parse(name), delta)
    if found < 600:  # beyond that e^{−loss} underflows in dp-accounting's PLD and it answers infinity
        expected = composed_epsilon([(float(cost[target]), times) for cost, times in parts], delta)
        assert found == pytest.approx(expected, rel=2e-4, abs=2e-4)
    if found > 0:
        assert accounting.delta_spent(release, noise, adversary.parse(name), found) == pytest.approx(
            delta, rel=1e-6
        )


@given(
    clients=st.integers(2, 30),
    data=st.data(),
    rounds=st.integers(1, 10),
    scale=st.floats(0.5, 6),
    server=st.sampled_from([0.0, 0.05]),
    log_delta=st.floats(math.log(1e-6), math.log(0.05)),
)
@settings(max_examples=100, deadline=None, derandomize=True, phases=[Phase.generate])
def test_drawn_clients_agree_with_a_mixture_of_dp_accounting_distributions(
    clients: int, data: st.DataObject, rounds: int, scale: float, server: float, log_delta: float
) -> None:
    per_round = data.draw(st.integers(1, clients - 1))
    exposures = data.draw(st.integers(1, rounds))
    which = data.draw(st.sampled_from([*adversary.standard(), adversary.EAVESDROPPER_SPREAD]))
    release = Release(
        sensitivity.paper(10, [100] * clients), np.full(clients, 1 / clients), rounds, per_round, exposures
    )
    noise = Noise(np.full(clients, 0.2 * scale), server)
    u, v = scale**2, (per_round * server / 0.2) ** 2
    found = accounting.epsilon_spent(release, noise, which, math.exp(log_delta))
    mixture, weight_so_far = pld.identity(4e-3), binom.pmf(0, rounds, per_round / clients)
    for r in range(1, rounds + 1):
        seen = {"none": 0, "exposed": min(exposures, r), "all": r}[which.uploads]
        spread = exposures * (clients - 1) / (per_round - 1) if per_round > 1 else 0
        tapped = min({"none": 0, "same": exposures, "spread": spread}[which.others], r - seen)
        hiding = max(1, per_round - which.colluders)
        cost = seen / u + tapped / (u + v) + (r - seen - tapped) / (hiding * u + v)
        one = pld.from_gaussian_mechanism(1 / math.sqrt(cost), value_discretization_interval=4e-3)
        weight = binom.pmf(r, rounds, per_round / clients)
        mixture = mixture.compute_mixture(one, weight_so_far / (weight_so_far + weight))
        weight_so_far += weight
    assert found == pytest.approx(mixture.get_epsilon_for_delta(math.exp(log_delta)), rel=5e-4, abs=5e-4)


@pytest.mark.parametrize("name", ["broadcast", "targeted", "eavesdropper", "curious-server"])
def test_drawn_clients_agree_with_simulated_losses(name: str) -> None:
    """Draw who takes part, then the privacy loss N(μ²/2, μ²) of those rounds: δ(ε) = E(1 − e^{ε − loss})₊."""
    release = Release(sensitivity.paper(10, [100] * 12), np.full(12, 1 / 12), 9, 5, 2)
    noise = Noise(np.full(12, 0.4), 0.02)
    which = adversary.parse(name)
    epsilon = accounting.epsilon_spent(release, noise, which, 0.01)
    rng = np.random.default_rng(5)
    drawn = (rng.random((200_000, 9, 12)).argsort(axis=2)[:, :, :5] == 0).any(axis=2).sum(axis=1)
    mu = np.sqrt(which.costs(release, noise, np.arange(10)))[drawn]
    losses = mu**2 / 2 + mu * rng.standard_normal(len(mu))
    excess = np.maximum(0.0, -np.expm1(epsilon - losses))
    assert excess.mean() == pytest.approx(0.01, abs=6 * excess.std() / math.sqrt(len(excess)))


@given(setting=settings_of_a_federation(), data=st.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_drawn_clients_of_any_kind_are_consistent(
    setting: tuple[Release, Noise, float], data: st.DataObject
) -> None:
    """δ(ε(δ)) = δ, more participants reveal a target no less often, and stronger adversaries pay no more."""
    full, noise, delta = setting
    per_round = data.draw(st.integers(1, full.clients))
    release = Release(full.sensitivity, full.weights, full.rounds, per_round, full.exposures)
    spent = {}
    for which in (*adversary.standard(), adversary.EAVESDROPPER_SPREAD, adversary.colluders(1)):
        spent[which.name] = epsilon = accounting.epsilon_spent(release, noise, which, delta)
        if epsilon > 0:
            assert accounting.delta_spent(release, noise, which, epsilon) == pytest.approx(delta, rel=1e-6)
    order = ["broadcast", "targeted", "eavesdropper", "eavesdropper-spread", "curious-server"]
    for weaker, stronger in itertools.pairwise(order):
        assert spent[weaker] <= spent[stronger] * (1 + 1e-9) + 1e-12
    assert spent["broadcast"] <= spent["colluders:1"] * (1 + 1e-9) + 1e-12


def test_no_noise_is_never_called_private() -> None:
    silent = Noise(np.zeros(50), 0.0)
    for per_round in (50, 1):
        release = paper_release(per_round, rounds=2)
        for which in (*adversary.standard(), adversary.EAVESDROPPER_SPREAD, adversary.colluders(2)):
            # At K = 1 of 50 over 2 rounds a client is drawn with probability 0.04 only, less than this δ.
            assert accounting.epsilon_spent(release, silent, which, 0.05) == math.inf
            assert accounting.delta_spent(release, silent, which, 5.0) == 1
        requirement = accounting.paper_requirement(release, silent, 0.01)
        assert requirement == {"uplink": math.inf, "downlink": math.inf}


def test_a_delta_above_the_chance_of_being_drawn_needs_no_epsilon() -> None:
    release = paper_release(1, rounds=2)
    assert (
        accounting.epsilon_spent(release, Noise(np.full(50, 0.01), 0.0), adversary.CURIOUS_SERVER, 0.05) == 0
    )


def test_bad_delta_is_refused() -> None:
    with pytest.raises(UsageError, match="delta must be"):
        accounting.epsilon_spent(paper_release(), Noise(np.ones(50), 0.0), adversary.BROADCAST, 1.0)


@pytest.mark.parametrize("rate", [0.001, 0.01, 0.3])
def test_attack_power_is_that_of_the_best_test(rate: float) -> None:
    release, noise = paper_release(), Noise(np.full(50, 0.2), 0.01)
    mu = math.sqrt(adversary.TARGETED.cost(release, noise, 25))
    expected = norm.sf(norm.isf(rate) - mu)
    assert accounting.attack_power(release, noise, adversary.TARGETED, rate) == pytest.approx(expected)


def test_attack_power_with_drawn_clients_bounds_the_likelihood_ratio_test() -> None:
    """An attacker that knows how often the target took part and tests losses against one threshold."""
    release, noise = paper_release(20, rounds=10), Noise(np.full(50, 0.5), 0.0)
    rng = np.random.default_rng(3)
    mu = np.sqrt(adversary.TARGETED.costs(release, noise, np.arange(11)))[rng.binomial(10, 0.4, 400_000)]
    z = mu * rng.standard_normal(len(mu))
    false, true = z - mu**2 / 2, z + mu**2 / 2
    bound = accounting.attack_power(release, noise, adversary.TARGETED, 0.05)
    found = np.mean(true > np.quantile(false, 0.95))
    assert found <= bound + 0.005
    assert found >= bound - 0.02
    with pytest.raises(UsageError, match="false_positive_rate"):
        accounting.attack_power(release, noise, adversary.TARGETED, 0.0)


def test_a_mixture_of_nothing_spends_nothing() -> None:
    """No distance at all between the worlds, however often the client is drawn: δ = 0 and ε = 0, not a traceback."""
    log_weights = accounting.participation_weights(paper_release(per_round=20))[1]
    assert accounting.log_mixture_delta(log_weights, np.zeros(26), 0.5) == -math.inf
    assert accounting.mixture_epsilon(log_weights, np.zeros(26), 1e-5) == 0
