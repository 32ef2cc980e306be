"""Sums are exact for every pattern of dropouts, with negative numbers and at the edges of 2^b."""

from __future__ import annotations

from itertools import chain, combinations
from unittest.mock import patch

import numpy as np
import pytest
from parties import Party, declined, terms_of

from nbafl.errors import Refused, UsageError
from nbafl.secure import encoding, masks, primitives
from nbafl.secure.messages import UnmaskRequest
from nbafl.secure.primitives import split
from nbafl.secure.server import RoundLost
from nbafl.secure.terms import check_counts, threshold

SIZES = [(3, 0, 2), (3, 1, 3), (4, 0, 3), (4, 1, 3), (5, 1, 4), (6, 1, 4), (6, 2, 5)]


def subsets(numbers: range) -> chain[tuple[int, ...]]:
    return chain.from_iterable(combinations(numbers, size) for size in range(len(numbers) + 1))


def check_every_dropout_pattern(width: int = 4) -> None:
    for clients, accomplices, fewest in SIZES if width == 4 else SIZES[2:4]:
        terms = terms_of(clients, accomplices, fewest, last_round=200, width=width)
        party = Party(terms, seed=clients)
        for round, uploading in enumerate(subsets(terms.numbers), start=1):
            running = party.begin(round)
            party.values = {}
            if len(uploading) < fewest:
                with pytest.raises(RoundLost):
                    party.finish(running, uploading, (), ())
                continue
            for number in uploading:
                running.add_upload(party.upload(running, number))
            alive = sorted(
                party.random.permutation(uploading)[: terms.threshold]
            )  # the others are gone by now
            opened = party.finish(running, (), alive, alive)
            expected = sum(party.values[number] for number in uploading)
            assert opened.members == uploading
            np.testing.assert_array_equal(party.integers(opened), expected)


@pytest.mark.parametrize("width", [4, 5])
def test_sums_are_exact_for_every_dropout_pattern(width: int) -> None:
    check_every_dropout_pattern(width)


def test_one_signature_or_one_share_too_few_opens_nothing() -> None:
    party = Party(terms_of(5, 1, 4))
    running = party.begin(1)
    with pytest.raises(RoundLost, match="3 clients signed"):
        party.finish(running, range(1, 6), range(1, 4), ())
    with pytest.raises(RoundLost, match="3 clients revealed"):
        party.finish(running, (), range(1, 6), range(1, 4))


def wrong_sign(_: int, words: np.ndarray, own: bytes, pairs: dict[int, bytes], width: int) -> bytes:
    total = encoding.add(words, masks.pad(own, len(words), width), width)
    for key in pairs.values():
        total = encoding.add(total, masks.pad(key, len(words), width), width)
    return encoding.to_bytes(total, width)


def big_end_first(key: bytes, dimension: int, width: int) -> np.ndarray:
    stream = primitives.stream(key, dimension * width).reshape(dimension, width)
    return encoding.from_bytes(stream[:, ::-1].tobytes(), width)


def test_t_is_the_rosters_however_few_are_in_the_set() -> None:
    """N = 6, M = 4: a set of four still needs four signatures, not the three that would be half of four."""
    party = Party(terms_of(6, 0, 4))
    running = party.begin(1)
    for number in (1, 2, 3, 4):
        running.add_upload(party.upload(running, number))
    agree = running.agree_request()
    signed = [split(party.clients[number].agree(agree))[1] for number in (1, 2, 3, 4)]
    for count in (3, 4):
        certificate = tuple(zip((1, 2, 3, 4), signed[:count], strict=False))
        request = UnmaskRequest(1, agree.commitment, agree.members, certificate)
        assert declined(party.clients[1].unmask, request) == (count < 4)


def test_a_wrong_sign_is_found() -> None:
    with patch.object(masks, "masked", wrong_sign), pytest.raises(AssertionError):
        check_every_dropout_pattern()


def test_the_stream_is_read_little_end_first() -> None:
    """Two builds that disagree about the order of bytes would give garbage: the order is fixed by a known answer."""

    def check() -> None:
        stream = primitives.stream(bytes(range(32)), 12).tobytes()
        assert stream.hex() == KNOWN_STREAM
        words = masks.pad(bytes(range(32)), 3, 4)
        assert words.tolist() == [int.from_bytes(stream[4 * i : 4 * i + 4], "little") for i in range(3)]
        words = masks.pad(bytes(range(32)), 2, 5)
        assert words.tolist() == [int.from_bytes(stream[5 * i : 5 * i + 5], "little") for i in range(2)]

    check()
    with patch.object(masks, "pad", big_end_first), pytest.raises(AssertionError):
        check()


KNOWN_STREAM = "f29000b62a499fd0a9f39a6a"
"""AES-256 under key 00..1f of the block of zeros (an AES-256 known answer), first 12 bytes."""


@pytest.mark.parametrize("width", [4, 5])
def test_words_hold_every_integer_of_their_range(width: int) -> None:
    half = 2 ** (8 * width - 1)
    integers = np.array([0, 1, -1, half - 1, -half, 12345, -98765])
    words = encoding.to_words(integers, width)
    np.testing.assert_array_equal(encoding.to_integers(words, width), integers)
    sent = encoding.to_bytes(words, width)
    assert sent == b"".join(int(each % (2 * half)).to_bytes(width, "little") for each in integers.tolist())
    np.testing.assert_array_equal(encoding.from_bytes(sent, width), words)
    # a sum that leaves the range wraps around, as the protocol's modulus says
    over = encoding.add(
        encoding.to_words(np.array([half - 1]), width), encoding.to_words(np.array([2]), width), width
    )
    assert encoding.to_integers(over, width).tolist() == [-half + 1]
    under = encoding.subtract(
        encoding.to_words(np.array([-half]), width), encoding.to_words(np.array([1]), width), width
    )
    assert encoding.to_integers(under, width).tolist() == [half - 1]


def test_values_at_the_edges_survive_masks() -> None:
    for width in (4, 5):
        party = Party(terms_of(3, 0, 2, dimension=2, width=width))
        edge = 2 ** (8 * width - 1)
        party.values = {1: np.array([edge - 1, -edge]), 2: np.array([-edge, edge - 1]), 3: np.array([0, 1])}
        opened = party.finish(party.begin(1), (1, 2, 3), (1, 2, 3), (1, 2, 3))
        assert party.integers(opened).tolist() == [-1, 0]


def test_rounding_to_the_grid_refuses_what_it_cannot_hold() -> None:
    assert encoding.on_grid(np.array([0.5, -0.75, 0.0]), 1.0, 0.25).tolist() == [2, -3, 0]
    assert encoding.on_grid(np.array([0.625]), 1.0, 0.25).tolist() == [2]  # half to even
    for bad in (np.nan, np.inf, 1e300):
        with pytest.raises(Refused):
            encoding.on_grid(np.array([bad]), 1.0, 2.0**-20)


def test_counts_that_protect_nobody_are_refused() -> None:
    for clients in range(2, 40):
        for accomplices in range(clients):
            for fewest in range(1, clients + 2):
                fine = threshold(clients, accomplices) <= fewest <= clients and fewest - accomplices >= 2
                if fine:
                    check_counts(clients, accomplices, fewest)
                    assert 2 * (threshold(clients, accomplices) - accomplices) > clients - accomplices
                    assert fewest + threshold(clients, accomplices) > clients + accomplices
                else:
                    with pytest.raises(UsageError):
                        check_counts(clients, accomplices, fewest)
