"""What Flower's tests share: the modules beside them (`secure_party`) are found, and messages know their task."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from flwr.supercore.task_identity import TaskIdentity

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _identity() -> None:
    """Only Flower's own processes know it."""
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 2, 3
