"""Random streams, K-random scheduling and minibatches: uniform, repeatable, independent of each other."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from nbafl.errors import UsageError
from nbafl.protocol import batches, draw, generator

FALSE_ALARM = 1e-6


def test_every_client_is_drawn_equally_often() -> None:
    clients, per_round, rounds = 30, 7, 4000
    counts = np.zeros(clients)
    for number in range(rounds):
        counts[draw(5, number, clients, per_round)] += 1
    share = per_round / clients
    # without replacement the K indicators of a round are correlated; this scaling makes the sum chi-square(N - 1)
    statistic = (
        ((counts - rounds * share) ** 2).sum() / (rounds * share * (1 - share)) * (clients - 1) / clients
    )
    assert FALSE_ALARM < stats.chi2.sf(statistic, clients - 1) < 1 - FALSE_ALARM


def test_every_pair_is_drawn_equally_often() -> None:
    counts = np.zeros((6, 6))
    for number in range(6000):
        chosen = draw(1, number, 6, 2)
        counts[chosen[0], chosen[1]] += 1
    seen = counts[np.triu_indices(6, 1)]
    assert counts.sum() == seen.sum()
    assert stats.chisquare(seen).pvalue > FALSE_ALARM


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(1, 500), st.data())
def test_a_draw_is_sorted_distinct_and_in_range(clients: int, data: st.DataObject) -> None:
    per_round = data.draw(st.integers(1, clients))
    chosen = draw(data.draw(st.integers(0, 10**9)), 1, clients, per_round)
    assert len(chosen) == per_round
    assert (np.diff(chosen) > 0).all()
    assert chosen.min() >= 0
    assert chosen.max() < clients


def test_drawing_from_a_billion_clients_takes_no_memory() -> None:
    tracemalloc.start()
    chosen = draw(0, 1, 10**9, 1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(set(chosen.tolist())) == 1000
    assert peak < 10**6


@pytest.mark.parametrize("per_round", [0, 6, -1])
def test_more_participants_than_clients_are_refused(per_round: int) -> None:
    with pytest.raises(UsageError, match="per_round"):
        draw(0, 1, 5, per_round)


def test_streams_differ_and_repeat() -> None:
    def first(seed: int, round: int, stream: int | str) -> float:
        return float(torch.rand(1, generator=generator(seed, round, stream), dtype=torch.float64))

    seen = {first(*key) for key in [(0, 1, 2), (1, 0, 2), (0, 2, 1), (0, 1, "noise"), (0, 12, 0), (0, 1, 20)]}
    assert len(seen) == 6
    assert first(7, 3, "noise") == first(7, 3, "noise")


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 25), min_size=1, max_size=6), st.integers(1, 9), st.integers(1, 12))
def test_an_epoch_meets_every_record_once(sizes: list[int], batch: int, steps: int) -> None:
    order = batches(3, 1, torch.arange(len(sizes)), torch.tensor(sizes), steps, batch)
    assert order.shape == (len(sizes), steps, batch)
    for size, own in zip(sizes, order, strict=True):
        per_epoch = -(-size // batch)
        for start in range(0, steps - per_epoch + 1, per_epoch):
            epoch = own[start : start + per_epoch].flatten()
            assert sorted(epoch[epoch >= 0].tolist()) == list(range(size))
            assert (own[start : start + per_epoch] >= 0).any(1).all()


def test_a_clients_batches_do_not_depend_on_the_company_it_keeps() -> None:
    sizes = torch.tensor([7, 30, 12])
    together = batches(0, 4, torch.tensor([5, 9, 2]), sizes, 6, 4)
    for place, client in enumerate([5, 9, 2]):
        alone = batches(0, 4, torch.tensor([client]), sizes[place : place + 1], 6, 4)
        assert torch.equal(alone[0], together[place])


def test_minibatch_orders_are_uniform() -> None:
    """All 24 orders of four records, over clients, rounds and epochs."""
    counts = {}
    for round in range(20):
        order = batches(1, round, torch.arange(300), torch.full((300,), 4), 2, 4)
        for row in order.reshape(-1, 4).tolist():
            counts[tuple(row)] = counts.get(tuple(row), 0) + 1
    assert len(counts) == 24
    assert stats.chisquare(list(counts.values())).pvalue > FALSE_ALARM


def test_rounds_of_a_long_run_do_not_share_their_noise() -> None:
    """torch keeps 32 bits of a seed on the CPU: with those alone, rounds 1946 and 7058 of seed 38 drew the same."""
    one, other = (torch.randn(64, generator=generator(38, round, "noise")) for round in (1946, 7058))
    assert not torch.equal(one, other)
    states = {
        bytes(generator(38, round, "noise").get_state().numpy()[24 : 24 + 8 * 624]) for round in range(2000)
    }
    assert len(states) == 2000
    words = np.frombuffer(b"".join(states), dtype="<u8")
    assert words.max() < 2**32
    assert abs(words.mean() / 2**31 - 1) < 6 / np.sqrt(3 * len(words))


def test_a_keyed_generator_draws_normals_like_any_other() -> None:
    """Moments of 4 million draws, each within 6 of its standard deviations."""
    drawn = torch.randn(4_000_000, generator=generator(3, 1, "noise"), dtype=torch.float64)
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(float((drawn**power).mean()) - moment) < 6 * np.sqrt(variance / 4e6)
