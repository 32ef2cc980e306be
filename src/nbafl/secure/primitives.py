"""The cryptography the protocol stands on, all of it from the `cryptography` package, under the protocol's own names."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

SECRET = 32
"""Bytes of every secret, public key and hash here."""
SIGNATURE = 64
NONCE = 12
SEAL = NONCE + 16
"""What sealing adds to a text: its nonce and GCM's tag."""


class Broken(Exception):
    """A key, a seal or a signature is not what it should be."""


def join(*parts: bytes) -> bytes:
    """Parts with their lengths before them: different lists of parts never give the same bytes."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def split(content: bytes) -> list[bytes]:
    """The parts again; `Broken` unless the content is exactly what `join` makes."""
    parts, place = [], 0
    while place < len(content):
        end = place + 4 + int.from_bytes(content[place : place + 4], "big")
        if place + 4 > len(content) or end > len(content):
            raise Broken("a part is cut off")
        parts.append(content[place + 4 : end])
        place = end
    return parts


def number(value: int) -> bytes:
    """A client's number or a round as eight bytes."""
    return value.to_bytes(8, "big")


def digest(*parts: bytes) -> bytes:
    """SHA-256 of the joined parts."""
    return hashlib.sha256(join(*parts)).digest()


def fresh_secret() -> bytes:
    """32 bytes from the operating system: a seed, or an X25519 secret."""
    return os.urandom(SECRET)


def public_key(secret: bytes) -> bytes:
    """The X25519 public key of a secret."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def shared_secret(secret: bytes, public: bytes) -> bytes:
    """X25519; `Broken` for a public key of low order, whose shared secret is zero and known to everybody."""
    try:
        return X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise Broken("the X25519 secret is zero") from error


def derive(secret: bytes, label: bytes, *context: bytes) -> bytes:
    """HKDF-SHA256: a key for one purpose and one context."""
    return HKDF(hashes.SHA256(), SECRET, salt=None, info=join(b"nbafl-secure-1", label, *context)).derive(
        secret
    )


def seal(key: bytes, text: bytes, context: bytes) -> bytes:
    """AES-256-GCM under a random nonce, which stands before the ciphertext; `context` is bound in."""
    nonce = os.urandom(NONCE)
    return nonce + AESGCM(key).encrypt(nonce, text, context)


def unseal(key: bytes, sealed: bytes, context: bytes) -> bytes:
    """What was sealed; `Broken` when key, context or a single bit differ."""
    try:
        return AESGCM(key).decrypt(sealed[:NONCE], sealed[NONCE:], context)
    except (InvalidTag, ValueError) as error:
        raise Broken("the seal does not open") from error


def stream(key: bytes, size: int) -> np.ndarray:
    """`size` bytes of AES-256-CTR from 0: each key is used for one stream only."""
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    made = np.empty(size + 15, dtype=np.uint8)  # a block less one more than the text, as update_into wants it
    cipher.update_into(_zeros(size), made.data)
    return made[:size]


@lru_cache(maxsize=2)
def _zeros(size: int) -> bytes:
    return bytes(size)


def verifying_key(signing_key: bytes) -> bytes:
    """The Ed25519 public key that stands in the roster."""
    return Ed25519PrivateKey.from_private_bytes(signing_key).public_key().public_bytes_raw()


def sign(signing_key: bytes, text: bytes) -> bytes:
    """Ed25519."""
    return Ed25519PrivateKey.from_private_bytes(signing_key).sign(text)


def verify(key: bytes, signature: bytes, text: bytes) -> None:
    """`Broken` unless the owner of the key signed this text."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, text)
    except (InvalidSignature, ValueError) as error:
        raise Broken("the signature does not fit") from error
