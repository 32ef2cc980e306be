"""Ed25519 signatures of operators and clients, each over a text that says what it is: one is never taken for another.

The messages of secure aggregation are signed with the same kind of key; their texts begin with other words.
"""

from __future__ import annotations

import base64
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nbafl.errors import NbaflError
from nbafl.flower import keys

EVIDENCE = "nbafl evidence 1"
EXTRACT = "nbafl ledger extract 1"


def sign(key: Ed25519PrivateKey, kind: str, text: str) -> str:
    """The signature in base64."""
    return base64.b64encode(key.sign(_signed(kind, text))).decode()


def fits(public: object, signature: object, kind: str, text: str) -> bool:
    """Whether the owner of the public key (base64) signed this text as this kind."""
    if not isinstance(public, str) or not isinstance(signature, str):
        return False
    try:
        keys.load_signing_key(public).verify(base64.b64decode(signature, validate=True), _signed(kind, text))
    except (InvalidSignature, ValueError, NbaflError):
        return False
    return True


def public_half(key: Ed25519PrivateKey) -> str:
    """The public key in base64, as a roster has it."""
    raw = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return base64.b64encode(raw).decode()


def operators_key(path: Path | None) -> tuple[Ed25519PrivateKey, Path]:
    """The key to sign with: the file asked for, or ~/.nbafl/operator, which is made when first needed."""
    if path is None:
        path = Path.home() / ".nbafl" / "operator"
        if not path.is_file():
            keys.make_client_key(path.name, path.parent)
    return keys.read_signing_key(path), path


def _signed(kind: str, text: str) -> bytes:
    return f"{kind}\n{text}".encode()
