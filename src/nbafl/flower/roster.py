"""The roster: one file that says who takes part, under which number, with which keys and how many records.

    [[client]]
    number = 1
    name = "north-hospital"
    key = "ecdsa-sha2-nistp384 AAAA…"      the connection's key (Flower's), as in NAME.pub
    signing_key = "…"                      Ed25519, 32 bytes in base64
    records = 1200

It is agreed before a run and never changed by it: who is revoked or was seen last is state and lies elsewhere. All
parties can compare one sha256, `digest`, over an encoding that does not depend on how the file is laid out. Numbers
are 1..N; the plan's arrays count from 0, so the client of number i has index i − 1 there.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from nbafl import toml_file
from nbafl.durable import write_text
from nbafl.errors import DataError, NbaflError, UsageError
from nbafl.flower import keys
from nbafl.flower.keys import PublicIdentity

if TYPE_CHECKING:
    from nbafl.plan import Plan

VERSION = 1


@dataclass(frozen=True)
class Member:
    """One client of a federation: a row of the roster."""

    number: int
    name: str
    key: str
    signing_key: str
    records: int

    def __post_init__(self) -> None:
        if type(self.number) is not int or type(self.records) is not int:
            raise UsageError("client", self.name, "a table with whole numbers for number and records")
        PublicIdentity(self.name, self.key, self.signing_key, self.records)  # checks them

    @property
    def index(self) -> int:
        """Where the plan's arrays keep this client."""
        return self.number - 1


@dataclass(frozen=True)
class Roster:
    """All clients of a federation, in the order of their numbers 1..N."""

    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        numbers = [member.number for member in self.members]
        if not numbers or numbers != list(range(1, len(numbers) + 1)):
            raise UsageError(
                "number", numbers[:8], "1, 2, … N in this order, one for each client of the roster"
            )
        for field in ("name", "key", "signing_key"):
            values = [getattr(member, field) for member in self.members]
            if len(set(values)) != len(values):
                twice = next(value for value in values if values.count(value) > 1)
                raise UsageError(field, twice, "different for every client of the roster")

    @classmethod
    def of(cls, identities: Sequence[PublicIdentity], records: int | None = None) -> Roster:
        """Clients numbered in the given order; `records` for those that do not say how many they have."""
        members = []
        for number, known in enumerate(identities, 1):
            size = records if known.records is None else known.records
            if size is None:
                raise UsageError(
                    "records",
                    None,
                    f"given for client {known.name!r}: in its key file, or for all with --records",
                )
            members.append(Member(number, known.name, known.key, known.signing_key, size))
        return cls(tuple(members))

    @classmethod
    def load(cls, path: str | Path) -> Roster:
        """A roster file; a missing, misspelt or doubled entry is one sentence."""
        content = toml_file.read(path, "roster")
        tables = content.get("client")
        if set(content) != {"version", "client"} or content["version"] != VERSION or type(tables) is not list:
            raise DataError(f"roster {str(path)!r} must hold version = {VERSION} and [[client]] tables only.")
        try:
            return cls(tuple(_member(entry) for entry in tables))
        except NbaflError as error:
            raise DataError(f"roster {str(path)!r}: {error}") from None

    @classmethod
    def found(cls, place: Path, records: int | None = None) -> Roster:
        """A roster file, or a folder of key files (NAME.pub), whose clients are numbered by name."""
        if not place.is_dir():
            return cls.load(place)
        files = sorted(place.glob("*.pub"))
        if not files:
            raise DataError(f"the folder {str(place)!r} holds no key files (NAME.pub); {keys.MAKE}")
        return cls.of([keys.read_identity(file) for file in files], records)

    def save(self, path: Path) -> None:
        write_text(path, self.to_toml())

    def to_toml(self) -> str:
        """The file; JSON strings of plain ASCII are TOML strings."""
        parts = [f"# who takes part; sha256 {self.digest()}\nversion = {VERSION}\n"]
        parts += [
            "[[client]]\n"
            + "".join(f"{name} = {json.dumps(value)}\n" for name, value in asdict(member).items())
            for member in self.members
        ]
        return "\n".join(parts)

    def digest(self) -> str:
        """sha256 over the canonical encoding: a JSON list in a fixed order, which is injective."""
        rows = [list(asdict(member).values()) for member in self.members]
        content = json.dumps(["nbafl-roster", VERSION, rows], separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(content.encode()).hexdigest()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Records of each client, in the plan's order."""
        return tuple(member.records for member in self.members)

    @property
    def names(self) -> list[str]:
        """Names in the plan's order."""
        return [member.name for member in self.members]

    @property
    def signing_keys(self) -> dict[int, ed25519.Ed25519PublicKey]:
        """Signing key of each number."""
        return {member.number: keys.load_signing_key(member.signing_key) for member in self.members}

    @property
    def connection_keys(self) -> list[ec.EllipticCurvePublicKey]:
        """Keys of the connections, in the plan's order."""
        return [keys.load_public_key(member.key) for member in self.members]

    def find(self, key: ec.EllipticCurvePublicKey) -> Member | None:
        """The client that has this connection key."""
        wanted = keys.fingerprint(key)
        return next(
            (m for m in self.members if keys.fingerprint(keys.load_public_key(m.key)) == wanted), None
        )

    def signing(self, key: ed25519.Ed25519PrivateKey) -> Member | None:
        """The client whose signing key this is."""
        wanted = base64.b64encode(key.public_key().public_bytes_raw()).decode()
        return next((member for member in self.members if member.signing_key == wanted), None)

    def named(self, name: str) -> Member:
        """The client of this name."""
        for member in self.members:
            if member.name == name:
                return member
        raise UsageError("name", name, f"a client of the roster: {', '.join(self.names[:20])}")

    def check_plan(self, plan: Plan) -> None:
        """The plan's noise was computed for these clients and sizes, in this order."""
        if len(self.members) != plan.clients:
            raise DataError(f"the roster has {len(self.members)} clients, the plan {plan.clients}.")
        wrong = [m for m, size in zip(self.members, plan.client_sizes, strict=True) if m.records != size]
        if wrong and plan.weighting == "records":
            raise DataError(
                f"the roster says {wrong[0].records} {plan.counted} for client {wrong[0].name!r}, "
                f"the plan {plan.client_sizes[wrong[0].index]}; prepare the plan with --roster."
            )


_COLUMNS = tuple(field.name for field in fields(Member))


def _member(entry: Mapping[str, Any]) -> Member:
    if not isinstance(entry, Mapping) or set(entry) != set(_COLUMNS):
        raise UsageError("client", entry, f"a table with exactly {', '.join(_COLUMNS)}")
    return Member(**entry)
