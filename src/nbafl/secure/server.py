"""The server of a secure aggregation: it collects, relays and adds up, and can prove nothing but what it has.

Nothing here protects anybody: that is the clients' part, who take the server for their enemy. What the server must do
is to open the right sum or say loudly that it cannot, whatever single clients send, and to go on after a crash: the
list of a round, the set U with its sum, and the certificate are on disk before they are sent, so that it asks the same
question again and not a second one, which honest clients would refuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from nbafl.errors import Refused
from nbafl.privacy.ledger import Declined
from nbafl.secure import encoding, masks, primitives, shamir
from nbafl.secure.client import read_opens
from nbafl.secure.messages import (
    AGREEMENT,
    BEFORE,
    OPEN,
    REVEAL,
    UPLOAD,
    AgreeRequest,
    Context,
    Prepared,
    Signed,
    TrainRequest,
    UnmaskRequest,
    names,
    read,
    read_names,
    read_shares,
)
from nbafl.secure.primitives import Broken, digest, join, number, split
from nbafl.secure.terms import Terms


class Shelf(Protocol):
    """Named pieces of bytes that outlive a crash."""

    def get(self, name: str) -> bytes | None:
        """What was put under this name, or None."""

    def put(self, name: str, content: bytes) -> None:
        """Durable once this returns."""


class RoundLost(Refused):
    """This round's sum cannot be opened; the names of clients that can be blamed for it are left off later lists."""

    def __init__(self, reason: str, blamed: Iterable[int] = ()) -> None:
        super().__init__(reason)
        self.blamed = frozenset(blamed)


@dataclass(frozen=True)
class Opened:
    """The sum of a round: words, whose uploads are in it, and the holders that sent wrong shares."""

    words: np.ndarray
    members: tuple[int, ...]
    liars: frozenset[int]


class Server:
    """What outlives a round: the run, and who is left off the lists."""

    def __init__(self, terms: Terms, shelf: Shelf) -> None:
        self.terms, self.shelf = terms, shelf
        self.left_out: set[int] = set(read_names(shelf.get("left-out") or b"", terms))
        self._opens: dict[int, bytes] = {}
        stored = shelf.get("opens")
        if stored is not None:
            self._opens = dict(enumerate(split(stored), start=1))

    # --- the run --------------------------------------------------------------------------------------------

    def add_open(self, content: bytes) -> int:
        """One client's open; the first of each client counts until a run is given up."""
        opened = read(content, OPEN, BEFORE, self.terms)
        if opened.body[0] != self.terms.agreement:
            raise Declined(f"client {opened.number} opened under another roster or plan.")
        if self.opens is None:
            self._opens[opened.number] = content
            if self.opens is not None:
                read_opens(self.opens, self.terms)
                self.shelf.put("opens", join(*self.opens))
        return opened.number

    @property
    def opens(self) -> tuple[bytes, ...] | None:
        """All N opens in order, once they are there."""
        complete = len(self._opens) == self.terms.clients
        return tuple(self._opens[each] for each in self.terms.numbers) if complete else None

    @property
    def run(self) -> bytes:
        """The run's name: the hash of its opens."""
        if self.opens is None:
            raise Refused("the run has not begun: some clients have not opened.")
        return digest(b"run", *self.opens)

    def leave_out(self, blamed: Iterable[int]) -> None:
        """These clients stand on no later list."""
        self.left_out |= set(blamed)
        self.shelf.put("left-out", names(self.left_out))

    # --- a round --------------------------------------------------------------------------------------------

    def read_prepared(self, content: bytes, round: int) -> int:
        """Whose prepare it is, if it can be used."""
        header, _ = Prepared.read(content, Context(self.run, round), self.terms)
        try:
            primitives.shared_secret(primitives.fresh_secret(), header.body[0])
        except Broken:
            raise Declined(f"the mask key of client {header.number} is of low order.") from None
        return header.number

    def begun(self, round: int) -> bool:
        """Whether the list of this round is fixed already."""
        return _of_round(self.shelf, "list", round) is not None

    def begin(self, round: int, broadcast: bytes, prepared: Mapping[int, bytes]) -> Round:
        """The list of a round, on disk before anybody sees it; a round begun before goes on where it was."""
        stored = _of_round(self.shelf, "list", round)
        if stored is None:
            chosen = [prepared[each] for each in sorted(prepared) if each not in self.left_out]
            if len(chosen) < self.terms.fewest:
                raise RoundLost(f"{len(chosen)} clients are prepared; a sum needs {self.terms.fewest}.")
            stored = join(*chosen)
            self.shelf.put("list", join(number(round), stored))
        messages = [Prepared.read(each, Context(self.run, round), self.terms) for each in split(stored)]
        running = Round(
            terms=self.terms,
            context=Context(self.run, round),
            broadcast=broadcast,
            headers={header.number: header for header, _ in messages},
            prepared={header.number: message for header, message in messages},
            shelf=self.shelf,
        )
        running.go_on()
        return running


