"""Keys that an accomplice may choose badly on purpose: copied, top bit set, inverse twins, of low order."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import numpy as np
import pytest
from parties import MemoryStore, Party, declined, fixed_key, terms_of

from nbafl.privacy.ledger import Declined
from nbafl.secure import encoding, masks, messages, primitives
from nbafl.secure.client import Client
from nbafl.secure.messages import BEFORE, HEADER, OPEN, Context, TrainRequest
from nbafl.secure.primitives import Broken, split
from nbafl.secure.state import Secrets

FIELD = 2**255 - 19
LOW_ORDER = [
    0,
    1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
    FIELD - 1,
    FIELD,
    FIELD + 1,
]
"""u-coordinates of order 1, 2, 4 and 8 on Curve25519 and its twist (RFC 7748, section 7; Bernstein's list)."""


def top_bit(key: bytes) -> bytes:
    return key[:31] + bytes([key[31] | 0x80])


def inverse(key: bytes) -> bytes:
    """1/u: the point plus the point of order two, which clamped secrets do not tell apart."""
    return pow(int.from_bytes(key, "little"), -1, FIELD).to_bytes(32, "little")


TWINS: list[Callable[[bytes], bytes]] = [lambda key: key, top_bit, inverse]


@pytest.mark.parametrize("twin", TWINS, ids=["copied", "top bit", "inverse"])
def test_twins_share_the_secret_but_not_the_mask(twin: Callable[[bytes], bytes]) -> None:
    """What makes the attack possible, and what stops it: numbers in the derivation."""
    mine, other = primitives.fresh_secret(), primitives.fresh_secret()
    key, forged = primitives.public_key(other), twin(primitives.public_key(other))
    shared = primitives.shared_secret(mine, key)
    assert primitives.shared_secret(mine, forged) == shared
    own = primitives.public_key(mine)
    pairs = [masks.pair_context(2, own, 1, key), masks.pair_context(2, own, 3, forged)]
    first, second = (masks.pair_key(shared, b"run", 1, b"c", pair) for pair in pairs)
    assert first != second


def residue(twin: Callable[[bytes], bytes]) -> np.ndarray:
    """Client 2's upload less its own mask and its vector, where accomplice 3 sends a twin of client 1's key.

    Zero would mean that the masks with 1 and with 3 cancelled: the server, who may learn b_2, would see the vector.
    """
    party = Party(terms_of(3, 1, 3))
    prepared = {number: party.clients[number].prepare(1) for number in (1, 2, 3)}
    context = Context(party.server.run, 1)
    forged = twin(split(split(prepared[1])[0])[2])
    body = (forged, masks.seed_hash(bytes(32)))
    header = messages.signed(HEADER, 3, context, body, fixed_key(3)).encode()
    headers = (split(prepared[1])[0], split(prepared[2])[0], header)
    seed = _secrets(party, 2).seed
    request = TrainRequest(1, b"b" * 32, headers, (b"", b"", b""))
    upload = split(party.clients[2].train(request, lambda _: party.encode(2)))[3]
    words = encoding.from_bytes(upload, 4)
    own = masks.pad(masks.self_key(seed, request.commitment(party.server.run)), 3, 4)
    return encoding.subtract(encoding.subtract(words, own, 4), party.encode(2), 4)


def _secrets(party: Party, number: int) -> Secrets:
    return Secrets.decode(party.stores[number].secrets or b"")


@pytest.mark.parametrize("twin", TWINS, ids=["copied", "top bit", "inverse"])
def test_a_twin_of_somebodys_key_cancels_no_mask(twin: Callable[[bytes], bytes]) -> None:
    assert residue(twin).any()


def test_without_numbers_the_copied_key_opens_an_upload() -> None:
    def no_numbers(_: int, key_a: bytes, __: int, key_b: bytes) -> tuple[bytes, ...]:
        return tuple(sorted((key_a, key_b)))

    with patch.object(masks, "pair_context", no_numbers):
        assert not residue(lambda key: key).any()
    with patch.object(masks, "pair_context", lambda *_: ()):  # without keys the other twins do it too
        assert not residue(top_bit).any()
        assert not residue(inverse).any()


@pytest.mark.parametrize("point", LOW_ORDER)
def test_keys_of_low_order_are_named_and_refused(point: int) -> None:
    key = point.to_bytes(32, "little")
    with pytest.raises(Broken):
        primitives.shared_secret(primitives.fresh_secret(), key)
    party = Party(terms_of(3, 1, 3))
    prepared = {number: party.clients[number].prepare(1) for number in (1, 2, 3)}
    context = Context(party.server.run, 1)
    header = messages.signed(HEADER, 3, context, (key, bytes(32)), fixed_key(3)).encode()
    request = TrainRequest(1, b"b" * 32, (*(split(prepared[n])[0] for n in (1, 2)), header), (b"",) * 3)
    with pytest.raises(Declined, match="mask key of client 3 is of low order"):
        party.clients[1].train(request, lambda _: party.encode(1))
    assert not party.stores[1].rows
    forged = primitives.join(header, *split(prepared[3])[1:])
    assert declined(party.server.read_prepared, forged, 1)


def test_a_channel_key_of_low_order_begins_no_run() -> None:
    terms = terms_of(3, 1, 3)
    clients = {number: Client(terms, number, fixed_key(number), MemoryStore()) for number in (1, 2)}
    opens = [clients[1].open(), clients[2].open()]
    opens.append(messages.signed(OPEN, 3, BEFORE, (terms.agreement, bytes(32)), fixed_key(3)).encode())
    with pytest.raises(Declined, match="channel key of client 3"):
        clients[1].join(opens)
