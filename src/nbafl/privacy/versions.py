"""Versions of what computed a statement and of what ran."""

from __future__ import annotations

import platform
from importlib import metadata

import nbafl

_LIBRARIES = ("dp-accounting", "numpy", "scipy", "torch")


def versions() -> dict[str, str]:
    """Versions of what computed and of what ran; a library that is not installed is left out."""
    found = {"python": platform.python_version(), "nbafl": nbafl.__version__}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
