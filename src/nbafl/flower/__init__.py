"""NbAFL on Flower: two lines in an existing app, or a whole federation (`nbafl serve` and `nbafl join`).

    strategy = nbafl.flower.NbAFL(plan)                       # in the ServerApp
    app = ClientApp(mods=[nbafl.flower.private(plan)])        # in the ClientApp

Names are loaded when first used: Flower takes seconds to import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import nbafl.flower.quiet  # noqa: F401  # before Flower itself is imported anywhere

__all__ = ["Limits", "NbAFL", "private"]

_HOMES = {
    "NbAFL": "nbafl.flower.strategy",
    "private": "nbafl.flower.mod",
    "Limits": "nbafl.privacy.ledger",
}

if TYPE_CHECKING:
    from nbafl.flower.mod import private
    from nbafl.flower.strategy import NbAFL
    from nbafl.privacy.ledger import Limits


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'nbafl.flower' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
