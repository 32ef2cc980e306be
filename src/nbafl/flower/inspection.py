"""Before the first round: does everybody mean the same plan, model and roster, and can everybody answer?

The server states its facts; each client holds them against its own files and ledger, and says in one sentence what is
wrong. `serve` asks all clients before anything is released, so that one wrong file costs nobody any budget;
`nbafl join --check` asks the same without taking part.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import ConfigRecord, Message

from nbafl.flower import wire
from nbafl.flower.release import check_client
from nbafl.flower.roster import Roster
from nbafl.flower.wire import Layout, Malformed
from nbafl.privacy.ledger import Declined, sums

if TYPE_CHECKING:
    from nbafl.flower.party import Party

CLOCK = 60.0
"""Seconds by which clocks may differ before people are told: times in ledger and logs would not fit together."""
NO_ROOM = "this client's limits do not allow a single answer to this plan."
EXPIRY = 14 * 86400.0
"""Seconds before the end of a certificate when people are told."""


@dataclass(frozen=True)
class Facts:
    """What a server says of its federation; hashes are sha256, empty where there is no such file."""

    plan: str
    roster: str
    model: str
    schema: str
    clock: float
    expires: float
    """When the server's certificate ends, in seconds since 1970."""
    rounds_done: int
    protocol: int = wire.PROTOCOL

    def to_config(self, client: int) -> ConfigRecord:
        values = {f"nbafl-fact-{name}": value for name, value in asdict(self).items()}
        return ConfigRecord({wire.CHECK: 1, wire.CLIENT: client, **values})

    @classmethod
    def read(cls, config: ConfigRecord) -> Facts:
        """Facts in a question of the server."""
        return cls.from_json({field.name: config.get(f"nbafl-fact-{field.name}") for field in fields(cls)})

    @classmethod
    def from_json(cls, said: Mapping[str, object]) -> Facts:
        """Facts as another party sent them; the first protocol had no name."""
        kinds = {"clock": float, "expires": float, "rounds_done": int, "protocol": int}
        values = {field.name: said.get(field.name) for field in fields(cls)}
        if values["protocol"] is None:
            values["protocol"] = 1
        for name, value in values.items():
            kind = kinds.get(name, str)
            if type(value) is not kind:
                raise Malformed(f"the fact {name!r} must be {kind.__name__}, got {type(value).__name__}.")
        return cls(**values)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Own:
    """What a client brings along, to be held against the server's facts."""

    number: int | None
    """Its place in the plan's arrays by its own copy of the roster; None where it has none."""
    roster: str
    schema: str


def model_hash(layout: Layout) -> str:
    """sha256 of names, shapes and kinds of a model's arrays."""
    entries = [[name, list(shape), kind.str] for name, shape, kind in layout.entries]
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def file_hash(path: Path | None) -> str:
    """sha256 of a file; empty where there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path is not None and path.is_file() else ""


def roster_hash(path: Path | None) -> str:
    return Roster.load(path).digest() if path is not None and path.is_file() else ""


def problems(client: Party, own: Own, facts: Facts, number: int) -> Iterator[str]:
    """Why this client would refuse, sentence by sentence. They may be told to the server: they quote no data."""
    plan = client.releaser.plan
    if facts.protocol != wire.PROTOCOL:
        yield f"the server {wire.OTHER_VERSION}"
        return
    if facts.plan != plan.digest():
        yield "the server's plan is not the one this client agreed to."
        return
    if own.number is not None and own.number != number:
        yield f"the server takes this client for number {number + 1}, its own roster says {own.number + 1}."
        return  # whether its data would be enough for another's number is nobody's business
    try:
        check_client(plan, number, client.units)
        # With the noise as it is drawn: a plan whose noise cannot be made is refused here, and not in the first round.
        price = client.releaser.price(number, client.layout.dimension)
    except Declined as error:
        yield str(error)
        return
    if own.roster and facts.roster and own.roster != facts.roster:
        yield "the server's roster is not the one this client was given."
    if own.schema and facts.schema and own.schema != facts.schema:
        yield "the server's schema is not the one this client was given."
    if facts.model != model_hash(client.layout):
        yield "the server's model does not fit this client's; its own log says how large it is here."
    ledger = client.releaser.ledger
    _, last = sums.of_plan(ledger.execute, plan.digest())
    if (
        last <= facts.rounds_done and ledger.affordable(plan.digest(), price) < 1
    ):  # else it can send its last again
        yield NO_ROOM


def refused(reply: Message) -> str | None:
    """Why a client that was asked to check would refuse; None where it would not, or did not say."""
    if reply.has_error():
        said = wire.printable(reply.error.reason or "no reason given")
        return said if reply.error.code == wire.REFUSED else None
    ready = reply.content.get(wire.ANSWER)
    speaks = ready.get(wire.CHECK) if isinstance(ready, ConfigRecord) else None
    return None if speaks == wire.PROTOCOL else f"the client {wire.OTHER_VERSION}"


def remarks(facts: Facts) -> Iterator[str]:
    """What people should know, though it stops nothing."""
    ahead = facts.clock - time.time()
    if abs(ahead) > CLOCK:
        yield f"the server's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this machine's."
    left = facts.expires - time.time()
    if left < EXPIRY:
        yield f"the server's certificate ends in {max(0.0, left) / 86400:.1f} days."
