"""Stand-ins for X25519, Ed25519, AES and HKDF that keep who knows what, and for masking that keeps symbols."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

from nbafl.secure import masks, primitives, shamir
from nbafl.secure.primitives import Broken, join


@dataclass
class Stage:
    """The stand-ins' memory: where a derived key comes from."""

    parents: dict[bytes, tuple[bytes, ...]] = field(default_factory=dict)
    random: random.Random = field(default_factory=random.Random)
    vectors: int = 0

    def fresh(self) -> bytes:
        return self.random.randbytes(32)

    def shared(self, secret: bytes, public: bytes) -> bytes:
        answer = hashlib.sha256(b"dh" + b"".join(sorted((secret, public)))).digest()
        self.parents[answer] = (secret, public)  # either side can compute it
        return answer

    def derive(self, secret: bytes, label: bytes, *context: bytes) -> bytes:
        answer = hashlib.sha256(join(secret, label, *context)).digest()
        self.parents[answer] = (secret,)
        return answer

    def known(self, key: bytes, secrets: set[bytes]) -> bool:
        return key in secrets or any(self.known(each, secrets) for each in self.parents.get(key, ()))

    @contextmanager
    def on(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name, stand_in in {
                "fresh_secret": self.fresh,
                "public_key": lambda secret: secret,  # a name for the secret; knowing it counts for nothing
                "shared_secret": self.shared,
                "derive": self.derive,
                "seal": lambda key, text, context: hashlib.sha256(join(key, text, context)).digest() + text,
                "unseal": _unseal,
                "verifying_key": lambda key: key,
                "sign": lambda key, text: hashlib.sha256(key + text).digest(),
                "verify": _verify,
            }.items():
                stack.enter_context(patch.object(primitives, name, stand_in))
            stack.enter_context(patch.object(masks, "masked", _symbolic))
            stack.enter_context(patch.object(shamir.secrets, "randbelow", self.random.randrange))
            yield


def _unseal(key: bytes, sealed: bytes, context: bytes) -> bytes:
    if hashlib.sha256(join(key, sealed[32:], context)).digest() != sealed[:32]:
        raise Broken("the seal does not open")
    return sealed[32:]


def _verify(key: bytes, signature: bytes, text: bytes) -> None:
    if hashlib.sha256(key + text).digest() != signature:
        raise Broken("the signature does not fit")


def _symbolic(who: int, vector: str, own: bytes, pairs: dict[int, bytes], _: int) -> bytes:
    """y_i as a formal combination, signs as in `masks.masked` (whose arithmetic test_sums.py checks)."""
    terms: dict[str, int] = {f"z{vector}": 1}
    for key, sign in [(own, 1)] + [(key, 1 if other > who else -1) for other, key in pairs.items()]:
        terms[key.hex()] = terms.get(key.hex(), 0) + sign
    return json.dumps(terms).encode()
