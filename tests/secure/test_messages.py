"""Replay and bit flip of every message: nothing counts under another kind, number, round, run, roster or plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from unittest.mock import patch

import pytest
from parties import MemoryStore, Party, declined, fixed_key, terms_of

from nbafl.errors import Refused
from nbafl.privacy.ledger import Declined
from nbafl.secure import messages, primitives
from nbafl.secure.client import Client, read_opens
from nbafl.secure.messages import (
    AGREEMENT,
    BEFORE,
    HEADER,
    NAME,
    OPEN,
    REVEAL,
    UPLOAD,
    Context,
    Prepared,
    TrainRequest,
)
from nbafl.secure.primitives import join, split
from nbafl.secure.server import RoundLost
from nbafl.secure.state import Secrets

KINDS = {NAME: 2, OPEN: 2, HEADER: 2, UPLOAD: 2, AGREEMENT: 2, REVEAL: 3}


def statements(party: Party) -> Iterator[tuple[bytes, Context, bytes]]:
    """(kind, context, bytes) of every kind of message of two rounds."""
    for client in party.clients.values():
        yield NAME, BEFORE, client.name(b"c" * 32)
    for content in party.server.opens or ():
        yield OPEN, BEFORE, content
    for round in (1, 2):
        running = party.begin(round)
        context = Context(party.server.run, round)
        numbers = list(party.clients)
        for number in numbers:
            yield HEADER, context, running.prepared[number].header
            upload = party.upload(running, number)
            running.add_upload(upload)
            yield UPLOAD, context, upload
        agree = running.agree_request()
        for number in numbers:
            agreed = party.clients[number].agree(agree)
            running.add_agreement(agreed)
            yield AGREEMENT, context, agreed
        unmask = running.unmask_request()
        for number in numbers:
            yield REVEAL, context, party.clients[number].unmask(unmask)


def check_no_replay() -> None:
    party, other = Party(terms_of(3, 1, 3), seed=1), Party(terms_of(3, 1, 3), seed=2)
    contexts = [
        BEFORE,
        *(Context(run, round) for run in (party.server.run, other.server.run) for round in (1, 2)),
    ]
    for kind, context, content in list(statements(party)):
        assert not declined(messages.read, content, kind, context, party.terms)
        for another in KINDS:
            for where in contexts:
                if (another, where) != (kind, context):
                    assert declined(messages.read, content, another, where, party.terms)
        stolen = join(
            primitives.number(int.from_bytes(split(content)[0], "big") % 3 + 1), *split(content)[1:]
        )
        assert declined(messages.read, stolen, kind, context, party.terms)


def test_nothing_counts_as_another_kind_number_round_or_run() -> None:
    check_no_replay()


@pytest.mark.parametrize("missing", ["kind", "number", "run", "round"])
def test_a_missing_tag_is_found(missing: str) -> None:
    def text(kind: bytes, who: int, context: Context, body: tuple[bytes, ...]) -> bytes:
        tags = {
            "kind": kind,
            "number": primitives.number(who),
            "run": context.run,
            "round": primitives.number(context.round),
        }
        del tags[missing]
        return join(*tags.values(), *body)

    check = check_numbers if missing == "number" else check_no_replay
    check()
    with patch.object(messages, "_text", text), pytest.raises(AssertionError):
        check()


def check_numbers() -> None:
    """Distinct keys protect by themselves; the number in the text does so even where a key stands twice."""
    terms = terms_of(3, 1, 3)
    object.__setattr__(terms, "keys", (terms.keys[0],) * 3)
    found = messages.signed(HEADER, 1, BEFORE, (b"a", b"b"), fixed_key(1))
    assert declined(messages.verify, replace(found, number=2), HEADER, BEFORE, terms)


def test_a_flipped_bit_in_a_sealed_share_leaves_that_share_out() -> None:
    party = Party(terms_of(4, 0, 3))
    running = party.begin(1)
    request = running.train_request(1)
    broken = bytearray(request.sealed[1])
    broken[20] ^= 1
    sealed = (request.sealed[0], bytes(broken), *request.sealed[2:])
    running.add_upload(party.clients[1].train(replace(request, sealed=sealed), lambda _: party.encode(1)))
    opened = party.finish(running, (2, 3, 4), (1, 2, 3), (1, 2, 3, 4))
    assert (party.integers(opened) == sum(party.values.values())).all()


def test_shares_sealed_for_another_holder_round_or_header_do_not_open() -> None:
    party = Party(terms_of(3, 1, 3))
    first = party.begin(1)
    request = first.train_request(1)
    swapped = replace(request, sealed=(b"", request.sealed[2], first.train_request(3).sealed[1]))
    party.clients[1].train(swapped, lambda _: party.encode(1))
    assert _held(party, 1) == {1}
    second = party.begin(2)
    old = replace(second.train_request(2), sealed=first.train_request(2).sealed)
    party.clients[2].train(old, lambda _: party.encode(2))
    assert _held(party, 2) == {2}
    party.clients[3].train(second.train_request(3), lambda _: party.encode(3))
    assert _held(party, 3) == {1, 2, 3}


def _held(party: Party, number: int) -> set[int]:
    return set(Secrets.decode(party.stores[number].secrets or b"").mask_shares)


CHANGED: list[Callable[[Party], object]] = [
    lambda party: replace(party.terms, plan=b"q" * 32),
    lambda party: replace(party.terms, roster=b"s" * 32),
    lambda party: replace(party.terms, fewest=4),
    lambda party: replace(party.terms, last_round=8),
]


@pytest.mark.parametrize("change", CHANGED, ids=["plan", "roster", "M", "last round"])
def test_an_open_under_other_terms_begins_no_run(change: Callable[[Party], object]) -> None:
    party = Party(terms_of(4, 0, 3))
    other = change(party)
    stranger = Client(other, 4, fixed_key(4), MemoryStore())  # type: ignore[arg-type]
    opens = [*(party.server.opens or ())[:3], stranger.open()]
    with pytest.raises(Declined, match="client 4 opened under another roster or plan"):
        read_opens(opens, party.terms)
    assert declined(party.server.add_open, stranger.open())


def test_a_name_is_proved_for_one_challenge_and_one_agreement() -> None:
    party, challenge = Party(terms_of(3, 0, 2)), b"c" * 32
    said = party.clients[2].name(challenge)
    assert messages.read_name(said, challenge, party.terms) == 2
    assert declined(messages.read_name, said, b"d" * 32, party.terms)
    other = Client(replace(party.terms, plan=b"q" * 32), 2, fixed_key(2), MemoryStore())
    assert declined(messages.read_name, other.name(challenge), challenge, party.terms)
    stolen = join(primitives.number(1), *split(said)[1:])
    assert declined(messages.read_name, stolen, challenge, party.terms)


def test_a_run_is_all_opens_in_order_with_ones_own() -> None:
    party = Party(terms_of(3, 0, 2))
    fresh = {number: Client(party.terms, number, fixed_key(number), MemoryStore()) for number in (1, 2, 3)}
    opens = [fresh[number].open() for number in (1, 2, 3)]
    for bad in (
        opens[:2],
        [opens[1], opens[0], opens[2]],
        [opens[0], opens[0], opens[2]],
        [*opens, opens[0]],
    ):
        assert declined(fresh[1].join, bad)
    without_own = [(party.server.opens or ())[0], opens[1], opens[2]]
    assert declined(fresh[1].join, without_own)
    fresh[1].join(opens)


@pytest.mark.parametrize("content", [b"", b"\0", b"\xff" * 40, join(b"", b""), join(*[b""] * 7)])
def test_garbage_is_declined_in_one_sentence(content: bytes) -> None:
    party = Party(terms_of(3, 1, 3))
    for reader in (TrainRequest.read, messages.AgreeRequest.read, messages.UnmaskRequest.read):
        with suppress(Declined):
            reader(content)
    context = Context(party.server.run, 1)
    assert declined(Prepared.read, content, context, party.terms)
    assert declined(messages.read_names, content + b"x", party.terms)
    running = party.begin(1)
    for add in (running.add_upload, running.add_agreement, running.add_reveal, party.server.add_open):
        assert declined(add, content)


def test_a_list_is_in_order_each_name_once_with_ones_own_and_long_enough() -> None:
    party = Party(terms_of(4, 0, 3))
    running = party.begin(1)
    request = running.train_request(1)
    order = [(1, 0, 2, 3), (0, 0, 1, 2), (1, 2, 3), (0, 1)]
    for places in order:
        bad = replace(
            request,
            headers=tuple(request.headers[place] for place in places),
            sealed=tuple(request.sealed[place] for place in places),
        )
        assert declined(party.clients[1].train, bad, lambda _: party.encode(1))
    assert declined(party.clients[1].train, replace(request, sealed=()), lambda _: party.encode(1))
    assert declined(party.clients[1].train, replace(request, round=2), lambda _: party.encode(1))
    assert not party.stores[1].rows
    party.clients[1].train(request, lambda _: party.encode(1))


def test_rounds_only_go_up_to_the_last_also_over_runs() -> None:
    party = Party(terms_of(3, 0, 2, last_round=4))
    party.begin(3)
    client = party.clients[1]
    assert declined(client.prepare, 2)
    assert declined(client.prepare, 5)
    opens = [each.open() for each in party.clients.values()]
    for each in party.clients.values():
        each.join(opens)
    assert declined(client.prepare, 3)
    client.prepare(4)


def test_the_server_refuses_what_belongs_to_another_list() -> None:
    party = Party(terms_of(3, 0, 2))
    running = party.begin(1)
    other = replace(running, broadcast=b"x" * 32, arrived=set(), total=None)
    upload = party.clients[1].train(other.train_request(1), lambda _: party.encode(1))
    assert declined(running.add_upload, upload)
    with pytest.raises(RoundLost):
        party.finish(running, (2,), (), ())
    assert isinstance(RoundLost("x"), Refused)
