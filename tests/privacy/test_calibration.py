"""Claim to noise: the reference table, the inverse of accounting, and that `exact` cannot be improved on."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, linprog

from nbafl.errors import UsageError
from nbafl.privacy import accounting, adversary, calibration, sensitivity
from nbafl.privacy.calibration import calibrate
from nbafl.privacy.gaussian import gdp_mu
from nbafl.privacy.release import Noise, Release

EVERY_ADVERSARY = (
    *adversary.standard(),
    adversary.EAVESDROPPER_SPREAD,
    adversary.colluders(1),
    adversary.colluders(3),
)


def paper_release(
    clients: int = 50, per_round: int | None = None, rounds: int = 25, exposures: int = 1
) -> Release:
    model = sensitivity.paper(10, [100] * clients)
    return Release(model, np.full(clients, 1 / clients), rounds, per_round or clients, exposures)


REFERENCE = {  # δ = 0.01, N = 50, T = 25, L = 1, C = 10, m = 100: (σ_U, σ_D, σ_A), math.md, section 13
    (50, "paper", "broadcast"): (0.01243, 0.00596124, 0.00621502),
    (60, "paper", "broadcast"): (0.0103584, 0.0049677, 0.00517919),
    (100, "paper", "broadcast"): (0.00621502, 0.00298062, 0.00310751),
    (50, "separate", "broadcast"): (0.0249202, 0, 0.0249202 / math.sqrt(50)),
    (60, "separate", "broadcast"): (0.0223431, 0, 0.0223431 / math.sqrt(50)),
    (100, "separate", "broadcast"): (0.0165708, 0, 0.0165708 / math.sqrt(50)),
    (50, "exact", "targeted"): (0.0303168, 0, 0.0303168 / math.sqrt(50)),
    (60, "exact", "targeted"): (0.0271816, 0, 0.0271816 / math.sqrt(50)),
    (100, "exact", "targeted"): (0.0201593, 0, 0.0201593 / math.sqrt(50)),
    (50, "exact", "eavesdropper"): (0.0310612, 0.00152168, 0.00464881),
    (60, "exact", "eavesdropper"): (0.027849, 0.00136432, 0.00416806),
    (100, "exact", "eavesdropper"): (0.0206542, 0.00101185, 0.00309124),
}


@pytest.mark.parametrize(("epsilon", "rule", "name"), sorted(REFERENCE))
def test_reference_values(epsilon: int, rule: str, name: str) -> None:
    release = paper_release()
    noise = calibrate(rule, release, epsilon, 0.01, adversary.parse(name))
    assert np.ptp(noise.sigma_uplink) == 0
    found = (noise.sigma_uplink[0], noise.sigma_downlink, noise.aggregate(release))
    assert found == pytest.approx(REFERENCE[epsilon, rule, name], rel=5e-6)


def test_curious_server_and_broadcast_closed_forms() -> None:
    release, mu = paper_release(), gdp_mu(8, 1e-5)
    server = calibrate("exact", release, 8, 1e-5, adversary.CURIOUS_SERVER)
    assert server.sigma_uplink[0] == pytest.approx(0.2 * 5 / mu)
    assert server.sigma_downlink == 0
    broadcast = calibrate("exact", release, 8, 1e-5, adversary.BROADCAST)
    assert broadcast.aggregate(release) == pytest.approx(0.2 / 50 * 5 / mu)
    assert broadcast.sigma_downlink == 0


# ---- colluders: noise that a federation can run ------------------------------------------------------------


def test_equal_clients_against_colluders() -> None:
    """σ_D = 0, σ_U = (Δ_U/μ*)·sqrt(T/(N − a))."""
    release, mu = paper_release(), gdp_mu(8, 1e-5)
    for coalition in (1, 7, 49):
        noise = calibrate("exact", release, 8, 1e-5, adversary.colluders(coalition))
        assert noise.sigma_downlink == 0
        assert noise.sigma_uplink == pytest.approx(np.full(50, 0.2 / mu * math.sqrt(25 / (50 - coalition))))


@pytest.mark.parametrize("seed", range(40))
def test_unequal_clients_against_colluders_hold_and_no_split_adds_less(seed: int) -> None:
    """A linear programme over all targets and all coalitions gives the same sum of noise."""
    chance = np.random.default_rng(seed)
    clients = int(chance.integers(2, 7))
    coalition = int(chance.integers(1, clients))
    needed = chance.choice([0.01, 0.3, 1.0, 1.0], clients) * chance.uniform(0.5, 1.5, clients)
    found = calibration._among_colluders(needed, coalition)
    rows, limits = [], []
    for target in range(clients):
        others = [client for client in range(clients) if client != target]
        for accomplices in itertools.combinations(others, coalition):
            honest = np.array([client not in accomplices for client in range(clients)], dtype=float)
            assert honest @ found >= needed[target] * (1 - 1e-12)
            rows.append(-honest)
            limits.append(-needed[target])
    best = linprog(np.ones(clients), A_ub=np.array(rows), b_ub=np.array(limits), bounds=(0, None))
    assert found.sum() == pytest.approx(best.fun, rel=1e-9)
    assert np.all(found > 0)


@pytest.mark.parametrize("per_round", [6, 4])
def test_colluders_among_unequal_clients_get_exactly_what_was_claimed(per_round: int) -> None:
    sizes = np.array([20, 50, 50, 80, 200, 1000])
    solved = sensitivity.proximal(
        5.0, sizes, lipschitz=1.0, mu=0.5, tolerance=0.01
    )  # p_iΔ_i differ by the tolerance
    release = Release(solved, sizes / sizes.sum(), 7, per_round, 1)
    for coalition in (1, 3, 5):
        noise = calibrate("exact", release, 3.0, 1e-5, adversary.colluders(coalition))
        assert noise.sigma_downlink == 0
        assert np.all(noise.sigma_uplink > 0)
        spent = accounting.epsilon_spent(release, noise, adversary.colluders(coalition), 1e-5)
        assert spent == pytest.approx(3.0, rel=1e-6)


# ---- the paper's rule -------------------------------------------------------------------------------------


def test_theorem_1_adds_server_noise_only_beyond_l_root_n() -> None:
    at, beyond = paper_release(25, rounds=5), paper_release(25, rounds=6)
    assert calibration.paper(at, 10, 0.01).sigma_downlink == 0
    c = math.sqrt(2 * math.log(125))
    expected = 2 * c * 10 * math.sqrt(36 - 25) / (100 * 25 * 10)
    assert calibration.paper(beyond, 10, 0.01).sigma_downlink == pytest.approx(expected)


def test_the_smallest_client_sets_the_papers_noise() -> None:
    sizes = np.array([40, 80, 400])
    release = Release(sensitivity.paper(10, sizes), sizes / sizes.sum(), 10, 3, 1)
    c = math.sqrt(2 * math.log(125))
    noise = calibration.paper(release, 5, 0.01)
    assert noise.sigma_uplink == pytest.approx(np.full(3, c * 2 * 10 / 40 / 5))
    assert noise.sigma_downlink == pytest.approx(2 * c * 10 * math.sqrt(100 - 3) / (40 * 3 * 5))


def test_lemma_as_printed() -> None:
    epsilon, rounds, drawn, clients, exposures = 5.0, 100, 20, 50, 1
    b = -(rounds / epsilon) * math.log(1 - 2.5 + 2.5 * math.exp(-epsilon / rounds))
    gamma = -math.log(1 - 0.4 + 0.4 * math.exp(-epsilon / (exposures * math.sqrt(drawn))))
    assert calibration.lemma_b(epsilon, rounds, drawn, clients) == pytest.approx(b)
    assert calibration.lemma_gamma(epsilon, exposures, drawn, clients) == pytest.approx(gamma)
    assert rounds > epsilon / gamma
    noise = calibration.paper(paper_release(clients, drawn, rounds), epsilon, 0.01)
    c = math.sqrt(2 * math.log(125))
    expected = 2 * c * 10 * math.sqrt(rounds**2 / b**2 - exposures**2 * drawn) / (100 * drawn * epsilon)
    assert noise.sigma_downlink == pytest.approx(expected)
    assert noise.sigma_uplink[0] == pytest.approx(c * 0.2 / epsilon)


@pytest.mark.parametrize("epsilon", [50, 60, 100])
def test_lemma_has_no_b_at_the_papers_own_setting(epsilon: float) -> None:
    assert calibration.lemma_b(epsilon, 25, 20, 50) is None
    assert calibration.paper(paper_release(per_round=20), epsilon, 0.01).sigma_downlink == 0


@given(
    epsilon=st.floats(0.1, 200),
    rounds=st.integers(1, 500),
    clients=st.integers(2, 200),
    data=st.data(),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_lemma_domain(epsilon: float, rounds: int, clients: int, data: st.DataObject) -> None:
    """b exists exactly where T > −ε/ln(1 − K/N); wherever the lemma adds noise, b exists and the root is real."""
    drawn = data.draw(st.integers(1, clients - 1))
    exposures = data.draw(st.integers(1, rounds))
    b = calibration.lemma_b(epsilon, rounds, drawn, clients)
    limit = -epsilon / math.log1p(-drawn / clients)
    if abs(rounds / limit - 1) > 1e-9:
        assert (b is not None) == (rounds > limit)
    if rounds > epsilon / calibration.lemma_gamma(epsilon, exposures, drawn, clients) * (1 + 1e-9):
        assert b is not None
        assert rounds**2 / b**2 > exposures**2 * drawn * (1 - 1e-6)


def test_lemma_at_k_equal_n_is_theorem_1() -> None:
    assert calibration.lemma_b(5.0, 30, 50, 50) == pytest.approx(1)
    assert 5.0 / calibration.lemma_gamma(5.0, 2, 50, 50) == pytest.approx(2 * math.sqrt(50))


# ---- separate ---------------------------------------------------------------------------------------------


@given(
    epsilon=st.floats(0.2, 100),
    clients=st.integers(2, 40),
    rounds=st.integers(1, 60),
    data=st.data(),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_separate_meets_each_requirement_and_no_more(
    epsilon: float, clients: int, rounds: int, data: st.DataObject, seed: int
) -> None:
    per_round = data.draw(st.integers(1, clients))
    exposures = data.draw(st.integers(1, rounds))
    sizes = np.random.default_rng(seed).integers(5, 100, clients)
    release = Release(sensitivity.paper(10, sizes), sizes / sizes.sum(), rounds, per_round, exposures)
    noise = calibration.separate(release, epsilon, 1e-4)
    requirement = accounting.paper_requirement(release, noise, 1e-4)
    assert requirement["uplink"] == pytest.approx(epsilon, rel=1e-9)
    assert requirement["downlink"] <= epsilon * (1 + 1e-6)
    if noise.sigma_downlink > 0:
        assert requirement["downlink"] == pytest.approx(epsilon, rel=1e-6)


def test_separate_adds_server_noise_only_beyond_l_n() -> None:
    assert calibration.separate(paper_release(20, rounds=20), 5, 0.01).sigma_downlink == 0
    assert calibration.separate(paper_release(20, rounds=21), 5, 0.01).sigma_downlink > 0


# ---- exact ------------------------------------------------------------------------------------------------


@st.composite
def federations(draw: st.DrawFn, drawn: bool) -> Release:
    clients = draw(st.integers(4, 40))
    rounds = draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["equal", "records", "any", "client"]))
    sizes = np.full(clients, 50) if kind in ("equal", "client") else rng.integers(5, 300, clients)
    shares = {"records": sizes / sizes.sum(), "any": rng.dirichlet(np.full(clients, 2.0))}
    model = sensitivity.client(1.0, clients, draw(st.sampled_from(["replace", "drop"])))
    return Release(
        model if kind == "client" else sensitivity.paper(10, sizes),
        shares.get(kind, np.full(clients, 1 / clients)),
        rounds,
        draw(st.integers(1, clients - 1)) if drawn else clients,
        draw(st.integers(1, rounds)),
    )


@given(release=federations(drawn=False), log_epsilon=st.floats(math.log(0.1), math.log(500)), data=st.data())
@settings(max_examples=120, deadline=None, derandomize=True)
def test_exact_spends_the_claim_and_cannot_be_improved(
    release: Release, log_epsilon: float, data: st.DataObject
) -> None:
    """K = N: any other split of noise, scaled until it costs the same, puts no less noise into the broadcast."""
    epsilon, delta = math.exp(log_epsilon), data.draw(st.sampled_from([1e-9, 1e-5, 0.01]))
    which = data.draw(st.sampled_from(EVERY_ADVERSARY))
    noise = calibrate("exact", release, epsilon, delta, which)
    assert accounting.epsilon_spent(release, noise, which, delta) == pytest.approx(epsilon, rel=1e-6)
    allowed = gdp_mu(epsilon, delta) ** 2
    rng = np.random.default_rng(0)
    base = noise.sigma_uplink
    for spread in (0.003, 0.03, 0.3, 1.0):
        servers = (noise.sigma_downlink, noise.sigma_downlink * 1.05, noise.aggregate(release) * 0.1, 0.0)
        for server in (
            servers if not which.colluders else (0.0,)
        ):  # a server that adds noise leaves uploads bare
            other = Noise(base * np.exp(spread * rng.standard_normal(release.clients)), server)
            scale = math.sqrt(which.cost(release, other, release.rounds) / allowed)
            assert scale * other.aggregate(release) >= noise.aggregate(release) * (1 - 1e-8)


@given(release=federations(drawn=True), log_epsilon=st.floats(math.log(0.1), math.log(200)), data=st.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_exact_spends_the_claim_with_drawn_clients(
    release: Release, log_epsilon: float, data: st.DataObject
) -> None:
    epsilon, delta = math.exp(log_epsilon), data.draw(st.sampled_from([1e-9, 1e-5, 1e-3]))
    which = data.draw(st.sampled_from([each for each in adversary.table() if each.sees_participation]))
    noise = calibrate("exact", release, epsilon, delta, which)
    assert accounting.epsilon_spent(release, noise, which, delta) == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize("which", [adversary.TARGETED, adversary.EAVESDROPPER, adversary.EAVESDROPPER_SPREAD])
@pytest.mark.parametrize("exposures", [1, 3])
def test_exact_with_drawn_clients_cannot_be_improved(which: adversary.Adversary, exposures: int) -> None:
    release = paper_release(30, 7, 20, exposures)
    noise = calibrate("exact", release, 4.0, 1e-4, which)
    for ratio in (0.0, 0.02, 0.2, 0.5, 0.9, 0.99, 1.01, 1.1, 2.0, 5.0):
        server = (noise.sigma_downlink or 0.01 * noise.sigma_uplink[0]) * ratio

        def excess(log_scale: float, server: float = server) -> float:
            other = Noise(noise.sigma_uplink * math.exp(log_scale), server * math.exp(log_scale))
            return accounting.epsilon_spent(release, other, which, 1e-4) - 4.0

        scale = math.exp(brentq(excess, -1, 1, xtol=1e-10))
        assert Noise(noise.sigma_uplink * scale, server * scale).aggregate(release) >= noise.aggregate(
            release
        ) * (1 - 1e-8)


def test_own_noise_of_unequal_clients_beats_a_common_sigma() -> None:
    sizes = np.array([10, 20, 50, 100, 500])
    release = Release(sensitivity.gradient(1.0, sizes, 0.5), np.full(5, 0.2), 12, 5, 2)
    noise = calibrate("exact", release, 2.0, 1e-5, adversary.EAVESDROPPER)
    assert np.all(np.diff(noise.sigma_uplink) < 0)
    allowed = gdp_mu(2.0, 1e-5) ** 2
    for server in (0.0, 0.01, 0.1, 0.3, 1.0):
        common = Noise(np.ones(5), server)
        scale = math.sqrt(adversary.EAVESDROPPER.cost(release, common, 12) / allowed)
        assert scale * common.aggregate(release) > 1.05 * noise.aggregate(release)
    # Every client is held to the claim exactly, not only the worst one.
    own = [
        Release(sensitivity.Sensitivity("gradient", "record", "replace", np.where(np.arange(5) == j, release.uplink, 1e-9),
                                        False, ""), release.weights, 12, 5, 2)
        for j in range(5)
    ]  # fmt: skip
    for each in own:
        assert adversary.EAVESDROPPER.cost(each, noise, 12) == pytest.approx(allowed, rel=1e-6)


def test_weights_by_records_reduce_unequal_clients_to_the_equal_case() -> None:
    sizes = np.array([10, 20, 50, 100, 500])
    release = Release(sensitivity.paper(10, sizes), sizes / sizes.sum(), 12, 5, 2)
    noise = calibrate("exact", release, 2.0, 1e-5, adversary.EAVESDROPPER)
    assert np.ptp(noise.sigma_uplink / release.uplink) < 1e-12
    equal = Release(sensitivity.paper(10, [136] * 5), np.full(5, 0.2), 12, 5, 2)
    same = calibrate("exact", equal, 2.0, 1e-5, adversary.EAVESDROPPER)
    assert noise.aggregate(release) == pytest.approx(same.aggregate(equal))


def test_noise_falls_as_more_clients_are_drawn() -> None:
    """The paper's best K below N is an artefact: against each adversary σ_A is least with everyone."""
    for which in (
        adversary.BROADCAST,
        adversary.TARGETED,
        adversary.EAVESDROPPER_SPREAD,
        adversary.CURIOUS_SERVER,
    ):
        sigma = []
        for drawn in (5, 15, 30, 50):
            release = paper_release(50, drawn, 25)
            sigma.append(calibrate("exact", release, 50, 0.01, which).aggregate(release))
        assert sigma == sorted(sigma, reverse=True)


