"""Finished runs with their evidence, and copies that an operator changed before signing, for tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from tests.paper_setting import Plan

import nbafl
from nbafl.cli import run_command
from nbafl.evidence import seal
from nbafl.evidence.sealed import open_file
from nbafl.flower.keys import make_client_key, read_signing_key

FOLDER = "evidence"


def small_federation() -> nbafl.Federation:
    """Three clients with 30 records each, made up."""
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(30, 4)).astype(np.float32), rng.integers(0, 2, 30)) for _ in range(3)]
    return nbafl.Federation.from_arrays(clients, names=["north", "south", "<b>west</b>"])


def finished_run(folder: Path, **fields: object) -> Path:
    """A folder with a finished run, the operator's key and the run's evidence."""
    given = {
        "clients": 3, "samples": 30, "rounds": 3, "sensitivity": "gradient", "model": "softmax", "epsilon": 3, "delta": 1e-5,
    }  # fmt: skip
    nbafl.simulate(Plan(**{**given, **fields}), small_federation(), out=folder / "run", report=False)
    make_client_key("operator", folder)
    assert write(folder) == 0
    return folder


def write(folder: Path) -> int:
    """`nbafl evidence` of the folder's run."""
    return run_command(["evidence", str(folder / "run"), "--key", str(folder / "operator")])


def resigned(made: Path, place: Path, change: Callable[[dict], object]) -> Path:
    """A copy whose content was changed by the operator before signing."""
    content = open_file(made / "run" / "evidence.html").content
    change(content)
    file = place / "resigned.html"
    file.write_text(seal(content, read_signing_key(made / "operator")))
    return file
