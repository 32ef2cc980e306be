"""A few of the random plans of benchmarks/random_plans.py: nbafl's accountant against one that shares no line with it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_plans_agree_with_an_independent_accountant(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    random_plans = importlib.import_module("random_plans")
    tally, _ = random_plans.run(plans=12, seed=seed)
    assert tally.failures == []
    assert sum(tally.compared.values()) > 100
    assert max(tally.deviation.values()) < 1e-4


def test_the_comparison_notices_an_accountant_that_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    random_plans = importlib.import_module("random_plans")
    honest = random_plans.accounting.epsilon_spent
    for factor in (1 - 1e-5, 1 + 1e-5):
        monkeypatch.setattr(
            random_plans.accounting, "epsilon_spent", lambda *given, f=factor: f * honest(*given)
        )
        assert random_plans.run(plans=2, seed=1)[0].failures
    del sys.modules["random_plans"], sys.modules["independent_accountant"]
