"""Audits of secure plans: close to the claim for the sound mechanism, refuted for planted errors."""

from __future__ import annotations

import numpy as np
import pytest
from tests.paper_setting import Plan

from nbafl.audit.secure import audit_secure
from nbafl.audit.sums import SumMechanism
from nbafl.errors import UsageError
from nbafl.privacy.noise import SecureGaussian

QUIET = 1 - 5e-6
"""Noise of the operating system has no seed: all errors together are a fifth of the rest, 1e-6."""


def plan(**fields: object) -> Plan:
    given = {
        "clients": 8, "samples": 60, "rounds": 4, "epsilon": 2.0, "delta": 1e-2, "sensitivity": "gradient",
        "model": "softmax", "aggregation": "secure", "adversary": "curious-server:2", "min_answers": 6,
    }  # fmt: skip
    return Plan(**{**given, **fields})


def test_a_sound_plan_is_consistent_and_nearly_proved() -> None:
    found = audit_secure(plan(), 60_000, QUIET)
    assert not found.refuted, found.to_dict()["refuted_by"]
    assert found.claim.proof > 0.85 * 2.0
    assert found.to_dict()["verdict"] == "consistent"
    assert any("consistent" in line for line in found.sentences())


def _no_noise_of_one(round: int, client: int, spread: float, size: int) -> np.ndarray:  # noqa: ARG001
    return np.zeros(size, dtype=np.int64) if client == 3 else SecureGaussian().integers(spread, size)


def _too_little(round: int, client: int, spread: float, size: int) -> np.ndarray:  # noqa: ARG001
    return SecureGaussian().integers(0.8 * spread, size)


def _below_m(answered: np.ndarray, fewest: int) -> np.ndarray | None:
    return answered if len(answered) >= fewest - 2 else None


@pytest.mark.parametrize(
    "mechanism",
    [SumMechanism(noise=_no_noise_of_one), SumMechanism(noise=_too_little), SumMechanism(opened=_below_m)],
    ids=["one client's noise left out", "noise too small", "sums below M"],
)
def test_planted_errors_are_refuted(mechanism: SumMechanism) -> None:
    assert audit_secure(plan(), 60_000, QUIET, mechanism).refuted


def test_a_plain_plan_has_no_sums_to_audit() -> None:
    with pytest.raises(UsageError, match="aggregation must be secure"):
        audit_secure(plan(aggregation="plain"), 1000, 0.95)
