"""Rounds in which clients stay silent: the top-up keeps every guarantee, and without it the cost is recomputed."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbafl.errors import UsageError
from nbafl.privacy import accounting, adversary, sensitivity
from nbafl.privacy.calibration import calibrate
from nbafl.privacy.dropouts import (
    AnsweredRound,
    delta_of_rounds,
    epsilon_of_rounds,
    most_top_up,
    realised_cost,
    top_up_variance,
)
from nbafl.privacy.gaussian import gdp_delta, gdp_epsilon
from nbafl.privacy.release import Noise, Release

EVERY_ADVERSARY = (*adversary.standard(), adversary.EAVESDROPPER_SPREAD, adversary.colluders(2))


@st.composite
def federations(draw: st.DrawFn) -> tuple[Release, Noise, np.random.Generator]:
    clients, rounds = draw(st.integers(4, 12)), draw(st.integers(1, 10))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = rng.integers(5, 100, clients)
    weights = draw(
        st.sampled_from(
            [sizes / sizes.sum(), np.full(clients, 1 / clients), rng.dirichlet(np.ones(clients) + 1)]
        )
    )
    release = Release(sensitivity.paper(10, sizes), weights, rounds, clients, draw(st.integers(1, rounds)))
    sigma = release.uplink * rng.uniform(0.5, 2, clients)
    return release, Noise(sigma, draw(st.sampled_from([0.0, 1.0])) * float(np.max(weights * sigma))), rng


@given(federation=federations())
@settings(max_examples=80, deadline=None, derandomize=True)
def test_complete_rounds_cost_what_was_planned(
    federation: tuple[Release, Noise, np.random.Generator],
) -> None:
    release, noise, _ = federation
    for which in EVERY_ADVERSARY:
        planned = which.cost(release, noise, release.rounds)
        for answered in (release.clients, np.arange(release.clients)):
            assert realised_cost(
                release, noise, which, [AnsweredRound(answered)] * release.rounds
            ) == pytest.approx(planned)


@given(federation=federations())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_the_top_up_keeps_every_guarantee_and_is_needed(
    federation: tuple[Release, Noise, np.random.Generator],
) -> None:
    release, noise, rng = federation
    happened = []
    for _ in range(release.rounds):
        answered = rng.random(release.clients) < 0.7
        answered[rng.integers(release.clients)] = True
        extra = top_up_variance(release.weights, noise.sigma_uplink, noise.sigma_downlink, answered)
        happened.append(AnsweredRound(np.flatnonzero(answered), extra))
    for which in EVERY_ADVERSARY:
        planned = which.cost(release, noise, release.rounds)
        assert realised_cost(release, noise, which, happened) <= planned * (1 + 1e-9)
    missing = [AnsweredRound(each.answered) for each in happened if each.extra_variance > 0]
    if missing:
        alone = Release(release.sensitivity, release.weights, len(missing), release.clients, 1)
        topped = [each for each in happened if each.extra_variance > 0]
        assert realised_cost(alone, noise, adversary.BROADCAST, missing) > realised_cost(
            alone, noise, adversary.BROADCAST, topped
        )


def test_top_up_of_equal_clients() -> None:
    weights, answered = np.full(50, 0.02), np.arange(50) < 40
    assert top_up_variance(weights, np.full(50, 0.3), 0.0, answered) == pytest.approx(0.09 * 10 / 1600)
    # With server noise the sensitivity 1/|S| of the average asks for more of that as well.
    assert top_up_variance(weights, np.full(50, 0.3), 0.1, answered) == pytest.approx(
        0.09 * 10 / 1600 + 0.01 * (2500 / 1600 - 1)
    )
    assert top_up_variance(weights, np.full(50, 0.3), 0.1, np.ones(50, dtype=bool)) == 0


def test_the_most_that_a_server_adds_is_the_most_over_all_draws() -> None:
    rng, downlink = np.random.default_rng(3), 0.2
    for equal in (True, False) * 20:
        weights = np.full(6, 1 / 6) if equal else rng.dirichlet(np.ones(6))
        sigma, drawn = np.full(6, 0.3) if equal else rng.uniform(0.1, 1, 6), int(rng.integers(1, 7))
        found: dict[tuple[int, ...], float] = {}
        for draw in map(list, itertools.combinations(range(6), drawn)):
            for there in itertools.product((False, True), repeat=drawn):
                if any(there):
                    who = tuple(np.array(draw)[list(there)])
                    extra = top_up_variance(weights[draw], sigma[draw], downlink, np.array(there))
                    found[who] = max(found.get(who, 0.0), extra)
        for who, extra in found.items():
            most = most_top_up(weights, sigma, downlink, drawn, np.array(who))
            anybody = most_top_up(weights, sigma, downlink, drawn, len(who))
            assert extra <= most * (1 + 1e-9) <= anybody * (1 + 1e-8)
            assert not equal or extra == pytest.approx(anybody, rel=1e-9, abs=1e-15)


def test_the_top_up_is_no_larger_than_needed() -> None:
    release = Release(sensitivity.paper(10, [100] * 10), np.full(10, 0.1), 1, 10, 1)
    noise = Noise(np.full(10, 0.3), 0.05)
    answered = np.arange(10) < 6
    extra = top_up_variance(release.weights, noise.sigma_uplink, noise.sigma_downlink, answered)
    planned = adversary.BROADCAST.cost(release, noise, 1)
    assert realised_cost(
        release, noise, adversary.BROADCAST, [AnsweredRound(np.arange(6), extra)]
    ) == pytest.approx(planned)


def test_counts_alone_assume_the_worst_participants() -> None:
    sizes = np.array([10, 20, 30, 40, 50])
    release = Release(sensitivity.paper(10, sizes), sizes / sizes.sum(), 6, 5, 1)
    noise = Noise(np.full(5, 0.4), 0.01)
    rng = np.random.default_rng(0)
    for which in EVERY_ADVERSARY:
        by_count = realised_cost(release, noise, which, [AnsweredRound(3)] * 4 + [AnsweredRound(5)] * 2)
        for _ in range(20):
            members = [AnsweredRound(rng.choice(5, 3, replace=False)) for _ in range(4)] + [
                AnsweredRound(np.arange(5))
            ] * 2
            assert realised_cost(release, noise, which, members) <= by_count * (1 + 1e-12)


@given(counts=st.lists(st.integers(1, 8), min_size=1, max_size=6), server=st.sampled_from([0.0, 0.02, 0.2]))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_rounds_of_different_size_against_every_placement_of_the_taps(
    counts: list[int], server: float
) -> None:
    release = Release(sensitivity.paper(10, [100] * 8), np.full(8, 1 / 8), len(counts), 8, 1)
    noise, happened = Noise(np.full(8, 0.3), server), [AnsweredRound(count) for count in counts]
    upload = (0.2 / 0.3) ** 2
    broadcast = [(0.2 / k) ** 2 / (0.09 / k + server**2) for k in counts]
    tapped = [(0.2 / k) ** 2 / (0.09 / k**2 + server**2) for k in counts]
    places = range(len(counts))
    targeted = max(upload + sum(broadcast) - broadcast[t] for t in places)
    assert realised_cost(release, noise, adversary.TARGETED, happened) == pytest.approx(targeted)
    eavesdropper = max(
        upload + sum(broadcast) - broadcast[t] + (tapped[s] - broadcast[s] if s != t else 0.0)
        for t in places
        for s in places
    )
    bound = realised_cost(release, noise, adversary.EAVESDROPPER, happened)
    assert eavesdropper * (1 - 1e-12) <= bound <= eavesdropper + max(tapped)


def test_epsilon_of_rounds_and_of_clients_that_were_never_there() -> None:
    release = Release(sensitivity.paper(10, [100] * 6), np.full(6, 1 / 6), 5, 6, 1)
    noise = calibrate("exact", release, 3.0, 1e-4, adversary.EAVESDROPPER)
    full = epsilon_of_rounds(release, noise, adversary.EAVESDROPPER, [AnsweredRound(6)] * 5, 1e-4)
    assert full == pytest.approx(accounting.epsilon_spent(release, noise, adversary.EAVESDROPPER, 1e-4))
    assert epsilon_of_rounds(release, noise, adversary.EAVESDROPPER, [AnsweredRound(6)] * 2, 1e-4) < full
    assert epsilon_of_rounds(release, noise, adversary.EAVESDROPPER, [], 1e-4) == 0
    alone = realised_cost(release, noise, adversary.BROADCAST, [AnsweredRound(np.array([2]))])
    assert alone == pytest.approx(0.04 / (noise.sigma_uplink[2] ** 2 + noise.sigma_downlink**2))
    assert (
        realised_cost(release, Noise(np.zeros(6), 0.0), adversary.EAVESDROPPER, [AnsweredRound(6)])
        == math.inf
    )


def test_rounds_without_anyone_are_refused() -> None:
    release = Release(sensitivity.paper(10, [100] * 6), np.full(6, 1 / 6), 5, 6, 1)
    for answered in (0, 7, np.array([], dtype=int)):
        with pytest.raises(UsageError, match="answered must be"):
            realised_cost(release, Noise(np.ones(6), 0.0), adversary.BROADCAST, [AnsweredRound(answered)])
    for mask in (np.zeros(6, dtype=bool), np.ones(5, dtype=bool)):
        with pytest.raises(UsageError, match="answered must be"):
            top_up_variance(release.weights, np.ones(6), 0.0, mask)


# ---- the secret draw: q = K/N only while everyone is online ---------------------------------------------------


def small_federation() -> tuple[Release, Noise, float]:
    """N = 3, K = 2, T = 1, epsilon = 1, claimed delta = 0.001: the issue's example, and mu of its one round."""
    release = Release(sensitivity.client(1.0, 3), np.full(3, 1 / 3), 1, 2, 1)
    noise = calibrate("exact", release, 1.0, 1e-3, adversary.BROADCAST)
    return release, noise, math.sqrt(adversary.BROADCAST.cost(release, noise, 1))


