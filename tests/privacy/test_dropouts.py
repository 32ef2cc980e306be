"""Rounds in which clients stay silent: the top-up keeps every guarantee, and without it the cost is recomputed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbafl.errors import UsageError
from nbafl.privacy import accounting, adversary, sensitivity
from nbafl.privacy.adversary import Noise, Release
from nbafl.privacy.calibration import calibrate
from nbafl.privacy.dropouts import Round, epsilon_of_rounds, realised_cost, top_up_variance

EVERY_ADVERSARY = (*adversary.STANDARD, adversary.EAVESDROPPER_SPREAD, adversary.colluders(2))


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
            assert realised_cost(release, noise, which, [Round(answered)] * release.rounds) == pytest.approx(
                planned
            )


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
        happened.append(Round(np.flatnonzero(answered), extra))
    for which in EVERY_ADVERSARY:
        planned = which.cost(release, noise, release.rounds)
        assert realised_cost(release, noise, which, happened) <= planned * (1 + 1e-9)
    missing = [Round(each.answered) for each in happened if each.extra_variance > 0]
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


def test_the_top_up_is_no_larger_than_needed() -> None:
    release = Release(sensitivity.paper(10, [100] * 10), np.full(10, 0.1), 1, 10, 1)
    noise = Noise(np.full(10, 0.3), 0.05)
    answered = np.arange(10) < 6
    extra = top_up_variance(release.weights, noise.sigma_uplink, noise.sigma_downlink, answered)
    planned = adversary.BROADCAST.cost(release, noise, 1)
    assert realised_cost(release, noise, adversary.BROADCAST, [Round(np.arange(6), extra)]) == pytest.approx(
        planned
    )


def test_counts_alone_assume_the_worst_participants() -> None:
    sizes = np.array([10, 20, 30, 40, 50])
    release = Release(sensitivity.paper(10, sizes), sizes / sizes.sum(), 6, 5, 1)
    noise = Noise(np.full(5, 0.4), 0.01)
    rng = np.random.default_rng(0)
    for which in EVERY_ADVERSARY:
        by_count = realised_cost(release, noise, which, [Round(3)] * 4 + [Round(5)] * 2)
        for _ in range(20):
            members = [Round(rng.choice(5, 3, replace=False)) for _ in range(4)] + [Round(np.arange(5))] * 2
            assert realised_cost(release, noise, which, members) <= by_count * (1 + 1e-12)


@given(counts=st.lists(st.integers(1, 8), min_size=1, max_size=6), server=st.sampled_from([0.0, 0.02, 0.2]))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_rounds_of_different_size_against_every_placement_of_the_taps(
    counts: list[int], server: float
) -> None:
    release = Release(sensitivity.paper(10, [100] * 8), np.full(8, 1 / 8), len(counts), 8, 1)
    noise, happened = Noise(np.full(8, 0.3), server), [Round(count) for count in counts]
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
    full = epsilon_of_rounds(release, noise, adversary.EAVESDROPPER, [Round(6)] * 5, 1e-4)
    assert full == pytest.approx(accounting.epsilon_spent(release, noise, adversary.EAVESDROPPER, 1e-4))
    assert epsilon_of_rounds(release, noise, adversary.EAVESDROPPER, [Round(6)] * 2, 1e-4) < full
    assert epsilon_of_rounds(release, noise, adversary.EAVESDROPPER, [], 1e-4) == 0
    alone = realised_cost(release, noise, adversary.BROADCAST, [Round(np.array([2]))])
    assert alone == pytest.approx(0.04 / (noise.sigma_uplink[2] ** 2 + noise.sigma_downlink**2))
    assert realised_cost(release, Noise(np.zeros(6), 0.0), adversary.EAVESDROPPER, [Round(6)]) == math.inf


def test_rounds_without_anyone_are_refused() -> None:
    release = Release(sensitivity.paper(10, [100] * 6), np.full(6, 1 / 6), 5, 6, 1)
    for answered in (0, 7, np.array([], dtype=int)):
        with pytest.raises(UsageError, match="answered must be"):
            realised_cost(release, Noise(np.ones(6), 0.0), adversary.BROADCAST, [Round(answered)])
    for mask in (np.zeros(6, dtype=bool), np.ones(5, dtype=bool)):
        with pytest.raises(UsageError, match="answered must be"):
            top_up_variance(release.weights, np.ones(6), 0.0, mask)
