"""What a client must still know after a crash, in two parts: what happened, and its secrets.

The two are kept apart (`Store`): what happened goes into the ledger's database in the transaction of the release
itself, secrets into a file that is replaced whole, so that what is erased is not kept by an append-only ledger. The
secrets are written first. A crash between the two writes, or one of the two files put back from a copy, shows in the
step counts: one step apart, the client sits out the round; further apart, it is out for the run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, Self


class _Json:
    """Dataclasses of numbers, bytes (as hex) and mappings from client numbers, as JSON and back."""

    def encode(self) -> bytes:
        content = {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]
        return json.dumps(content, default=bytes.hex, sort_keys=True).encode()

    @classmethod
    def decode(cls, content: bytes) -> Self:
        found = json.loads(content)
        return cls(**{each.name: _value(found[each.name]) for each in fields(cls)})  # type: ignore[arg-type]


def _value(found: Any) -> Any:
    if isinstance(found, str):
        return bytes.fromhex(found)
    if isinstance(found, list):
        return tuple(_value(each) for each in found)
    if isinstance(found, dict):
        return {int(name): _value(each) for name, each in found.items()}
    return found


@dataclass(frozen=True)
class State(_Json):
    """What happened: nothing in here is secret once it was sent."""

    steps: int = 0
    run: bytes = b""
    round: int = 0
    """The newest round this client prepared or closed, over all runs of the plan: rounds only go up."""
    prepared: bytes = b""
    commitment: bytes = b""
    """c, once an upload was made in this round; there is never another one."""
    listed: tuple[int, ...] = ()
    agreed: bytes = b""
    members: bytes = b""
    """The set that was signed, and the one that was opened; t signatures make them the same."""
    opened: bytes = b""
    reveal: bytes = b""
    earlier_round: int = 0
    earlier_opened: bytes = b""
    earlier_reveal: bytes = b""
    """The reveal that was sent together with this round's prepare, in case it has to be sent again."""


@dataclass(frozen=True)
class Secrets(_Json):
    """What must not be known to anybody else, and what tells to which run it belongs."""

    steps: int = 0
    run: bytes = b""
    round: int = 0
    open: bytes = b""
    channel: bytes = b""
    chain_round: int = 0
    chain: Mapping[int, bytes] = field(default_factory=dict)
    mask: bytes = b""
    seed: bytes = b""
    mask_shares: Mapping[int, bytes] = field(default_factory=dict)
    seed_shares: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Charge:
    """The release that a step makes: the ledger's row has c as its key, and keeps the bytes."""

    round: int
    commitment: bytes
    upload: bytes


class Store(Protocol):
    """Where a client's state outlives a crash."""

    def load(self) -> tuple[bytes | None, bytes | None]:
        """(state, secrets) as they were saved last."""

    def save(self, expected: int, state: bytes, secrets: bytes, charge: Charge | None = None) -> None:
        """First the secrets, then in one transaction the ledger's row and the state; durable once this returns.

        Refuses when the stored state is not at step `expected`: another process was here.
        """

    def check(self, round: int, commitment: bytes) -> None:
        """Refuse now what `save` with a charge would refuse, before any training is done."""

    def upload(self, round: int, commitment: bytes) -> bytes:
        """The upload that was saved under this c, to be sent again; `Refused` if it is not there."""
