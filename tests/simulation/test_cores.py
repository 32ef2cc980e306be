"""Lanes: their sum has one shape, whoever worked on them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from nbafl.simulation import ranks
from nbafl.simulation.cores import Cores, lane_count, lanes


def bracketed(one: str, other: str) -> str:
    return f"({one}+{other})"


@pytest.mark.parametrize("items", [1, 2, 3, 7, 32, 61])
@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_a_sum_has_the_same_brackets_for_every_number_of_ranks(
    items: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, together = [None] * count, Barrier(count)

    def rank(number: int) -> str:
        def gather(own: object) -> list[object]:
            sent[number] = own
            together.wait()
            return [dict(each) for each in sent]

        monkeypatch.setattr(ranks, "gather", lambda own: local.gather(own))
        local.gather = gather
        worker = Cores(1)
        worker._rank, worker._ranks = number, count
        return worker.sum(str, range(items), bracketed)

    local = threading.local()
    with ThreadPoolExecutor(count) as pool:
        assert set(pool.map(rank, range(count))) == {Cores(1).sum(str, range(items), bracketed)}


def test_lanes_follow_the_round_and_not_the_machine() -> None:
    assert [lane_count(records) for records in (1, 15_999, 16_000, 60_000, 10**9)] == [4, 4, 8, 16, 64]
    assert sorted(number for lane in lanes(11, 4) for number in lane) == list(range(11))


def test_a_sum_holds_few_results_at_a_time() -> None:
    """Each may be as large as the model: 64 of them at once would be most of a machine's memory."""
    alive: set[int] = set()
    most = 0

    class Part:
        def __init__(self, number: int) -> None:
            nonlocal most
            self.number, self.total = number, number
            alive.add(number)
            most = max(most, len(alive))

    def add(one: Part, other: Part) -> Part:
        one.total += other.total
        alive.discard(other.number)
        return one

    assert Cores(1).sum(Part, range(64), add).total == sum(range(64))
    assert most <= 7  # one for each level of the tree