def test_a_million_clients() -> None:
    sizes = np.random.default_rng(1).integers(10, 500, 1_000_000)
    for weights, per_round in ((sizes / sizes.sum(), 1000), (np.full(1_000_000, 1e-6), 1_000_000)):
        release = Release(sensitivity.paper(10, sizes), weights, 25, per_round, 1)
        noise = calibrate("exact", release, 8, 1e-6, adversary.EAVESDROPPER)
        assert accounting.epsilon_spent(release, noise, adversary.EAVESDROPPER, 1e-6) == pytest.approx(
            8, rel=1e-6
        )


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("epsilon", ("exact", 0.0, 0.01)),
        ("epsilon", ("paper", -1.0, 0.01)),
        ("epsilon", ("separate", math.inf, 0.01)),
        ("epsilon", ("exact", math.nan, 0.01)),
        ("delta", ("exact", 1.0, 0.0)),
        ("delta", ("paper", 1.0, 1.0)),
        ("delta", ("separate", 1.0, math.nan)),
        ("calibration", ("best", 1.0, 0.01)),
    ],
)
def test_impossible_claims_are_refused(field: str, arguments: tuple[str, float, float]) -> None:
    rule, epsilon, delta = arguments
    with pytest.raises(UsageError) as refusal:
        calibrate(rule, paper_release(), epsilon, delta, adversary.EAVESDROPPER)
    assert refusal.value.field == field