def enumerated_delta(mu: float, offline: int | None, epsilon: float) -> float:
    """delta of the target (client 0) over every draw, for an adversary that knows who is offline and sees how many answered.

    Clients differ in nothing, so what is seen besides the broadcast is the number of answers; given that number the
    target took part with some chance q, and a subsampled Gaussian has delta q*delta(ln(1 + (e^eps - 1)/q); mu).
    """
    seen: dict[int, list[bool]] = {}
    draws = list(itertools.combinations(range(3), 2))
    for drawn in draws:
        answered = [client for client in drawn if client != offline]
        seen.setdefault(len(answered), []).append(0 in answered)
    total = 0.0
    for cases in seen.values():
        q = sum(cases) / len(cases)
        if q:
            inner = math.log1p(math.expm1(epsilon) / q)
            total += len(cases) / len(draws) * q * gdp_delta(inner, mu)
    return total


def test_somebody_known_to_be_offline_makes_a_secret_draw_public() -> None:
    release, noise, mu = small_federation()
    assert enumerated_delta(mu, None, 1.0) == pytest.approx(1e-3, rel=1e-3), "all online: as claimed"
    truth = enumerated_delta(mu, 2, 1.0)
    assert truth == pytest.approx(0.0023, abs=5e-5), "one of the three offline: more than twice the claim"
    assert gdp_delta(1.0, mu) == pytest.approx(0.0066, abs=5e-5), (
        "given that two answered, nothing is left of the secret"
    )
    online = delta_of_rounds(release, noise, adversary.BROADCAST, [AnsweredRound(np.array([0, 1]))], 1.0)
    assert online == pytest.approx(1e-3, rel=1e-3)
    for answered in ([0, 1], [0], [1]):
        extra = top_up_variance(np.ones(2), noise.sigma_uplink[:2], 0.0, np.array([True, len(answered) == 2]))
        happened = [AnsweredRound(np.array(answered), extra, everyone_online=False)]
        found = delta_of_rounds(release, noise, adversary.BROADCAST, happened, 1.0)
        assert found == pytest.approx(0.0044, abs=5e-5)
        assert found >= truth
        spent = epsilon_of_rounds(release, noise, adversary.BROADCAST, happened, 1e-3)
        assert spent > 1.2
        assert delta_of_rounds(release, noise, adversary.BROADCAST, happened, spent) == pytest.approx(
            1e-3, rel=1e-4
        )


