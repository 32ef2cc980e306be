"""Shamir's sharing against its own definition, and decoding around lies."""

from __future__ import annotations

import random

import pytest

from nbafl.secure import shamir
from nbafl.secure.primitives import fresh_secret


def test_the_modulus_is_prime() -> None:
    """Miller-Rabin with 64 bases."""
    odd, twos = shamir.PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in random.Random(1).sample(range(2, 10**9), 64):
        powers = [pow(base, odd * 2**i, shamir.PRIME) for i in range(twos)]
        assert powers[0] == 1 or shamir.PRIME - 1 in powers


@pytest.mark.parametrize(("holders", "threshold"), [(1, 1), (3, 2), (6, 4), (50, 28)])
def test_any_t_shares_give_the_secret_and_fewer_do_not(holders: int, threshold: int) -> None:
    source = random.Random(holders)
    for secret in (fresh_secret(), bytes(32), b"\xff" * 32):
        shares = shamir.share(secret, threshold, range(1, holders + 1))
        chosen = source.sample(sorted(shares), threshold)
        assert shamir.combine({each: shares[each] for each in chosen}) == secret
        assert shamir.combine(shares) == secret
        if threshold > 1:
            assert shamir.combine({each: shares[each] for each in chosen[1:]}) != secret


def test_fewer_than_t_shares_fit_every_secret() -> None:
    """For t - 1 shares and any other secret there is a polynomial: they say nothing."""
    shares = shamir.share(fresh_secret(), 3, range(1, 6))
    seen = {each: shares[each] for each in (2, 5)}
    for other in (bytes(32), fresh_secret()):
        forged = {0: other.rjust(shamir.SHARE, b"\0"), **seen}  # the value at 0 is the secret itself
        third = _extrapolated(forged, 4)
        assert shamir.combine({**seen, 4: third}) == other


def _extrapolated(points: dict[int, bytes], place: int) -> bytes:
    total = 0
    for x, text in points.items():
        term = int.from_bytes(text, "big")
        for other in points:
            if other != x:
                term = term * (place - other) * pow(x - other, -1, shamir.PRIME) % shamir.PRIME
        total += term
    return (total % shamir.PRIME).to_bytes(shamir.SHARE, "big")


def test_lies_are_corrected_and_named_up_to_the_bound() -> None:
    source = random.Random(7)
    for _ in range(60):
        holders = source.randint(1, 14)
        threshold = source.randint(1, holders)
        secret = fresh_secret()
        shares = shamir.share(secret, threshold, range(1, holders + 1))
        liars = set(source.sample(sorted(shares), source.randint(0, (holders - threshold) // 2)))
        for liar in liars:
            shares[liar] = source.choice((b"\xff" * 33, bytes(33), source.randbytes(33)))
        assert shamir.decode(shares, threshold) == (secret, frozenset(liars))


def test_too_many_lies_never_give_another_secret_with_confidence() -> None:
    """Beyond the bound a decoding, if any, is another polynomial: the header's hash is what tells."""
    secret = fresh_secret()
    shares = shamir.share(secret, 3, range(1, 6))
    for liar in (1, 2):
        shares[liar] = bytes(33)
    decoded = shamir.decode(shares, 3)
    assert decoded is None or decoded[0] != secret


def test_coefficients_are_computed_once_per_set_of_responders() -> None:
    shamir.lagrange.cache_clear()
    shares = [shamir.share(fresh_secret(), 4, range(1, 8)) for _ in range(20)]
    for each in shares:
        shamir.combine({holder: each[holder] for holder in (1, 3, 4, 7)})
    assert shamir.lagrange.cache_info().misses == 1
