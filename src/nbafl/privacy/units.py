"""What is protected (a record, a person, a whole client), and what a release of one kind costs the others.

Costs in mu^2 add up only as long as they are about the same change of the data. A ledger therefore keeps one account
for each change it may be asked about, and every release is charged to all of them. What can be proved, math.md (10.1):

* Whatever changes inside a client, its upload stays within the radius R of a public centre (the last clip before the
  noise): two uploads differ by at most 2R, and an upload differs from the centre, which is what an absent client
  sends noise around, by at most R. This holds for every rule, K and adjacency: 2C for `client`, `paper` and
  `proximal`, 2 eta G for `gradient`.
* Under a plan for persons a record may be replaced by one of another person of the same client: one person loses a
  row and another gains one, which moves an upload by up to twice a person's bound, and never by more than 2R. Both are
  attained. How many persons a client has is public; it may even change, as long as it is never below the plan's:
  math.md (10.5).
* A bound for a record says nothing about a person with several, so a person is charged as a client there.

No other conversion is used: under `drop` a client moves its upload by C, yet one record replaced inside it moves the
update by up to 2C.
"""

from __future__ import annotations

import dataclasses
from enum import StrEnum

import numpy as np

from nbafl.errors import UsageError
from nbafl.privacy.adversary import Release
from nbafl.privacy.sensitivity import Sensitivity


class Account(StrEnum):
    """One change of the data, with a sum of its own in the ledger."""

    RECORD = "record"
    PERSON = "person"
    CLIENT_DROP = "client-drop"
    CLIENT = "client"

    @classmethod
    def of(cls, unit: str, adjacency: str) -> Account:
        """The account of a plan that protects this unit under this adjacency."""
        name = "client-drop" if (unit, adjacency) == ("client", "drop") else unit
        if adjacency not in ("replace", "drop") or (adjacency == "drop" and unit != "client"):
            raise UsageError("adjacency", adjacency, "replace, or drop for the unit client")
        try:
            return cls(name)
        except ValueError:
            raise UsageError("unit", unit, "record, person or client") from None

    @property
    def unit(self) -> str:
        return "client" if self is Account.CLIENT_DROP else self.value

    @property
    def adjacency(self) -> str:
        return "drop" if self is Account.CLIENT_DROP else "replace"

    @property
    def change(self) -> str:
        """What neighbouring data sets differ by, in words."""
        return {
            Account.RECORD: "one record replaced",
            Account.PERSON: "all records of one person replaced",
            Account.CLIENT_DROP: "this client's data left out",
            Account.CLIENT: "this client's data replaced",
        }[self]


def in_account(release: Release, account: Account, radius: float) -> Release:
    """The same release as it protects another account; `radius` is where the last clip keeps an upload."""
    return dataclasses.replace(release, sensitivity=_converted(release.sensitivity, account, radius))


def _converted(own: Sensitivity, account: Account, radius: float) -> Sensitivity:
    if Account.of(own.unit, own.adjacency) is account:
        return own
    if account is Account.RECORD and own.unit == "person":
        return _record_of_persons(own, radius)
    reach = radius if account is Account.CLIENT_DROP else 2 * radius
    return Sensitivity(
        model=own.model,
        unit=account.unit,
        adjacency=account.adjacency,
        uplink=np.full(own.clients, float(reach)),
        conditional=False,
        premise=f"Every upload is clipped to within {radius:g} of a public centre before its noise.",
    )


def _record_of_persons(own: Sensitivity, radius: float) -> Sensitivity:
    """A record replaced by one of another person changes two persons, math.md (10.5)."""
    uplink = np.minimum(2 * own.uplink, 2 * radius)
    return dataclasses.replace(own, unit="record", uplink=uplink)
