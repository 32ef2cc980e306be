"""The notebooks run from a clean kernel, draw something, and were kept with what they print."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import nbformat
import pytest

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parent.parent.parent
_spec = importlib.util.spec_from_file_location("run_notebooks", ROOT / "docs" / "run_notebooks.py")
run_notebooks = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(run_notebooks)
NOTEBOOKS = sorted(run_notebooks.FOLDER.glob("*.ipynb"))


def test_there_are_four() -> None:
    assert len(NOTEBOOKS) == 4


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_a_clean_kernel(path: Path, tmp_path: Path) -> None:
    made, kept = run_notebooks.execute(path, tmp_path), nbformat.read(path, as_version=4)
    assert run_notebooks.pictures(made) == run_notebooks.pictures(kept) > 0
