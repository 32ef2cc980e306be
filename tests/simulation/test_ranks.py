"""The end of a rank: said once, whether it noticed by itself, was told by torchrun, or both at the same time."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest
import torch

from nbafl.simulation import ranks


@pytest.fixture
def told_to_end() -> Iterator[Callable[[], None]]:
    """What torchrun does to every rank once one has failed."""
    before = signal.signal(signal.SIGTERM, ranks._told_to_end)
    yield lambda: os.kill(os.getpid(), signal.SIGTERM)
    signal.signal(signal.SIGTERM, before)


def test_a_rank_that_is_told_to_end_is_told_once(told_to_end: Callable[[], None]) -> None:
    with pytest.raises(ranks.RankLost, match="another rank of this run ended"):
        told_to_end()
    told_to_end()


@pytest.mark.parametrize("exchange", [lambda: ranks.add_up(torch.zeros(1)), lambda: ranks.gather("x")])
def test_the_last_words_of_a_rank_that_noticed_by_itself_are_not_interrupted(
    told_to_end: Callable[[], None], monkeypatch: pytest.MonkeyPatch, exchange: Callable[[], object]
) -> None:
    def gone(*_: object) -> None:
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(ranks, "count", lambda: 2)
    monkeypatch.setattr(ranks.dist, "all_reduce", gone)
    monkeypatch.setattr(ranks.dist, "all_gather_into_tensor", gone)
    with pytest.raises(ranks.RankLost):
        exchange()
    told_to_end()
