"""NbAFL on Flower: two lines in an existing app, or a whole federation (`nbafl serve` and `nbafl join`).

    strategy = nbafl.flower.NbAFL(plan)                       # in the ServerApp
    app = ClientApp(mods=[nbafl.flower.private(plan)])        # in the ClientApp

and for secure aggregation `SecureNbAFL(plan, roster, folder)` and `private(plan, roster=roster)`.

Names are loaded when first used: Flower takes seconds to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import nbafl.flower.offline  # noqa: F401  # before Flower itself is imported anywhere
from nbafl import lazy

__all__ = ["Limits", "NbAFL", "SecureNbAFL", "private"]

_HOMES = {
    "NbAFL": "nbafl.flower.strategy",
    "SecureNbAFL": "nbafl.flower.secure_strategy",
    "private": "nbafl.flower.mod",
    "Limits": "nbafl.privacy.ledger",
}

if TYPE_CHECKING:
    from nbafl.flower.mod import private
    from nbafl.flower.secure_strategy import SecureNbAFL
    from nbafl.flower.strategy import NbAFL
    from nbafl.privacy.ledger import Limits

__getattr__ = lazy.names(__name__, _HOMES)
