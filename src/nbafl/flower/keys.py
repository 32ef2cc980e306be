"""Who is who: a key pair for each client, and certificates for the server.

A client proves itself with an ECDSA P-384 key (the kind Flower's SuperNodes use, in OpenSSH format); the server
knows the public halves. The server proves itself with a certificate signed by the federation's own authority,
whose certificate every client gets beforehand, so nobody in between can pose as the server.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nbafl.errors import DataError, UsageError

YEARS = 2


@dataclass(frozen=True)
class Certificates:
    """Files of one server: its authority's certificate (clients need it), its own, and its private key."""

    authority: Path
    certificate: Path
    key: Path


def make_client_key(name: str, folder: Path) -> tuple[Path, Path]:
    """A new key pair NAME (private, for the client alone) and NAME.pub (for the server)."""
    if not name or name != Path(name).name or name.startswith("."):
        raise UsageError("name", name, "a plain file name")
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    _write_new(folder / name, private, 0o600)
    _write_new(folder / f"{name}.pub", public + f" {name}\n".encode(), 0o644)
    return folder / name, folder / f"{name}.pub"


def read_private_key(path: str | Path) -> ec.EllipticCurvePrivateKey:
    """A client's own key; anything but a P-384 key in OpenSSH format is refused."""
    try:
        key = serialization.load_ssh_private_key(_read(path), None)
    except (ValueError, UnsupportedAlgorithm, TypeError) as error:
        raise DataError(f"key {str(path)!r} is not an unencrypted OpenSSH private key: {error}.") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise DataError(f"key {str(path)!r} must be an ECDSA P-384 key; make one with: nbafl keys make NAME")
    return key


def read_public_key(path: str | Path) -> ec.EllipticCurvePublicKey:
    """A client's public key, in OpenSSH format."""
    try:
        key = serialization.load_ssh_public_key(_read(path))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise DataError(f"key {str(path)!r} is not an OpenSSH public key: {error}.") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise DataError(f"key {str(path)!r} must be an ECDSA P-384 key; make one with: nbafl keys make NAME")
    return key


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """sha256 of the public key: short enough to read over the telephone."""
    content = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(content).hexdigest()


def make_certificates(hosts: Sequence[str], folder: Path) -> Certificates:
    """An authority and a server certificate for `hosts` (names or IP addresses); its key is written nowhere else."""
    if not hosts:
        raise UsageError("host", list(hosts), "at least one name or IP address that clients connect to")
    folder.mkdir(parents=True, exist_ok=True)
    authority_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    authority_name = _name("nbafl federation authority")
    authority = (
        _builder(authority_name, authority_name, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .sign(authority_key, hashes.SHA384())
    )
    server = (
        _builder(_name(hosts[0]), authority_name, server_key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    made = Certificates(folder / "ca.crt", folder / "server.crt", folder / "server.key")
    private = server_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write_new(made.key, private, 0o600)
    _write_new(made.authority, authority.public_bytes(serialization.Encoding.PEM), 0o644)
    _write_new(made.certificate, server.public_bytes(serialization.Encoding.PEM), 0o644)
    return made


def find_certificates(folder: Path) -> Certificates | None:
    """The three files of `make_certificates`, if they are all there."""
    found = Certificates(folder / "ca.crt", folder / "server.crt", folder / "server.key")
    return found if all(path.is_file() for path in (found.authority, found.certificate, found.key)) else None


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))  # clocks of the parties differ a little
        .not_valid_after(now + timedelta(days=365 * YEARS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _read(path: str | Path) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise DataError(f"key {str(path)!r} cannot be read: {error.strerror}.") from None


def _write_new(path: Path, content: bytes, mode: int) -> None:
    """Keys are never overwritten: an old one may still be in use."""
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
    except FileExistsError:
        raise UsageError(
            "name", str(path), "a file that does not exist yet (keys are never overwritten)"
        ) from None
    with os.fdopen(handle, "wb") as file:
        file.write(content)
