"""The built wheel, in an environment of its own outside the repository (the whole suite: benchmarks/wheel_smoke.py)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
SCRIPT = Path(__file__).parent.parent.parent / "benchmarks" / "wheel_smoke.py"


def test_a_wheel_outside_the_repository_plans_trains_and_predicts(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("wheel_smoke", SCRIPT)
    smoke = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(smoke)
    installed = smoke.Environment(tmp_path, clean=False)
    smoke.comes_from_the_wheel(installed)
    smoke.plan(installed)
    smoke.run_and_predict(installed)