@dataclass
class Round:
    """One round: uploads, then the set, then its certificate, then shares, then the sum."""

    terms: Terms
    context: Context
    broadcast: bytes
    headers: dict[int, Signed]
    prepared: dict[int, Prepared]
    shelf: Shelf
    members: tuple[int, ...] | None = None
    arrived: set[int] = field(default_factory=set)
    total: np.ndarray | None = None
    certificate: dict[int, bytes] = field(default_factory=dict)
    shares: dict[int, dict[int, bytes]] = field(default_factory=dict)

    def go_on(self) -> None:
        """What was fixed and gathered before a crash: the set with its sum, and the certificate."""
        fixed = _of_round(self.shelf, "members", self.context.round)
        if fixed is not None:
            members, total = split(fixed)
            self.members = read_names(members, self.terms)
            self.arrived, self.total = set(self.members), encoding.from_bytes(total, self.terms.width)
        certified = _of_round(self.shelf, "unmask", self.context.round)
        if certified is not None:
            self.certificate = dict(UnmaskRequest.read(certified).certificate)

    @property
    def summed(self) -> bool:
        """Whether the set is fixed and its uploads are added up."""
        return self.members is not None

    @property
    def certified(self) -> bool:
        """Whether enough clients signed the set."""
        return len(self.certificate) >= self.terms.threshold

    @property
    def listed(self) -> tuple[int, ...]:
        return tuple(self.headers)

    @property
    def commitment(self) -> bytes:
        return self._request(()).commitment(self.context.run)

    def train_request(self, receiver: int) -> TrainRequest:
        """What a client on the list is sent beside the broadcast."""
        return self._request(tuple(message.sealed.get(receiver, b"") for message in self.prepared.values()))

    def _request(self, sealed: tuple[bytes, ...]) -> TrainRequest:
        headers = tuple(message.header for message in self.prepared.values())
        return TrainRequest(self.context.round, self.broadcast, headers, sealed)

    def add_upload(self, content: bytes) -> int:
        """One masked upload under this round's c, added to the sum; a second one of the same client is not."""
        upload = read(content, UPLOAD, self.context, self.terms)
        commitment, masked = upload.body
        if commitment != self.commitment or upload.number not in self.headers:
            raise Declined(f"the upload of client {upload.number} belongs to another list or broadcast.")
        if len(masked) != self.terms.dimension * self.terms.width:
            raise Declined(f"the upload of client {upload.number} has {len(masked)} bytes.")
        if self.members is None and upload.number not in self.arrived:
            self.arrived.add(upload.number)
            words = encoding.from_bytes(masked, self.terms.width)
            self.total = words if self.total is None else encoding.add(self.total, words, self.terms.width)
        return upload.number

    def agree_request(self) -> AgreeRequest:
        """U: those whose uploads are there, on disk before it is sent; it never changes again."""
        if self.members is None:
            if len(self.arrived) < self.terms.fewest:
                raise RoundLost(f"{len(self.arrived)} uploads came in; a sum needs {self.terms.fewest}.")
            assert self.total is not None
            members = tuple(sorted(self.arrived))
            total = encoding.to_bytes(self.total, self.terms.width)
            self.shelf.put("members", join(number(self.context.round), join(names(members), total)))
            self.members = members
        return AgreeRequest(self.context.round, self.commitment, names(self.members))

    def add_agreement(self, content: bytes) -> int:
        """One client's signature on (c, U)."""
        agreed = read(content, AGREEMENT, self.context, self.terms)
        if agreed.body != (self.commitment, names(self.members or ())):
            raise Declined(f"client {agreed.number} signed another set.")
        self.certificate[agreed.number] = agreed.signature
        return agreed.number

    def unmask_request(self) -> UnmaskRequest:
        """(c, U) with t signatures."""
        needed = self.terms.threshold
        if len(self.certificate) < needed:
            raise RoundLost(f"{len(self.certificate)} clients signed the set; {needed} must.")
        chosen = tuple(sorted(self.certificate.items())[:needed])
        request = UnmaskRequest(self.context.round, self.commitment, names(self.members or ()), chosen)
        self.shelf.put("unmask", join(number(self.context.round), request.encode()))
        return request

    def add_reveal(self, content: bytes) -> int:
        """One client's shares."""
        reveal = read(content, REVEAL, self.context, self.terms)
        if reveal.body[:2] != (self.commitment, names(self.members or ())):
            raise Declined(f"client {reveal.number} revealed shares of another set.")
        self.shares[reveal.number] = read_shares(reveal.body[2], self.listed)
        return reveal.number

    # --- the sum --------------------------------------------------------------------------------------------

    def open(self) -> Opened:
        """The sum over U without its masks, every secret checked against its header; `RoundLost` if one is missing."""
        if len(self.shares) < self.terms.threshold:
            raise RoundLost(f"{len(self.shares)} clients revealed shares; {self.terms.threshold} must.")
        assert self.members is not None
        assert self.total is not None
        found = self._secrets(set(self.members))
        commitment = self.commitment
        selves = [masks.self_key(found[each], commitment) for each in self.members]
        words = masks.unmasked(self.total, selves, self._cut(found, commitment), self.terms.width)
        return Opened(words, self.members, frozenset(self._liars))

    def _cut(self, found: dict[int, bytes], commitment: bytes) -> list[tuple[int, int, bytes]]:
        """The masks that members share with names of the list whose upload never came."""
        cut = []
        for dropped in set(self.listed) - set(self.members or ()):
            own = self.headers[dropped].body[0]
            for member in self.members or ():
                key = self.headers[member].body[0]
                shared = primitives.shared_secret(found[dropped], key)
                pair = masks.pair_context(dropped, own, member, key)
                derived = masks.pair_key(shared, self.context.run, self.context.round, commitment, pair)
                cut.append((member, dropped, derived))
        return cut

    def _secrets(self, members: set[int]) -> dict[int, bytes]:
        """b_j of the members, the mask secret of the others."""
        self._liars: set[int] = set()
        found, closed = {}, []
        for dealer in self.listed:
            secret = self._secret(dealer, dealer in members)
            if secret is None:
                closed.append(dealer)
            else:
                found[dealer] = secret
        if closed:
            # with t + 2k answers an honest dealer's secret always opens (Reed-Solomon): these dealers lied
            proved = len(self.shares) >= self.terms.threshold + 2 * self.terms.accomplices
            blamed = (
                f"clients {closed} dealt wrong shares" if proved else f"the secrets of {closed} do not open"
            )
            raise RoundLost(f"the sum cannot be opened: {blamed}.", closed if proved else ())
        return found

    def _secret(self, dealer: int, seed: bool) -> bytes | None:
        """One secret that fits its header: from t holders, or around the lies of some."""
        shares = {
            holder: revealed[dealer]
            for holder, revealed in sorted(self.shares.items())
            if dealer in revealed and holder not in self._liars
        }
        threshold = self.terms.threshold
        if len(shares) < threshold:
            return None
        secret = shamir.combine(dict(list(shares.items())[:threshold]))
        if secret is not None and self._fits(dealer, secret, seed):
            return secret
        decoded = shamir.decode(shares, threshold)
        if decoded is None or not self._fits(dealer, decoded[0], seed):
            return None
        self._liars |= decoded[1]
        return decoded[0]

    def _fits(self, dealer: int, secret: bytes, seed: bool) -> bool:
        mask_key, seed_hash = self.headers[dealer].body
        return masks.seed_hash(secret) == seed_hash if seed else primitives.public_key(secret) == mask_key


def _of_round(shelf: Shelf, name: str, round: int) -> bytes | None:
    """What was put under a name for this round; what is there of another round counts as nothing."""
    stored = shelf.get(name)
    if stored is None:
        return None
    of, content = split(stored)
    return content if of == number(round) else None
