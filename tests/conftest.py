"""What all tests share."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

# The same examples every time, however long a busy machine takes over one: what fails today fails again tomorrow.
settings.register_profile(
    "nbafl", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("nbafl")


def pytest_configure() -> None:
    """Ctrl-C reaches the processes under test also where the suite itself was started in the background, ignoring it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
