"""One bit flipped at every byte of every message: what was signed is refused, what was not changes no sum.

python tests/secure/test_flips.py        # all eight bits of every byte, outside CI
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator

import pytest
from parties import MemoryStore, Party, declined, fixed_key, terms_of
from test_messages import statements

from nbafl.privacy.ledger import Declined
from nbafl.secure import messages
from nbafl.secure.client import Client
from nbafl.secure.messages import AgreeRequest, TrainRequest, UnmaskRequest
from nbafl.secure.primitives import Broken, join, split
from nbafl.secure.server import Round

SOURCE = random.Random(5)


def flips(content: bytes, all_bits: bool) -> Iterator[bytes]:
    """The content with one bit changed: a random one of every byte, or each."""
    for place in range(len(content)):
        for bit in range(8) if all_bits else (SOURCE.randrange(8),):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            yield bytes(changed)


def check_signed(all_bits: bool) -> int:
    """Every kind that a client signs: no flipped bit, no missing and no further byte."""
    party, seen, count = Party(terms_of(3, 1, 3)), set[bytes](), 0
    for kind, context, content in list(statements(party)):
        if kind in seen:
            continue
        seen.add(kind)
        cut = [content[:place] for place in range(len(content))]
        for changed in (*flips(content, all_bits), *cut, content + b"\0"):
            assert declined(messages.read, changed, kind, context, party.terms)
            count += 1
    assert len(seen) == 6
    return count


def check_opens(all_bits: bool) -> int:
    """The list of opens that begins a run."""
    party, count = Party(terms_of(3, 1, 3)), 0
    fresh = {number: Client(party.terms, number, fixed_key(number), MemoryStore()) for number in (1, 2, 3)}
    opens = join(*(client.open() for client in fresh.values()))
    for changed in flips(opens, all_bits):
        assert declined(lambda changed=changed: fresh[1].join(_split(changed)))
        count += 1
    fresh[1].join(split(opens))
    return count


def check_prepared(all_bits: bool) -> int:
    """A prepare: its header is refused; sealed shares are the holders' to check (`check_train`)."""
    party, count = Party(terms_of(3, 1, 3)), 0
    prepared = party.clients[2].prepare(1)
    header = split(prepared)[0]
    for changed in flips(prepared, all_bits):
        assert declined(party.server.read_prepared, changed, 1) or split(changed)[0] == header
        count += 1
    return count


def check_train(all_bits: bool) -> int:
    """A list: refused without a row; or another c, which the server refuses; or the same upload, a share left out."""
    party = Party(terms_of(3, 1, 3))
    running = party.begin(1)
    disk, request, count = party.stores[1].copy(), running.train_request(1).encode(), 0
    right = _trained(party, disk.copy(), request)
    for changed in flips(request, all_bits):
        store = disk.copy()
        try:
            upload = _trained(party, store, changed)
        except Declined:
            assert not store.rows
        else:
            assert len(store.rows) == 1
            assert upload == right or declined(_added, running, upload)
        count += 1
    return count


def check_sets(all_bits: bool) -> int:
    """The set to sign and the certified set to open: nothing but the very request is answered."""
    party = Party(terms_of(3, 1, 3))
    running, count = party.begin(1), 0
    for number in party.clients:
        running.add_upload(party.upload(running, number))
    agree = running.agree_request().encode()
    for changed in flips(agree, all_bits):
        assert declined(lambda changed=changed: party.clients[1].agree(AgreeRequest.read(changed)))
        count += 1
    for number, client in party.clients.items():
        running.add_agreement(client.agree(AgreeRequest.read(agree)))
        assert number in running.listed
    unmask = running.unmask_request().encode()
    for changed in flips(unmask, all_bits):
        assert declined(lambda changed=changed: party.clients[1].unmask(UnmaskRequest.read(changed)))
        count += 1
    for client in party.clients.values():
        running.add_reveal(client.unmask(UnmaskRequest.read(unmask)))
    assert (party.integers(running.open()) == sum(party.values.values())).all()
    return count


CHECKS: tuple[Callable[[bool], int], ...] = (
    check_signed,
    check_opens,
    check_prepared,
    check_train,
    check_sets,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_flipped_bit_is_refused_or_harmless(check: Callable[[bool], int]) -> None:
    assert check(False) > 200


def _trained(party: Party, store: MemoryStore, request: bytes) -> bytes:
    client = Client(party.terms, 1, fixed_key(1), store)
    return client.train(TrainRequest.read(request), lambda _: party.encode(1))


def _added(running: Round, upload: bytes) -> None:
    running.add_upload(upload)


def _split(content: bytes) -> list[bytes]:
    try:
        return split(content)
    except Broken as error:
        raise Declined(str(error)) from None


if __name__ == "__main__":
    for each in CHECKS:
        print(f"{each.__name__}: {each(True)} flipped bits, each refused or harmless", flush=True)
    sys.exit(0)
