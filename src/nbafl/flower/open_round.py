"""What is known of a round while it is made: who was drawn, who answered, why the others did not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nbafl.errors import Refused

NOT_CONNECTED, NOT_IN_TIME = "not connected", "no answer in time"


@dataclass
class OpenRound:
    """What happened in the round just aggregated."""

    number: int
    drawn: list[int]
    online: list[int] = field(default_factory=list)
    """Who could have answered when the draw was made."""
    still_online: list[int] = field(default_factory=list)
    """Who of them could until the round ended."""
    attempts: int = 1
    """How often the round was begun: one that stopped may have told who was drawn."""
    answered: list[int] = field(default_factory=list)
    missing: dict[int, str] = field(default_factory=dict)
    sigma_downlink: float = 0.0


class TooFew(Refused):
    """Too few clients are left. Why each is silent, its own limit for instance, is between it and the server."""

    def __init__(self, told: str, reasons: Mapping[int, str]) -> None:
        why = "; ".join(f"client {client}: {reason}" for client, reason in sorted(reasons.items()))
        super().__init__(f"{told} ({why})." if why else f"{told}.")
        self.told = told
        """What the other clients may know."""
