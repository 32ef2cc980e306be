"""Shamir's secret sharing modulo the prime 2^256 + 297: any t of N shares give a 32-byte secret, fewer give nothing.

Holder x has the value at x of a random polynomial of degree t - 1 whose value at 0 is the secret. The coefficients
that put t values together depend on the holders alone: they are computed once per set of holders and used for every
secret. Holders may lie, so `decode` finds a polynomial through all but a few of the values (Reed-Solomon decoding by
Gao's use of Euclid's algorithm).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache

PRIME = 2**256 + 297
SHARE = 33
"""Bytes of a share: the prime needs 257 bits."""

Polynomial = list[int]
"""Coefficients modulo PRIME, lowest first, the last one not zero."""


def share(secret: bytes, threshold: int, holders: Sequence[int]) -> dict[int, bytes]:
    """One share for each holder."""
    coefficients = [int.from_bytes(secret, "big")]
    coefficients += [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    return {holder: _value(coefficients, holder).to_bytes(SHARE, "big") for holder in holders}


def combine(shares: Mapping[int, bytes]) -> bytes | None:
    """The secret that exactly these shares agree on at 0, all of them used; None if it is no 32-byte number."""
    holders = tuple(sorted(shares))
    total = sum(
        factor * int.from_bytes(shares[holder], "big")
        for holder, factor in zip(holders, lagrange(holders), strict=True)
    )
    return _secret(total % PRIME)


@lru_cache(maxsize=64)
def lagrange(holders: tuple[int, ...]) -> tuple[int, ...]:
    """prod_{m != h} m / (m - h) for each holder h: the weights that give a polynomial's value at 0."""
    factors = []
    for holder in holders:
        above, below = 1, 1
        for other in holders:
            if other != holder:
                above = above * other % PRIME
                below = below * (other - holder) % PRIME
        factors.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(factors)


def decode(shares: Mapping[int, bytes], threshold: int) -> tuple[bytes, frozenset[int]] | None:
    """(the secret, the holders whose share is wrong) if at most (n - t)/2 of n shares are wrong, else None."""
    values = {holder: int.from_bytes(text, "big") for holder, text in sorted(shares.items())}
    possible = {holder: value for holder, value in values.items() if value < PRIME}
    if len(possible) < threshold:
        return None
    polynomial = _gao(list(possible), list(possible.values()), threshold)
    secret = None if polynomial is None else _secret(_value(polynomial, 0))
    if polynomial is None or secret is None:
        return None
    return secret, frozenset(
        holder for holder, value in values.items() if _value(polynomial, holder) != value
    )


def _secret(value: int) -> bytes | None:
    return value.to_bytes(32, "big") if value < 2**256 else None


def _value(polynomial: Polynomial, place: int) -> int:
    total = 0
    for coefficient in reversed(polynomial):
        total = (total * place + coefficient) % PRIME
    return total


def _gao(places: list[int], values: list[int], threshold: int) -> Polynomial | None:
    """The polynomial of degree < t within (n - t)/2 errors of the values (Gao, 2003), or None."""
    before, now = _vanishing(places), _interpolated(places, values)
    v_before: Polynomial = []
    v_now: Polynomial = [1]
    while 2 * (len(now) - 1) >= len(places) + threshold:
        quotient, rest = _divided(before, now)
        before, now = now, rest
        v_before, v_now = v_now, _minus(v_before, _times(quotient, v_now))
    answer, rest = _divided(now, v_now)
    return answer if not rest and len(answer) <= threshold else None


def _vanishing(places: list[int]) -> Polynomial:
    product = [1]
    for place in places:
        product = _times(product, [-place % PRIME, 1])
    return product


def _interpolated(places: list[int], values: list[int]) -> Polynomial:
    """Newton's form, multiplied out: n^2 steps."""
    table = list(values)
    for gap in range(1, len(places)):
        for i in range(len(places) - 1, gap - 1, -1):
            table[i] = (table[i] - table[i - 1]) * pow(places[i] - places[i - gap], -1, PRIME) % PRIME
    polynomial: Polynomial = []
    for place, coefficient in zip(reversed(places), reversed(table), strict=True):
        polynomial = _minus(_times(polynomial, [-place % PRIME, 1]), [-coefficient % PRIME])
    return polynomial


def _times(left: Polynomial, right: Polynomial) -> Polynomial:
    product = [0] * max(0, len(left) + len(right) - 1) if left and right else []
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            product[i + j] = (product[i + j] + a * b) % PRIME
    return _trimmed(product)


def _minus(left: Polynomial, right: Polynomial) -> Polynomial:
    size = max(len(left), len(right))
    pairs = zip(left + [0] * (size - len(left)), right + [0] * (size - len(right)), strict=True)
    return _trimmed([(a - b) % PRIME for a, b in pairs])


def _divided(above: Polynomial, below: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Quotient and rest."""
    rest, quotient = list(above), [0] * max(0, len(above) - len(below) + 1)
    inverse = pow(below[-1], -1, PRIME)
    for shift in range(len(quotient) - 1, -1, -1):
        factor = rest[shift + len(below) - 1] * inverse % PRIME
        quotient[shift] = factor
        if factor:
            for i, coefficient in enumerate(below):
                rest[shift + i] = (rest[shift + i] - factor * coefficient) % PRIME
    return _trimmed(quotient), _trimmed(rest)


def _trimmed(polynomial: Polynomial) -> Polynomial:
    while polynomial and polynomial[-1] == 0:
        polynomial.pop()
    return polynomial
