"""Lying dealers, lying holders, garbage uploads: the right sum, or a loud failure that names whom it can."""

from __future__ import annotations

import random
from unittest.mock import patch

import numpy as np
import pytest
from parties import MemoryStore, Party, declined, fixed_key, terms_of

from nbafl.errors import Refused
from nbafl.secure import masks, messages, primitives, shamir
from nbafl.secure.client import Client, seal_key
from nbafl.secure.messages import HEADER, REVEAL, UPLOAD, Context, Prepared
from nbafl.secure.primitives import digest, join
from nbafl.secure.server import Round, RoundLost
from nbafl.secure.state import Secrets

EVERYBODY = range(1, 8)


def seven() -> Party:
    """N = 7, k = 1: t = 5, so that t + 2k = 7 answers prove who lied."""
    return Party(terms_of(7, 1, 6))


def lying_prepare(party: Party, liar: int, round: int, what: str) -> bytes:
    """A prepare whose shares, or whose hash, are not those of its secrets."""
    honest = party.clients[liar].prepare(round)
    held = Secrets.decode(party.stores[liar].secrets or b"")
    context = Context(party.server.run, round)
    seed_hash = masks.seed_hash(held.seed if what != "hash" else bytes(32))
    body = (primitives.public_key(held.mask), seed_hash)
    header = messages.signed(HEADER, liar, context, body, fixed_key(liar)).encode()
    sealed = {}
    for holder, chain in held.chain.items():
        shares = [random.Random(holder).randbytes(33), random.Random(-holder).randbytes(33)]
        if what == "hash":
            shares = [bytes(33), _share_of(party, held.seed, holder)]
        sealed[holder] = primitives.seal(seal_key(chain, liar, holder), join(*shares), digest(header))
    assert honest != Prepared(header, sealed).encode()
    return Prepared(header, sealed).encode()


def _share_of(party: Party, secret: bytes, holder: int) -> bytes:
    if not hasattr(party, "dealt"):
        party.dealt = shamir.share(secret, party.terms.threshold, party.terms.numbers)  # type: ignore[attr-defined]
    return party.dealt[holder]  # type: ignore[attr-defined,no-any-return]


def begin_with_a_lying_dealer(party: Party, liar: int, what: str) -> Round:
    prepared = {number: client.prepare(1) for number, client in party.clients.items() if number != liar}
    prepared[liar] = lying_prepare(party, liar, 1, what)
    return party.server.begin(1, b"b" * 32, prepared)


def lying_upload(party: Party, running: Round, liar: int) -> bytes:
    """The liar's own program signs whatever it likes under this c."""
    garbage = random.Random(9).randbytes(party.terms.dimension * 4)
    return messages.signed(
        UPLOAD, liar, running.context, (running.commitment, garbage), fixed_key(liar)
    ).encode()


@pytest.mark.parametrize("uploads", [True, False], ids=["in the sum", "dropped"])
def test_a_lying_dealer_loses_the_round_and_is_named(uploads: bool) -> None:
    party, liar = seven(), 3
    running = begin_with_a_lying_dealer(party, liar, "shares")
    others = [number for number in EVERYBODY if number != liar]
    for number in others:
        running.add_upload(party.upload(running, number))
    if uploads:
        running.add_upload(lying_upload(party, running, liar))
    for number in others:
        running.add_agreement(party.clients[number].agree(running.agree_request()))
    for number in others:
        running.add_reveal(party.clients[number].unmask(running.unmask_request()))
    with pytest.raises(RoundLost, match="3") as unproved:
        running.open()
    assert (
        not unproved.value.blamed
    )  # six answers prove nothing yet: one more liar among them could have done it
    body = messages.reveal_body(running.commitment, messages.names(running.members or ()), [b""] * 7)
    running.add_reveal(messages.signed(REVEAL, liar, running.context, body, fixed_key(liar)).encode())
    with pytest.raises(RoundLost, match="dealt wrong shares") as lost:
        running.open()
    assert lost.value.blamed == {liar}
    party.server.leave_out(lost.value.blamed)
    prepared = {number: client.prepare(2) for number, client in party.clients.items()}
    following = party.server.begin(2, b"b" * 32, prepared)
    assert liar not in following.listed
    opened = party.finish(following, others, others, others)
    assert (party.integers(opened) == sum(party.values[number] for number in others)).all()