@pytest.mark.parametrize("which", [adversary.BROADCAST, adversary.colluders(2)])
def test_rounds_that_were_not_complete_are_averaged_over_as_public_draws(which: adversary.Adversary) -> None:
    """No round complete: the binomial mixture of `accounting`. All complete: the planned secret. Between: between."""
    release = Release(sensitivity.client(1.0, 12), np.full(12, 1 / 12), 6, 4, 1)
    noise = calibrate("exact", release, 2.0, 1e-4, adversary.BROADCAST)
    mixture = accounting.mixture_epsilon(*accounting.participation_costs(release, noise, which), 1e-4)
    planned = accounting.epsilon_spent(release, noise, which, 1e-4)
    spent = [
        epsilon_of_rounds(
            release,
            noise,
            which,
            [AnsweredRound(np.arange(4), everyone_online=number < complete) for number in range(6)],
            1e-4,
        )
        for complete in range(7)
    ]
    assert spent == sorted(spent, reverse=True)
    assert spent[6] == pytest.approx(planned, rel=1e-4)
    assert spent[0] == pytest.approx(mixture, rel=1e-4)
    assert spent[0] > 1.2 * spent[6]


def test_a_run_whose_rounds_were_topped_up_keeps_the_plans_mean_over_draws() -> None:
    """Record unit, K < N: sampling is averaged over, and a round that cost more than planned ends that."""
    sizes = np.array([30, 40, 50, 60, 70])
    release = Release(sensitivity.gradient(1.0, sizes, 0.5), sizes / sizes.sum(), 8, 3, 2)
    for which in EVERY_ADVERSARY:
        noise = calibrate("exact", release, 3.0, 1e-5, which)
        drawn = np.array([0, 2, 4])
        extra = top_up_variance(
            release.weights[drawn],
            noise.sigma_uplink[drawn],
            noise.sigma_downlink,
            np.array([True, False, True]),
        )
        kept = [AnsweredRound(np.array([0, 4]), extra, everyone_online=False)] * 8
        planned = accounting.epsilon_spent(release, noise, which, 1e-5)
        assert epsilon_of_rounds(release, noise, which, kept, 1e-5) <= planned * (1 + 1e-9)
        bare = [AnsweredRound(np.array([0, 4]), 0.0, everyone_online=False)] * 8
        if which is adversary.BROADCAST:
            known = gdp_epsilon(math.sqrt(realised_cost(release, noise, which, bare)), 1e-5)
            assert epsilon_of_rounds(release, noise, which, bare, 1e-5) == pytest.approx(known)
            assert known > planned