def test_a_delta_that_would_need_no_noise_is_refused() -> None:
    """One of 50 clients drawn once: each is missed with probability 0.98, so (0, 0.02)-DP holds without noise."""
    release = paper_release(50, 1, 1)
    with pytest.raises(UsageError, match=r"delta must be below 0\.02"):
        calibrate("exact", release, 1.0, 0.021, adversary.EAVESDROPPER)
    noise = calibrate("exact", release, 1.0, 0.019, adversary.EAVESDROPPER)
    assert accounting.epsilon_spent(release, noise, adversary.EAVESDROPPER, 0.019) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("clients", "per_round", "rounds", "exposures", "epsilon", "delta"),
    [
        (3, 1, 1000, 333, 254.7, 0.1),
        (2, 1, 1, 1, 1e-3, 0.4),
        (1000, 999, 2000, 1, 1e4, 1e-12),
        (7, 2, 5000, 9, 0.02, 1e-9),
    ],
)
@pytest.mark.parametrize(
    "which", [adversary.EAVESDROPPER, adversary.EAVESDROPPER_SPREAD, adversary.CURIOUS_SERVER]
)
def test_drawn_clients_are_inverse_at_the_edges(
    clients: int,
    per_round: int,
    rounds: int,
    exposures: int,
    epsilon: float,
    delta: float,
    which: adversary.Adversary,
) -> None:
    """Little noise and a large δ, where the search for the scale is no longer on a straight line; and tiny ones."""
    release = paper_release(clients, per_round, rounds, exposures)
    noise = calibrate("exact", release, epsilon, delta, which)
    assert accounting.epsilon_spent(release, noise, which, delta) == pytest.approx(epsilon, rel=1e-8)
