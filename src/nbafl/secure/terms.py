"""What all parties of a secure aggregation agreed on before it begins."""

from __future__ import annotations

from dataclasses import dataclass

from nbafl.errors import UsageError
from nbafl.secure.counts import check_counts, threshold
from nbafl.secure.primitives import SECRET, digest


@dataclass(frozen=True)
class Terms:
    """The roster (numbers 1..N, signing keys, hash), the plan, k, M, the last round, and how a vector is written."""

    plan: bytes
    roster: bytes
    keys: tuple[bytes, ...]
    accomplices: int
    fewest: int
    last_round: int
    dimension: int
    width: int

    def __post_init__(self) -> None:
        check_counts(self.clients, self.accomplices, self.fewest)
        if len(set(self.keys)) != len(self.keys) or any(len(key) != SECRET for key in self.keys):
            raise UsageError(
                "roster", f"{len(self.keys)} signing keys", "one signing key of its own for each client"
            )

    @property
    def clients(self) -> int:
        """N."""
        return len(self.keys)

    @property
    def threshold(self) -> int:
        """t, of the whole roster."""
        return threshold(self.clients, self.accomplices)

    @property
    def numbers(self) -> range:
        """1..N."""
        return range(1, self.clients + 1)

    @property
    def agreement(self) -> bytes:
        """One hash of everything here: signed in `open`, so that clients with other terms share no run."""
        counts = (self.accomplices, self.fewest, self.last_round, self.dimension, self.width)
        return digest(
            b"terms", self.plan, self.roster, *self.keys, *(str(count).encode() for count in counts)
        )
