"""What clients sign and what server and clients send each other.

Everything a client says is signed together with its kind, the client's number, the run and the round (an `open` comes
before there is a run: it is signed over roster and plan instead). The verifier puts kind, run and round in by itself:
a message of another kind, round or run is a signature that does not fit. Encodings are injective (`primitives.join`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nbafl.privacy.ledger import Declined
from nbafl.secure import primitives
from nbafl.secure.primitives import Broken, digest, join, number, split
from nbafl.secure.shamir import SHARE
from nbafl.secure.terms import Terms

NAME, OPEN, HEADER, UPLOAD, AGREEMENT, REVEAL = (
    b"name",
    b"open",
    b"header",
    b"upload",
    b"agreement",
    b"reveal",
)
_FIELDS = {NAME: 2, OPEN: 2, HEADER: 2, UPLOAD: 2, AGREEMENT: 2, REVEAL: 3}


@dataclass(frozen=True)
class Context:
    """Where a signature belongs."""

    run: bytes
    round: int


BEFORE = Context(b"", 0)
"""An `open`, and who somebody is, is signed before there is a run."""


@dataclass(frozen=True)
class Signed:
    """One client's signed statement of some kind."""

    number: int
    body: tuple[bytes, ...]
    signature: bytes

    def encode(self) -> bytes:
        return join(number(self.number), self.signature, *self.body)


def signed(kind: bytes, who: int, context: Context, body: Sequence[bytes], signing_key: bytes) -> Signed:
    """Sign a statement."""
    return Signed(who, tuple(body), primitives.sign(signing_key, _text(kind, who, context, body)))


def read(content: bytes, kind: bytes, context: Context, terms: Terms) -> Signed:
    """A statement of this kind, run and round, by the client whose number it carries; anything else is `Declined`."""
    try:
        parts = split(content)
        if len(parts) != 2 + _FIELDS[kind] or len(parts[0]) != 8:
            raise Broken("wrong number of parts")
        found = Signed(int.from_bytes(parts[0], "big"), tuple(parts[2:]), parts[1])
    except Broken as error:
        raise Declined(f"a message of kind {kind.decode()} cannot be read: {error}.") from None
    verify(found, kind, context, terms)
    return found


def verify(found: Signed, kind: bytes, context: Context, terms: Terms) -> None:
    """`Declined` unless the client of that number signed exactly this."""
    if found.number not in terms.numbers:
        raise Declined(f"{found.number} is not a number of the roster (1 to {terms.clients}).")
    try:
        text = _text(kind, found.number, context, found.body)
        primitives.verify(terms.keys[found.number - 1], found.signature, text)
    except Broken:
        raise Declined(
            f"a message of kind {kind.decode()} in the name of client {found.number} is not signed by it for this "
            "run and round."
        ) from None


def _text(kind: bytes, who: int, context: Context, body: Sequence[bytes]) -> bytes:
    return join(b"nbafl-secure-1", kind, number(who), context.run, number(context.round), *body)


def read_name(content: bytes, challenge: bytes, terms: Terms) -> int:
    """The number of the client that signed this very challenge, under the same terms."""
    found = read(content, NAME, BEFORE, terms)
    if found.body != (challenge, terms.agreement):
        raise Declined("the answer is to another question, or under other terms.")
    return found.number


def names(numbers: Iterable[int]) -> bytes:
    """A set of clients: their numbers in order."""
    return join(*(number(each) for each in sorted(numbers)))


def read_names(content: bytes, terms: Terms) -> tuple[int, ...]:
    """The set again: numbers of the roster, each once, in order."""
    try:
        found = tuple(int.from_bytes(part, "big") for part in split(content))
    except Broken:
        found = ()
    if names(found) != content or len(set(found)) != len(found) or not set(found) <= set(terms.numbers):
        raise Declined("a set of clients must be numbers of the roster, each once and in order.")
    return found


