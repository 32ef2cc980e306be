"""How large the messages of a secure aggregation are: what a peer may send and no more is read.

All encodings have a fixed length given the terms, so these are the lengths themselves, not guesses.
"""

from __future__ import annotations

from nbafl.secure.primitives import SEAL, SECRET, SIGNATURE
from nbafl.secure.shamir import SHARE
from nbafl.secure.terms import Terms

_NUMBER = 8


def largest_answer(terms: Terms) -> int:
    """Bytes of the largest answer of a client: an upload, or shares with the next prepare when the model is small."""
    prepared = _joined(_signed(SECRET, SECRET), *[_sealed()] * (terms.clients - 1))
    upload = _signed(SECRET, terms.dimension * terms.width)
    revealed = _signed(SECRET, _names(terms), _joined(*[SHARE] * terms.clients))
    return max(upload, _joined(revealed, prepared))


def largest_request(terms: Terms) -> int:
    """Bytes of the largest request of the server, the model not counted: a list, or all opens."""
    count = terms.clients
    opens = _joined(*[_signed(SECRET, SECRET)] * count)
    listed = _joined(
        _NUMBER, SECRET, _joined(*[_signed(SECRET, SECRET)] * count), _joined(*[_sealed()] * count)
    )
    unmask = _joined(_NUMBER, SECRET, _names(terms), *[_NUMBER, SIGNATURE] * count)
    return max(opens, listed, unmask)


def _joined(*parts: int) -> int:
    """Length of `primitives.join` of parts of these lengths."""
    return sum(4 + part for part in parts)


def _signed(*body: int) -> int:
    return _joined(_NUMBER, SIGNATURE, *body)


def _sealed() -> int:
    return SEAL + _joined(SHARE, SHARE)


def _names(terms: Terms) -> int:
    return _joined(*[_NUMBER] * terms.clients)
