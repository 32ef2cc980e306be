"""The search of benchmarks/sensitivity_search.py, a small one: no record moves an upload further than its sensitivity."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "sensitivity_search.py"


@pytest.mark.filterwarnings("ignore")
def test_no_record_of_a_small_search_passes_its_sensitivity() -> None:
    spec = importlib.util.spec_from_file_location("sensitivity_search", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found = module.search(400, seed=1)
    assert len(found) >= 12
    assert sum(count for count, _ in found.values()) >= 400
    for name, (_, worst) in found.items():
        assert worst <= 1, name
    assert max(worst for _, worst in found.values()) > 0.9, "the search must come near what it looks for"
