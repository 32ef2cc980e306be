"""Import this before Flower: it switches off everything Flower would send elsewhere, and checks its version.

Nothing phones home: no telemetry, no search for updates, no installation of packages when a run starts.
"""

from __future__ import annotations

import os
from importlib.metadata import version

from nbafl.errors import NbaflError

FLOWER = "1.41.0"

for _switch, _value in {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}.items():
    os.environ.setdefault(_switch, _value)


def check_flower() -> None:
    """serve and join use internals of Flower: another version may differ where it matters."""
    if version("flwr") != FLOWER:
        raise NbaflError(f"flwr must be version {FLOWER} for serve and join, got {version('flwr')}.")
