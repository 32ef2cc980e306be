"""kill -9 at every step, and disks put back or stolen: one upload, one signature, one reveal a round, the row first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from parties import Killed, MemoryShelf, MemoryStore, Party, declined, fixed_key, restart_from_disk, terms_of

from nbafl.errors import Refused
from nbafl.secure import primitives, shamir
from nbafl.secure.client import Client, OutOfRun, seal_key
from nbafl.secure.primitives import split
from nbafl.secure.server import Round, RoundLost, Server
from nbafl.secure.state import Charge, Secrets

WRITES = ("secrets", "state", "reply")


class Watched(Party):
    """Notes everything that leaves a client, with what its disk said at that moment."""

    def __init__(self, *arguments: object, **options: object) -> None:
        self.left: dict[tuple[int, int, str], set[bytes]] = {}
        super().__init__(*arguments, **options)  # type: ignore[arg-type]

    def note(self, number: int, round: int, kind: str, content: bytes) -> bytes:
        self.left.setdefault((number, round, kind), set()).add(content)
        if kind == "upload":
            commitment = split(content)[2]
            assert (round, commitment) in self.stores[number].rows, "an upload left before its row"
        return content

    def check(self) -> None:
        for (number, round, kind), contents in self.left.items():
            assert len(contents) == 1, f"client {number} sent two of {kind} in round {round}"
        for store in self.stores.values():
            assert len({round for round, _ in store.rows}) == len(store.rows), "two rows of one round"


def ask(party: Watched, number: int, running: Round, kind: str) -> None:
    """One question of a round, asked again after a crash; a refusal is an answer too."""
    client, round = party.clients[number], running.context.round
    try:
        if kind == "upload":
            running.add_upload(party.note(number, round, kind, party.upload(running, number)))
        elif kind == "agree":
            running.add_agreement(party.note(number, round, kind, client.agree(running.agree_request())))
        else:
            running.add_reveal(party.note(number, round, kind, client.unmask(running.unmask_request())))
    except (Refused, RoundLost):
        pass


def play(party: Watched, step: str, write: str, victim: int = 2) -> int:
    """Three rounds in which the victim is killed once, in round 2; returns how many sums were opened and right."""
    opened = 0
    for round in (1, 2, 3):
        party.values = {}
        prepared = {}
        for number in party.clients:
            with killed_at(party, number, round == 2 and number == victim and step == "prepare", write):
                prepared[number] = party.clients[number].prepare(round)
            if number not in prepared:
                prepared[number] = party.clients[number].prepare(round) if write != "state" else b""
        running = party.server.begin(round, b"b" * 32, {n: p for n, p in prepared.items() if p})
        for kind, name in (("upload", "train"), ("agree", "agree"), ("reveal", "unmask")):
            for number in party.clients:
                with killed_at(party, number, round == 2 and number == victim and step == name, write):
                    ask(party, number, running, kind)
                ask(party, number, running, kind)  # and once more: the same bytes
        try:
            result = running.open()
        except RoundLost:
            continue
        expected = sum(party.values[number] for number in result.members)
        assert (party.integers(result) == expected).all()
        opened += 1
    return opened


@contextmanager
def killed_at(party: Party, number: int, now: bool, write: str) -> Iterator[None]:
    party.stores[number].die_before = write if now else None
    try:
        yield
    except Killed:
        restart_from_disk(party, number)
    party.stores[number].die_before = None


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("step", ["prepare", "train", "agree", "unmask"])
def test_kill_at_every_step_of_a_round(step: str, write: str) -> None:
    party = Watched(terms_of(4, 0, 3))
    assert play(party, step, write) == 3  # three others are enough for every sum
    party.check()


class SentFirst(MemoryStore):
    """The planted bug: bytes are given away before they are on disk."""

    def save(self, expected: int, state: bytes, secrets: bytes, charge: Charge | None = None) -> None:
        if self.die_before == "state":  # the kill hits after the bytes left
            self.die_before = None
            return
        super().save(expected, state, secrets, charge)


def test_writing_after_sending_is_found() -> None:
    found = 0
    for step in ("train", "agree", "unmask"):
        party = Watched(terms_of(4, 0, 3))
        store = SentFirst()
        store.state, store.secrets = party.stores[2].state, party.stores[2].secrets
        party.stores[2] = store
        restart_from_disk(party, 2)
        try:
            play(party, step, "state")
            party.check()
        except AssertionError:
            found += 1
    assert found >= 1


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("step", ["open", "join"])
def test_kill_while_the_run_begins(step: str, write: str) -> None:
    terms = terms_of(3, 0, 2)
    stores = {number: MemoryStore() for number in terms.numbers}
    clients = {number: Client(terms, number, fixed_key(number), stores[number]) for number in terms.numbers}
    if step == "open":
        stores[1].die_before = write
        with pytest.raises(Killed):
            clients[1].open()
    opens = [client.open() for client in clients.values()]
    assert opens == [client.open() for client in clients.values()]
    if step == "join":
        stores[1].die_before = write
        with pytest.raises(Killed):
            clients[1].join(opens)
    for client in clients.values():
        client.join(opens)
        client.prepare(1)
    assert not Secrets.decode(stores[1].secrets or b"").channel


def test_two_processes_of_one_client_make_one_upload() -> None:
    party = Party(terms_of(3, 0, 2))
    running = party.begin(1)
    first = party.clients[1]
    restart_from_disk(party, 1)

    def train_twice(_: bytes):  # type: ignore[no-untyped-def]
        running.add_upload(party.upload(running, 1))  # the other process is faster
        return party.encode(1)

    with pytest.raises(Refused, match="another process"):
        first.train(running.train_request(1), train_twice)
    assert len(party.stores[1].rows) == 1


@pytest.mark.parametrize("part", ["state", "secrets"])
@pytest.mark.parametrize("when", ["prepared", "uploaded", "agreed"])
def test_one_file_put_back_gives_no_second_upload_signature_or_reveal(part: str, when: str) -> None:
    party = Watched(terms_of(4, 0, 3))
    running = party.begin(1)
    copies = {"prepared": party.stores[1].copy()}
    for number in (1, 2, 3):
        ask(party, number, running, "upload")
    copies["uploaded"] = party.stores[1].copy()
    for number in (1, 2, 3):
        ask(party, number, running, "agree")
    copies["agreed"] = party.stores[1].copy()
    for number in (1, 2, 3):
        ask(party, number, running, "reveal")
    setattr(party.stores[1], part, getattr(copies[when], part))
    restart_from_disk(party, 1)
    client = party.clients[1]
    other_list = replace(running.train_request(1), broadcast=b"x" * 32)
    assert declined(client.train, other_list, lambda _: party.encode(1))
    smaller = replace(running.agree_request(), members=b"")
    assert declined(client.agree, smaller)
    for kind in ("upload", "agree", "reveal"):
        ask(party, 1, running, kind)
    party.check()


def test_a_client_that_lost_its_secrets_is_out_for_the_run_and_says_so() -> None:
    party = Party(terms_of(3, 0, 2))
    running = party.begin(2)
    party.finish(running, (1, 2, 3), (1, 2, 3), (1, 2, 3))
    party.stores[1].secrets = None
    restart_from_disk(party, 1)
    with pytest.raises(OutOfRun, match="excluded from the run"):
        party.clients[1].prepare(3)
    opens = [client.open() for client in party.clients.values()]
    for client in party.clients.values():
        client.join(opens)
    assert declined(party.clients[1].prepare, 2)  # rounds only go up, over all runs
    party.clients[1].prepare(3)


def test_a_stolen_disk_opens_no_upload_that_left_and_no_finished_round() -> None:
    """After y left, a disk holds one share of each secret; after the round, t disks of those who answered open nothing."""
    party = Party(terms_of(5, 1, 4))
    terms = party.terms
    running = party.begin(1)
    seeds = {number: Secrets.decode(party.stores[number].secrets or b"").seed for number in party.clients}
    hidden = {number: Secrets.decode(party.stores[number].secrets or b"").mask for number in party.clients}
    uploading, revealing = (1, 2, 3, 4), (1, 2, 3, 4)
    for number in uploading:
        running.add_upload(party.upload(running, number))
    for number in uploading:
        disk = party.stores[number].copy()
        kept = (disk.secrets or b"") + (disk.state or b"")
        for secret in (seeds[number], hidden[number]):
            assert secret.hex().encode() not in kept
        held = Secrets.decode(disk.secrets or b"")
        assert set(held.mask_shares) == set(held.seed_shares) == set(party.clients)
    stolen_chain = Secrets.decode(party.stores[1].secrets or b"")
    sealed = running.train_request(1).sealed
    assert not _opens_any(stolen_chain, sealed, running, 1)
    party.finish(running, (), uploading, revealing)
    # all disks of those who answered, and of the others, once the round is over: masks of members stay closed
    for dealer in uploading:
        shares = {
            number: held.mask_shares[dealer]
            for number in party.clients
            if dealer in (held := Secrets.decode(party.stores[number].secrets or b"")).mask_shares
        }
        assert len(shares) <= terms.clients - terms.threshold + terms.accomplices < terms.threshold
        assert not shares or shamir.combine(shares) != hidden[dealer]
    party.begin(2)
    for number in uploading:
        held = Secrets.decode(party.stores[number].secrets or b"")
        assert set(held.mask_shares) == {number}  # its own share of the new round


def _opens_any(held: Secrets, sealed: tuple[bytes, ...], running: Round, who: int) -> bool:
    for dealer, text in zip(running.listed, sealed, strict=True):
        if dealer == who:
            continue
        try:
            key = seal_key(held.chain[dealer], dealer, who)
            primitives.unseal(key, text, primitives.digest(running.prepared[dealer].header))
        except primitives.Broken:
            continue
        return True
    return False


def test_a_server_killed_in_a_round_asks_the_same_again() -> None:
    """The list and the set come from its disk: clients give the bytes they already gave."""
    party = Watched(terms_of(4, 0, 3))
    shelf: MemoryShelf = party.server.shelf  # type: ignore[assignment]
    running = party.begin(1)
    for number in (1, 2, 3):
        ask(party, number, running, "upload")
    again = Server(party.terms, shelf)
    other = {number: client.prepare(1) for number, client in party.clients.items() if number != 4}
    running = again.begin(1, b"b" * 32, other)
    assert running.listed == (1, 2, 3, 4)
    for number in (1, 2, 3):
        ask(party, number, running, "upload")
    ask(party, 3, running, "agree")
    running = Server(party.terms, shelf).begin(1, b"b" * 32, {})
    for number in (1, 2, 3, 4):  # client 4 comes too late: the set is signed
        ask(party, number, running, "upload")
    for kind in ("agree", "reveal"):
        for number in (1, 2, 3):
            ask(party, number, running, kind)
    opened = running.open()
    assert opened.members == (1, 2, 3)
    assert (party.integers(opened) == sum(party.values[number] for number in (1, 2, 3))).all()
    party.check()


def test_a_resent_reveal_travels_with_the_next_prepare() -> None:
    """The last answer of a round was lost on the way: the same bytes come again, though the next round is prepared."""
    party = Party(terms_of(3, 0, 2))
    running = party.begin(1)
    for number in (1, 2, 3):
        running.add_upload(party.upload(running, number))
    for number in (1, 2, 3):
        running.add_agreement(party.clients[number].agree(running.agree_request()))
    request = running.unmask_request()
    first = party.clients[1].unmask(request)
    prepared = party.clients[1].prepare(2)
    assert party.clients[1].unmask(request) == first
    assert party.clients[1].prepare(2) == prepared
    assert declined(party.clients[1].unmask, replace(request, members=b""))
    second = party.begin(2)
    party.upload(second, 1)
    assert declined(party.clients[1].unmask, request)
