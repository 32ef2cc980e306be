"""What all tests share."""

from __future__ import annotations

import os
import random
import signal
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# The same examples every time, however long a busy machine takes over one: what fails today fails again tomorrow.
settings.register_profile(
    "nbafl", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("nbafl")


def pytest_configure() -> None:
    """What a suite inherits from where it was started changes nothing.

    Ctrl-C reaches the processes under test also where the suite itself was started in the background, ignoring it.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in (
        "COLUMNS",
        "LINES",
        "FORCE_COLOR",
        "CLICOLOR_FORCE",
    ):  # somebody's terminal is not what is tested
        os.environ.pop(name, None)


@pytest.fixture(autouse=True)
def _same_chance() -> None:
    """What a test draws without a seed does not hang on the tests before it, which differ from machine to machine."""
    random.seed(0)
    np.random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
