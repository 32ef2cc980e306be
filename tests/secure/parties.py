"""Clients and a server of a secure aggregation in one process, with a store whose writes can be stopped half-way."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from nbafl.errors import Refused
from nbafl.privacy.ledger import Declined
from nbafl.secure import encoding, primitives
from nbafl.secure.client import Client
from nbafl.secure.server import Opened, Round, Server
from nbafl.secure.state import Charge, State
from nbafl.secure.terms import Terms


class Killed(BaseException):
    """kill -9: nothing after it happens, nothing catches it."""


class MemoryStore:
    """A disk: two files and a ledger. `die_before` names the write that is never made."""

    def __init__(self) -> None:
        self.state: bytes | None = None
        self.secrets: bytes | None = None
        self.rows: list[tuple[int, bytes]] = []
        self.uploads: dict[tuple[int, bytes], bytes] = {}
        self.die_before: str | None = None

    def load(self) -> tuple[bytes | None, bytes | None]:
        return self.state, self.secrets

    def save(self, expected: int, state: bytes, secrets: bytes, charge: Charge | None = None) -> None:
        found = State.decode(self.state).steps if self.state else 0
        if found != expected:
            raise Refused("another process was here.")
        self._reach("secrets")
        self.secrets = secrets
        self._reach("state")
        if charge is not None:
            self.rows.append((charge.round, charge.commitment))
            self.uploads[charge.round, charge.commitment] = charge.upload
        self.state = state
        self._reach("reply")

    def check(self, round: int, commitment: bytes) -> None:
        pass

    def upload(self, round: int, commitment: bytes) -> bytes:
        return self.uploads[round, commitment]

    def copy(self) -> MemoryStore:
        """The disk as it is now, for somebody who steals it or puts it back."""
        twin = MemoryStore()
        twin.state, twin.secrets = self.state, self.secrets
        twin.rows, twin.uploads = list(self.rows), dict(self.uploads)
        return twin

    def _reach(self, place: str) -> None:
        if self.die_before == place:
            self.die_before = None
            raise Killed


class MemoryShelf(dict[str, bytes]):
    def put(self, name: str, content: bytes) -> None:
        self[name] = content


def fixed_key(number: int) -> bytes:
    """A signing key for tests."""
    return hashlib.sha256(f"signing key {number}".encode()).digest()


def terms_of(
    clients: int, accomplices: int, fewest: int, *, last_round: int = 9, dimension: int = 3, width: int = 4
) -> Terms:
    keys = tuple(primitives.verifying_key(fixed_key(number)) for number in range(1, clients + 1))
    return Terms(b"p" * 32, b"r" * 32, keys, accomplices, fewest, last_round, dimension, width)


class Party:
    """All clients and the server, past the opening."""

    def __init__(self, terms: Terms, kind: type[Client] = Client, seed: int = 0) -> None:
        self.terms, self.random = terms, np.random.default_rng(seed)
        self.stores = {number: MemoryStore() for number in terms.numbers}
        self.clients = {
            number: kind(terms, number, fixed_key(number), self.stores[number]) for number in terms.numbers
        }
        self.server = Server(terms, MemoryShelf())
        self.values: dict[int, np.ndarray] = {}
        for client in self.clients.values():
            self.server.add_open(client.open())
        assert self.server.opens is not None
        for client in self.clients.values():
            client.join(self.server.opens)

    def begin(self, round: int, broadcast: bytes = b"b" * 32) -> Round:
        """A round whose list holds everybody."""
        prepared = {number: client.prepare(round) for number, client in self.clients.items()}
        for content in prepared.values():
            self.server.read_prepared(content, round)
        return self.server.begin(round, broadcast, prepared)

    def encode(self, number: int) -> np.ndarray:
        """The client's words; what they stand for is kept in `values`."""
        half = 2 ** (8 * self.terms.width - 1)
        if number not in self.values:
            self.values[number] = self.random.integers(-half // 16, half // 16, self.terms.dimension)
        return encoding.to_words(self.values[number], self.terms.width)

    def upload(self, running: Round, number: int) -> bytes:
        return self.clients[number].train(running.train_request(number), lambda _: self.encode(number))

    def finish(
        self, running: Round, uploading: Iterable[int], signing: Iterable[int], revealing: Iterable[int]
    ) -> Opened:
        for number in uploading:
            running.add_upload(self.upload(running, number))
        agree = running.agree_request()
        for number in signing:
            running.add_agreement(self.clients[number].agree(agree))
        unmask = running.unmask_request()
        for number in revealing:
            running.add_reveal(self.clients[number].unmask(unmask))
        return running.open()

    def integers(self, opened: Opened) -> np.ndarray:
        return encoding.to_integers(opened.words, self.terms.width)


def declined(call: object, *arguments: object) -> bool:
    """Whether a client says no, in the one way it may."""
    try:
        call(*arguments)  # type: ignore[operator]
    except Declined:
        return True
    return False


def restart_from_disk(party: Party, number: int) -> None:
    """The process is gone; a new one reads the same disk."""
    kind = type(party.clients[number])
    party.clients[number] = kind(party.terms, number, fixed_key(number), party.stores[number])
