"""The masks of an upload: one of its own, and one shared with every other name on the list that cancels in the sum.

    y_i = z_i + PRG(self_i) + sum_{j > i} PRG(s_ij) - sum_{j < i} PRG(s_ij)   modulo 2^b

Numbers and both keys stand in the derivation of s_ij: an accomplice that copies another client's key, or sends one of
its X25519 twins, would otherwise make two masks of an honest client cancel in its own upload.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nbafl.secure import encoding, primitives
from nbafl.secure.primitives import number


def pair_context(number_a: int, key_a: bytes, number_b: int, key_b: bytes) -> tuple[bytes, ...]:
    """Who the two are: smaller number, larger number, and their public keys in that order."""
    (first, key_first), (second, key_second) = sorted([(number_a, key_a), (number_b, key_b)])
    return number(first), number(second), key_first, key_second


def pair_key(shared: bytes, run: bytes, round: int, commitment: bytes, pair: tuple[bytes, ...]) -> bytes:
    """s_ij."""
    return primitives.derive(shared, b"mask", run, number(round), commitment, *pair)


def self_key(seed: bytes, commitment: bytes) -> bytes:
    """The key of a client's own mask, from its seed b_i."""
    return primitives.derive(seed, b"self", commitment)


def seed_hash(seed: bytes) -> bytes:
    """What the header says about b_i, so that the server knows a wrong one."""
    return primitives.digest(b"seed", seed)


def pad(key: bytes, dimension: int, width: int) -> np.ndarray:
    """PRG(key) as words."""
    return encoding.from_bytes(primitives.stream(key, dimension * width), width)


def masked(who: int, words: np.ndarray, own: bytes, pairs: Mapping[int, bytes], width: int) -> bytes:
    """y_i as it is sent; `pairs`: s_ij of every other name j on the list."""
    total = words + pad(own, len(words), width)
    for other, key in pairs.items():
        _shift(total, pad(key, len(words), width), plus=other > who)
    return encoding.to_bytes(encoding.reduced(total, width), width)


def unmasked(
    total: np.ndarray, selves: list[bytes], cut: list[tuple[int, int, bytes]], width: int
) -> np.ndarray:
    """A sum of y_i without its masks: the own masks, and those that members i share with dropped j, as (i, j, s_ij)."""
    bare = total.copy()
    for key in selves:
        _shift(bare, pad(key, len(total), width), plus=False)
    for member, dropped, key in cut:
        _shift(bare, pad(key, len(total), width), plus=dropped < member)
    return encoding.reduced(bare, width)


def _shift(total: np.ndarray, by: np.ndarray, plus: bool) -> None:
    """In place, and modulo the words' own size, which 2^b divides."""
    (np.add if plus else np.subtract)(total, by, out=total)
