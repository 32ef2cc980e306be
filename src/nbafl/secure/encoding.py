"""Vectors as integers modulo 2^b: what is summed, masked and sent.

A coordinate x becomes round(q x / gamma), plus noise that is an integer already. Integers live modulo 2^b in words of
b/8 bytes, little end first; the grid is chosen so that a sum stays within half of that range (`privacy.integers`), and
is read back with its sign.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nbafl.errors import Refused

WORDS: dict[int, np.dtype[Any]] = {4: np.dtype("<u4"), 5: np.dtype("<u8")}
"""What a word of so many bytes is kept in while it is added up."""


def to_words(integers: np.ndarray, width: int) -> np.ndarray:
    """Signed integers modulo 2^(8 width)."""
    return reduced(np.asarray(integers, dtype=np.int64).astype(WORDS[width]), width)


def add(left: np.ndarray, right: np.ndarray, width: int) -> np.ndarray:
    """The sum modulo 2^(8 width)."""
    return reduced(left + right, width)


def subtract(left: np.ndarray, right: np.ndarray, width: int) -> np.ndarray:
    """The difference modulo 2^(8 width)."""
    return reduced(left - right, width)


def to_integers(words: np.ndarray, width: int) -> np.ndarray:
    """The signed integers of least size that the words stand for: from -2^(b-1) to 2^(b-1) - 1."""
    unused = np.int64(64 - 8 * width)
    return np.left_shift(words.astype(np.uint64).view(np.int64), unused) >> unused


def to_bytes(words: np.ndarray, width: int) -> bytes:
    """Words as they are sent, little end first."""
    spread = words.astype(WORDS[width], copy=False)
    if spread.dtype.itemsize == width:
        return spread.tobytes()
    return spread.view(np.uint8).reshape(len(words), -1)[:, :width].tobytes()


def from_bytes(content: bytes | np.ndarray, width: int) -> np.ndarray:
    """Words from bytes; there are no invalid ones, every string of the right length is a vector."""
    raw = np.frombuffer(content, dtype=np.uint8)
    kept = WORDS[width]
    if kept.itemsize == width:
        return raw.view(kept)
    padded = np.zeros((len(raw) // width, kept.itemsize), dtype=np.uint8)
    padded[:, :width] = raw.reshape(-1, width)
    return padded.view(kept).ravel()


def on_grid(vector: np.ndarray, weight: float, step: float) -> np.ndarray:
    """round(q x / gamma) as int64; gamma is a power of two, so dividing by it is exact."""
    scaled = np.rint(np.asarray(vector, dtype=np.float64) * weight / step)
    if not np.isfinite(scaled).all() or (scaled.size and np.abs(scaled).max() > 2.0**52):
        raise Refused("the vector must be finite and within what its grid can hold.")
    return scaled.astype(np.int64)


def reduced(words: np.ndarray, width: int) -> np.ndarray:
    """Modulo 2^(8 width), in place."""
    if words.dtype.itemsize == width:
        return words
    words &= np.uint64(2 ** (8 * width) - 1)
    return words
