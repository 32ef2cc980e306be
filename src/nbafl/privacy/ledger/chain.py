"""Rows of a ledger, each bound to the one before it by its hash: a changed, dropped or moved row shows."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace

from nbafl.privacy.units import Account

SECOND_RELEASE = ("unit", "adjacency", "rounding", "charges")
"""Columns that the first release did not have; where they are empty they are no part of a row's hash."""


@dataclass(frozen=True)
class Request:
    """What a server asks for: one round of one plan, starting from one broadcast."""

    plan: str
    round: int
    broadcast: str


@dataclass(frozen=True)
class Charged:
    """What one row adds to one account: mu^2 against the plan's adversary and to whoever sees every upload.

    None: no bound is known (a release of the first release whose plan is not at hand; scores, for a unit larger than the
    plan's).
    """

    cost: float | None
    uploads: float | None
    conditional: bool

    @classmethod
    def of(cls, cost: float, uploads: float, conditional: bool) -> Charged:
        """A charge as it is kept: an infinite one is no bound."""
        known = math.isfinite(cost) and math.isfinite(uploads)
        return cls(cost, uploads, conditional) if known else cls(None, None, conditional)


@dataclass(frozen=True)
class Row:
    """One line of the ledger. `cost` and `cost_upload` are those of the plan's own unit and adjacency."""

    number: int
    time: float
    kind: str
    plan: str
    round: int
    broadcast: str
    upload: str
    cost: float
    cost_upload: float
    note: str
    previous: str
    hash: str
    unit: str = ""
    adjacency: str = ""
    rounding: float = 0.0
    """What finite precision adds to epsilon."""
    charges: str = ""

    def expected_hash(self) -> str:
        """sha256 over everything else in the row, the hash of the row before it included."""
        content = asdict(self)
        del content["hash"]
        if not any(content[name] for name in SECOND_RELEASE):
            for name in SECOND_RELEASE:
                del content[name]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def sealed(self) -> Row:
        """The row with its hash."""
        return replace(self, hash=self.expected_hash())

    def charged(self) -> dict[Account, Charged]:
        """What the row adds to each account."""
        found = json.loads(self.charges) if self.charges else {}
        return {Account(name): Charged(*values) for name, values in found.items()}


COLUMNS = tuple(field.name for field in fields(Row))


def encoded(charges: dict[Account, Charged]) -> str:
    """Charges as they stand in a row."""
    return json.dumps(
        {account.value: [each.cost, each.uploads, each.conditional] for account, each in charges.items()},
        sort_keys=True,
    )


def digest(content: bytes) -> str:
    """sha256 of an upload."""
    return hashlib.sha256(content).hexdigest()


def broken(rows: Iterable[Row]) -> Iterator[int]:
    """The places at which the chain does not hold."""
    previous = ""
    for place, row in enumerate(rows):
        if row.number != place or row.previous != previous or row.hash != row.expected_hash():
            yield place
        previous = row.hash
