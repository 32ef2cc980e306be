"""Sums of integers: the theorem's account stands against a server that drops clients, and planted mistakes fall."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nbafl.audit.looks import Look
from nbafl.audit.sums import SumMechanism, SumSetting, SumView, audit_sums
from nbafl.privacy.gaussian import gdp_epsilon, gdp_mu
from nbafl.privacy.noise import SecureGaussian

DELTA = 1e-3
FEW = 4000


def planned(epsilon: float) -> tuple[SumSetting, list[SumView]]:
    """N=6, M=5, k=1, T=4: the spread that the theorem asks for, mu^2 = T·A^2/((M − k)·s^2 − 4)."""
    clients, fewest, accomplices, rounds, shift = 6, 5, 1, 4, 20_000
    mu = gdp_mu(epsilon, DELTA)
    spread = math.sqrt((rounds * (shift / mu) ** 2 + 4) / (fewest - accomplices))
    setting = SumSetting(clients, fewest, accomplices, rounds, spread, shift)
    # No client can be made to drop out: one more honest client hides the target.
    all_there = math.sqrt(rounds * shift**2 / ((clients - accomplices) * spread**2 - 4))
    views = [
        SumView("server that drops clients", True, epsilon),
        SumView("server without dropouts", False, gdp_epsilon(all_there, DELTA)),
    ]
    return setting, views


def refuted(epsilon: float, mechanism: SumMechanism, trials: int = FEW) -> list[Look]:
    setting, views = planned(epsilon)
    return [look for look in audit_sums(setting, views, DELTA, trials, mechanism=mechanism) if look.refuted]


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_sound_sums_stand_and_the_attack_comes_close(epsilon: float) -> None:
    setting, views = planned(epsilon)
    # Noise of the operating system has no seed: a hundredth of a hundredth of the error keeps a test quiet.
    found = audit_sums(setting, views, DELTA, 10 * FEW, confidence=1 - 5e-6)
    assert [look for look in found if look.refuted] == []
    assert found[0].proof > 0.6 * epsilon
    assert found[1].proof < found[0].account  # dropouts are what makes the difference
    assert sum(look.error for look in found) == pytest.approx(1e-6)


def left_out(round: int, client: int, spread: float, size: int) -> np.ndarray:  # noqa: ARG001
    drawn = SecureGaussian().integers(spread, size)
    return drawn * 0 if client == 2 else drawn


class Once:
    """Every client draws its noise once for all rounds."""

    def __init__(self) -> None:
        self.kept: dict[int, np.ndarray] = {}

    def __call__(self, round: int, client: int, spread: float, size: int) -> np.ndarray:  # noqa: ARG002
        if client not in self.kept:
            self.kept[client] = SecureGaussian().integers(spread, size)
        return self.kept[client]


def one_too_few(answered: np.ndarray, fewest: int) -> np.ndarray | None:
    return answered if len(answered) >= fewest - 1 else None


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_planted_mistakes_in_sums_are_refuted(epsilon: float) -> None:
    assert "noise of the sums: size" in {look.name for look in refuted(epsilon, SumMechanism(noise=left_out))}
    assert "noise of the sums: twice" in {look.name for look in refuted(epsilon, SumMechanism(noise=Once()))}
    assert "server that drops clients: members" in {
        look.name for look in refuted(epsilon, SumMechanism(opened=one_too_few))
    }


def test_a_sum_over_too_few_is_refuted_by_its_proof_as_well() -> None:
    assert "server that drops clients" in {
        look.name for look in refuted(8.0, SumMechanism(opened=one_too_few), 10 * FEW)
    }
