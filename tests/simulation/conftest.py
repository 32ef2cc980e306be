"""Federations that the tests of the simulation share."""

from __future__ import annotations

import pytest

from nbafl.data.federation import Federation


@pytest.fixture(scope="module")
def digits() -> Federation:
    return Federation.mnist(clients=12, samples=30, seed=1)


@pytest.fixture(scope="module")
def ragged() -> Federation:
    return Federation.mnist(sizes=[5, 40, 17, 40, 3, 29], seed=2, local_test=1)
