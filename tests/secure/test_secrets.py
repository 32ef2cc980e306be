"""No (key, nonce) is used twice in a run, and secrets are gone when the round is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
from parties import Killed, Party, restart_from_disk, terms_of

from nbafl.secure import masks, primitives
from nbafl.secure.primitives import split
from nbafl.secure.state import Secrets


@contextmanager
def watched_ciphers() -> Iterator[tuple[list[tuple[bytes, bytes]], list[bytes]]]:
    """Every (key, nonce) that seals, and every key of a stream, in the order of use."""
    sealed: list[tuple[bytes, bytes]] = []
    streams: list[bytes] = []
    seal, masked = primitives.seal, masks.masked

    def noting_seal(key: bytes, text: bytes, context: bytes) -> bytes:
        answer = seal(key, text, context)
        sealed.append((key, answer[: primitives.NONCE]))
        return answer

    def noting_masked(who: int, words: object, own: bytes, pairs: dict[int, bytes], width: int) -> bytes:
        streams.extend([own, *pairs.values()])
        return masked(who, words, own, pairs, width)  # type: ignore[arg-type]

    with patch.object(primitives, "seal", noting_seal), patch.object(masks, "masked", noting_masked):
        yield sealed, streams


def check_nonces() -> None:
    """Four rounds; one prepare is made a second time because the first never reached the disk."""
    with watched_ciphers() as (sealed, streams):
        party = Party(terms_of(4, 0, 3))
        for round in range(1, 5):
            if round == 3:
                party.stores[2].die_before = "secrets"
                with pytest.raises(Killed):
                    party.clients[2].prepare(round)
                restart_from_disk(party, 2)
            party.finish(party.begin(round), (1, 2, 3), (1, 2, 3), (1, 2, 3))
        assert len(sealed) == 4 * 4 * 3 + 3
        assert len(set(sealed)) == len(sealed), "a nonce was used twice under one key"
        # each pair's stream is used by both of its ends, on purpose; own streams by their owner alone
        assert all(streams.count(key) <= 2 for key in streams)
        assert len({key for key in streams if streams.count(key) == 1}) >= 4 * 3
        assert not {key for key, _ in sealed} & set(streams)


def test_no_key_and_nonce_are_used_twice() -> None:
    check_nonces()


def test_a_fixed_nonce_is_found() -> None:
    real = os.urandom
    fixed = patch.object(
        primitives.os, "urandom", lambda size: bytes(size) if size == primitives.NONCE else real(size)
    )
    with fixed, pytest.raises(AssertionError, match="nonce"):
        check_nonces()


def test_masks_of_two_rounds_two_lists_and_two_clients_differ() -> None:
    party = Party(terms_of(3, 0, 2))
    keys = set()
    for round in (1, 2):
        with watched_ciphers() as (_, streams):
            running = party.begin(round)
            for number in (1, 2, 3):
                party.upload(running, number)
            keys |= set(streams)
    assert len(keys) == 2 * (3 + 3)  # per round: three own streams and three pairs


def test_secrets_are_gone_after_the_round() -> None:
    """Channel secret after the opening, mask secret, seed and chain key after the upload, shares after the reveal."""
    party = Party(terms_of(4, 0, 3))
    seen: dict[str, bytes] = {}

    def held() -> Secrets:
        return Secrets.decode(party.stores[1].secrets or b"")

    def check_gone(*names: str) -> None:
        disk = (party.stores[1].secrets or b"") + (party.stores[1].state or b"")
        for name in names:
            assert seen[name].hex().encode() not in disk, f"{name} is still there"

    assert not held().channel
    for round in (1, 2, 3):
        running = party.begin(round)
        seen |= {"mask": held().mask, "seed": held().seed, "chain": held().chain[2]}
        assert all(seen.values())
        for number in (1, 2, 3):
            running.add_upload(party.upload(running, number))
        check_gone("mask", "seed", "chain")
        shares = held()
        seen |= {"share of 4's seed": shares.seed_shares[4], "share of 2's mask": shares.mask_shares[2]}
        for number in (1, 2, 3):
            running.add_agreement(party.clients[number].agree(running.agree_request()))
        for number in (1, 2, 3):
            running.add_reveal(party.clients[number].unmask(running.unmask_request()))
        check_gone(*seen)
        assert not held().mask_shares
        assert not held().seed_shares


def test_a_missed_round_takes_its_shares_and_keys_along() -> None:
    party = Party(terms_of(4, 0, 3))
    running = party.begin(1)
    party.upload(running, 1)
    party.begin(5)
    kept = Secrets.decode(party.stores[1].secrets or b"")
    assert kept.chain_round == 5
    assert set(kept.mask_shares) == {1}
    opened = party.finish(party.server.begin(5, b"b" * 32, {}), (1, 2, 3, 4), (1, 2, 3), (1, 2, 3))
    assert (party.integers(opened) == sum(party.values.values())).all()


def test_the_uploads_of_two_runs_have_nothing_in_common() -> None:
    uploads = []
    for _ in range(2):
        party = Party(terms_of(3, 0, 2, dimension=400))
        running = party.begin(1)
        uploads.append(split(party.upload(running, 1))[3])
    same = sum(a == b for a, b in zip(*uploads, strict=True))
    assert same < 40  # of 1600 bytes 6 are equal by chance; the vector is the same
