"""What all tests share."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Ctrl-C reaches the processes under test also where the suite itself was started in the background, ignoring it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