def check_seed_hash() -> None:
    """Shares that agree on a seed other than the one promised: the sum must not be opened with it."""
    party, liar = seven(), 3
    running = begin_with_a_lying_dealer(party, liar, "hash")
    for number in EVERYBODY:
        upload = lying_upload(party, running, liar) if number == liar else party.upload(running, number)
        running.add_upload(upload)
    others = [number for number in EVERYBODY if number != liar]
    for number in others:
        running.add_agreement(party.clients[number].agree(running.agree_request()))
    for number in others:
        running.add_reveal(party.clients[number].unmask(running.unmask_request()))
    try:
        running.open()
    except RoundLost:
        return
    raise AssertionError("a sum was opened with a seed that nobody promised")


def test_a_seed_that_does_not_fit_its_hash_is_not_used() -> None:
    check_seed_hash()


def test_a_missing_hash_of_the_seed_is_found() -> None:
    with patch.object(masks, "seed_hash", lambda _: bytes(32)), pytest.raises(AssertionError):
        check_seed_hash()


@pytest.mark.parametrize("drop", [True, False])
def test_a_lying_holder_is_left_out_and_named(drop: bool) -> None:
    """It sends wrong shares of every secret, and stands among the first t that are tried."""
    party, liar = seven(), 1
    running = party.begin(1)
    uploading = [number for number in EVERYBODY if not (drop and number == 5)]
    for number in uploading:
        running.add_upload(party.upload(running, number))
    for number in uploading:
        running.add_agreement(party.clients[number].agree(running.agree_request()))
    for number in EVERYBODY:
        if number == liar:
            shares = [b"\0" + random.Random(each).randbytes(32) for each in EVERYBODY]
            body = messages.reveal_body(running.commitment, messages.names(running.members or ()), shares)
            content = messages.signed(REVEAL, liar, running.context, body, fixed_key(liar)).encode()
        elif number in uploading:
            content = party.clients[number].unmask(running.unmask_request())
        else:
            continue
        running.add_reveal(content)
    if (
        drop
    ):  # six answers, one of them a lie: too few to correct it (t + 2k = 7), so the round is lost loudly
        with pytest.raises(RoundLost):
            running.open()
        return
    opened = running.open()
    assert opened.liars == {liar}
    assert (party.integers(opened) == sum(party.values.values())).all()


def test_a_garbage_upload_spoils_the_sum_but_opens_nobody() -> None:
    """The price of the server's blindness: the sum is far outside of what honest uploads can give, and nobody is named."""
    party, liar = seven(), 7
    running = party.begin(1)
    for number in EVERYBODY:
        upload = lying_upload(party, running, liar) if number == liar else party.upload(running, number)
        running.add_upload(upload)
    others = EVERYBODY[:-1]
    for number in others:
        running.add_agreement(party.clients[number].agree(running.agree_request()))
    for number in others:
        running.add_reveal(party.clients[number].unmask(running.unmask_request()))
    opened = running.open()
    assert not np.array_equal(party.integers(opened), sum(party.values[number] for number in others))


def test_uploads_of_the_wrong_length_or_a_second_one_do_not_count() -> None:
    party = seven()
    running = party.begin(1)
    short = messages.signed(
        UPLOAD, 7, running.context, (running.commitment, bytes(11)), fixed_key(7)
    ).encode()
    assert declined(running.add_upload, short)
    first = party.upload(running, 1)
    running.add_upload(first)
    running.add_upload(first)
    running.add_upload(
        messages.signed(UPLOAD, 1, running.context, (running.commitment, bytes(12)), fixed_key(1)).encode()
    )
    opened = party.finish(running, EVERYBODY[1:], EVERYBODY, EVERYBODY)
    assert (party.integers(opened) == sum(party.values.values())).all()


def test_a_client_with_another_key_than_the_rosters_does_not_start() -> None:
    with pytest.raises(Refused, match="roster's key of client 2"):
        Client(terms_of(3, 0, 2), 2, fixed_key(3), MemoryStore())