@dataclass(frozen=True)
class Prepared:
    """A client's part before a round: its signed header, and for every other client its sealed shares."""

    header: bytes
    sealed: dict[int, bytes]

    def encode(self) -> bytes:
        return join(self.header, *(self.sealed[holder] for holder in sorted(self.sealed)))

    @classmethod
    def read(cls, content: bytes, context: Context, terms: Terms) -> tuple[Signed, Prepared]:
        """The verified header and the message itself."""
        try:
            parts = split(content)
        except Broken:
            parts = []
        if len(parts) != terms.clients:
            raise Declined(
                "a prepare must hold a header and one sealed pair of shares for every other client."
            )
        header = read(parts[0], HEADER, context, terms)
        holders = [holder for holder in terms.numbers if holder != header.number]
        return header, cls(parts[0], dict(zip(holders, parts[1:], strict=True)))


@dataclass(frozen=True)
class TrainRequest:
    """The list of a round: signed headers in order, and beside each the shares its sender sealed for the receiver."""

    round: int
    broadcast: bytes
    headers: tuple[bytes, ...]
    sealed: tuple[bytes, ...]

    def encode(self) -> bytes:
        return join(number(self.round), self.broadcast, join(*self.headers), join(*self.sealed))

    @classmethod
    def read(cls, content: bytes) -> TrainRequest:
        parts = _parts(content, 4, "train")
        return cls(_count(parts[0]), parts[1], tuple(_listed(parts[2])), tuple(_listed(parts[3])))

    def commitment(self, run: bytes) -> bytes:
        """c = hash(run, round, hash(broadcast), list): what every client of a sum must have in common."""
        return digest(b"commitment", run, number(self.round), self.broadcast, join(*self.headers))


@dataclass(frozen=True)
class AgreeRequest:
    """The set U whose uploads are there."""

    round: int
    commitment: bytes
    members: bytes

    def encode(self) -> bytes:
        return join(number(self.round), self.commitment, self.members)

    @classmethod
    def read(cls, content: bytes) -> AgreeRequest:
        parts = _parts(content, 3, "agree")
        return cls(_count(parts[0]), parts[1], parts[2])


@dataclass(frozen=True)
class UnmaskRequest:
    """The same set with the signatures of t different clients on it."""

    round: int
    commitment: bytes
    members: bytes
    certificate: tuple[tuple[int, bytes], ...]

    def encode(self) -> bytes:
        signatures = [part for who, signature in self.certificate for part in (number(who), signature)]
        return join(number(self.round), self.commitment, self.members, *signatures)

    @classmethod
    def read(cls, content: bytes) -> UnmaskRequest:
        parts = _listed(content)
        if len(parts) < 3 or len(parts) % 2 == 0:
            raise Declined("a request of kind unmask cannot be read.")
        pairs = zip(parts[3::2], parts[4::2], strict=True)
        return cls(
            _count(parts[0]), parts[1], parts[2], tuple((_count(who), signature) for who, signature in pairs)
        )


def reveal_body(commitment: bytes, members: bytes, shares: Sequence[bytes]) -> tuple[bytes, ...]:
    """Shares in the order of the list, empty where the holder has none."""
    return commitment, members, join(*shares)


def read_shares(content: bytes, listed: Sequence[int]) -> dict[int, bytes]:
    """The shares of a reveal by dealer."""
    try:
        parts = split(content)
    except Broken:
        parts = []
    if len(parts) != len(listed) or any(len(part) not in (0, SHARE) for part in parts):
        raise Declined(f"a reveal must hold a share of {SHARE} bytes, or none, for each name of the list.")
    return {dealer: part for dealer, part in zip(listed, parts, strict=True) if part}


def _parts(content: bytes, count: int, kind: str) -> list[bytes]:
    parts = _listed(content)
    if len(parts) != count:
        raise Declined(f"a request of kind {kind} cannot be read.")
    return parts


def _listed(content: bytes) -> list[bytes]:
    try:
        return split(content)
    except Broken:
        raise Declined("a list cannot be read.") from None


def _count(content: bytes) -> int:
    if len(content) != 8:
        raise Declined("a number must have eight bytes.")
    return int.from_bytes(content, "big")
