"""Who a client is: a key for the connection and a key for signatures, made together and kept in one file.

The connection's key is ECDSA P-384 (the kind Flower's SuperNodes use); the signing key is Ed25519 and signs the
messages of secure aggregation, extracts of the ledger and evidence, each as what it is. NAME holds both private halves,
each in OpenSSH format, and never leaves the client. NAME.pub holds the public halves and, where the federation agreed on
sizes, the number of records.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from nbafl.errors import DataError, UsageError

_PRIVATE = re.compile(
    rb"-----BEGIN OPENSSH PRIVATE KEY-----.*?-----END OPENSSH PRIVATE KEY-----\s*", re.DOTALL
)
_RECORDS = re.compile(r"records (\d+)")
MAKE = "make one with: nbafl keys make NAME"


@dataclass(frozen=True)
class PublicIdentity:
    """What a client tells the others of itself."""

    name: str
    key: str
    """The connection's key, as OpenSSH writes it (kind and base64, no comment)."""
    signing_key: str
    """The 32 bytes of the Ed25519 key in base64."""
    records: int | None = None

    def __post_init__(self) -> None:
        """Everything is checked here, whether it comes from a key file or from a roster."""
        check_name(self.name)
        if public_text(load_public_key(self.key)) != self.key:
            raise UsageError("key", self.key, "an OpenSSH public key without a comment")
        load_signing_key(self.signing_key)
        if self.records is not None and not (type(self.records) is int and self.records >= 1):
            raise UsageError(
                "records", self.records, f"a whole number of at least 1 for client {self.name!r}"
            )


def check_name(name: object) -> str:
    """A client's name is a file name and a line in a log, so it is kept plain."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", name):
        raise UsageError("name", name, "a plain file name of at most 64 letters, digits, '.', '_' and '-'")
    return name


def make_client_key(name: str, folder: Path, records: int | None = None) -> tuple[Path, Path]:
    """New keys in NAME (private, for the client alone) and NAME.pub (for the server)."""
    check_name(name)
    connection, signing = ec.generate_private_key(ec.SECP384R1()), ed25519.Ed25519PrivateKey.generate()
    identity = PublicIdentity(
        name, public_text(connection.public_key()), _base64(signing.public_key()), records
    )
    private = b"".join(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        )
        for key in (connection, signing)
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_new(folder / name, private, 0o600)
    write_new(folder / f"{name}.pub", _public_text(identity).encode(), 0o644)
    return folder / name, folder / f"{name}.pub"


def read_private_key(path: str | Path) -> ec.EllipticCurvePrivateKey:
    """A client's key for the connection; anything but a P-384 key in OpenSSH format is refused."""
    key = _load_private(_private_blocks(path)[0], path)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise DataError(f"key {str(path)!r} must be an ECDSA P-384 key; {MAKE}")
    return key


def read_signing_key(path: str | Path) -> ed25519.Ed25519PrivateKey:
    """A client's key for signatures, the second in its file."""
    blocks = _private_blocks(path)
    key = _load_private(blocks[1], path) if len(blocks) == 2 else None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise DataError(f"key {str(path)!r} holds no signing key (nbafl 0.1 made none); {MAKE}")
    return key


def read_identity(path: str | Path) -> PublicIdentity:
    """A client's NAME.pub: two keys, and its records where it says so."""
    lines = _read(path).decode("utf-8", "replace").splitlines()
    if not lines or not lines[0].startswith("ecdsa-"):
        raise DataError(f"key {str(path)!r} is not an OpenSSH public key of a client; {MAKE}")
    if len(lines) < 2 or not lines[1].startswith("ssh-ed25519 "):
        raise DataError(f"key {str(path)!r} holds no signing key (nbafl 0.1 made none); {MAKE}")
    said = [found for line in lines[2:] if (found := _RECORDS.fullmatch(line.strip()))]
    signing = serialization.load_ssh_public_key(lines[1].encode())
    assert isinstance(signing, ed25519.Ed25519PublicKey)
    connection = " ".join(lines[0].split()[:2])
    return PublicIdentity(Path(path).stem, connection, _base64(signing), int(said[0][1]) if said else None)


def read_public_key(path: str | Path) -> ec.EllipticCurvePublicKey:
    """The connection's public key of a NAME.pub."""
    try:
        return load_public_key(_read(path).decode("utf-8", "replace").split("\n")[0])
    except DataError as error:
        raise DataError(f"key {str(path)!r} {error}") from None


def load_public_key(text: str) -> ec.EllipticCurvePublicKey:
    """The connection's key from its line of text."""
    try:
        key = serialization.load_ssh_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm, AttributeError) as error:
        raise DataError(f"is not an OpenSSH public key: {error}.") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise DataError(f"must be an ECDSA P-384 key; {MAKE}")
    return key


def load_signing_key(text: str) -> ed25519.Ed25519PublicKey:
    """The signing key from base64; only the one canonical spelling of 32 bytes is taken."""
    try:
        content = base64.b64decode(text, validate=True)
        key = ed25519.Ed25519PublicKey.from_public_bytes(content)
    except (ValueError, TypeError):
        raise UsageError("signing_key", text, "an Ed25519 public key: 32 bytes in base64") from None
    if base64.b64encode(content).decode() != text:
        raise UsageError("signing_key", text, "an Ed25519 public key: 32 bytes in base64")
    return key


def public_text(key: ec.EllipticCurvePublicKey) -> str:
    """The connection's key as its line of text, without a comment."""
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """sha256 of the public key: short enough to read over the telephone."""
    content = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(content).hexdigest()


def write_new(path: Path, content: bytes, mode: int) -> None:
    """Keys are never overwritten: an old one may still be in use."""
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
    except FileExistsError:
        raise UsageError(
            "name", str(path), "a file that does not exist yet (keys are never overwritten)"
        ) from None
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _public_text(identity: PublicIdentity) -> str:
    signing = load_signing_key(identity.signing_key).public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    said = "" if identity.records is None else f"records {identity.records}\n"
    return f"{identity.key} {identity.name}\n{signing.decode()} {identity.name}\n{said}"


def _base64(key: ed25519.Ed25519PublicKey) -> str:
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return base64.b64encode(raw).decode()


def _private_blocks(path: str | Path) -> list[bytes]:
    content = _read(path)
    return _PRIVATE.findall(content) or [content]


def _load_private(content: bytes, path: str | Path) -> object:
    try:
        return serialization.load_ssh_private_key(content, None)
    except (ValueError, UnsupportedAlgorithm, TypeError) as error:
        raise DataError(f"key {str(path)!r} is not an unencrypted OpenSSH private key: {error}.") from None


def _read(path: str | Path) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise DataError(f"key {str(path)!r} cannot be read: {error.strerror}.") from None
