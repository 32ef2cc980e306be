"""The certificates by which a server proves itself: an authority of the federation's own, and what it signed.

Every client gets the authority's certificate beforehand, so nobody in between can pose as the server.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nbafl.durable import write_bytes
from nbafl.errors import DataError, Refused, UsageError
from nbafl.flower.keys import write_new

YEARS, AUTHORITY_YEARS = 2, 10
AUTHORITY_KEY = "ca.key"
HOST = re.compile(r"(\*\.)?\w([\w.-]*\w)?", re.ASCII)
"""What a name of the network looks like."""
PASSPHRASE = 12
"""Letters the passphrase of an authority's key must have."""


@dataclass(frozen=True)
class Certificates:
    """Files of one server: its authority's certificate (clients need it), its own, and its private key."""

    authority: Path
    certificate: Path
    key: Path


def check_hosts(option: str, hosts: Sequence[str]) -> None:
    """Refuse what no client could connect to, before any certificate names it."""
    for host in hosts:
        try:
            ipaddress.ip_address(host)
        except ValueError:
            if not HOST.fullmatch(host) or len(host) > 253:
                raise UsageError(option, host, "a host name like fl.example.org, or an IP address") from None


def make_certificates(hosts: Sequence[str], folder: Path, passphrase: str | None = None) -> Certificates:
    """An authority and a server certificate for `hosts` (names or IP addresses).

    With a passphrase the authority's key is kept, encrypted, and can sign the next certificate (`renew`); without one it
    is forgotten at once, and nobody can ever pose as the server by stealing it.
    """
    if not hosts:
        raise UsageError("host", list(hosts), "at least one name or IP address that clients connect to")
    folder.mkdir(parents=True, exist_ok=True)
    authority_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    authority_name = _name("nbafl federation authority")
    authority = (
        _builder(authority_name, authority_name, authority_key.public_key(), AUTHORITY_YEARS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .sign(authority_key, hashes.SHA384())
    )
    server = _server_certificate(hosts, server_key.public_key(), authority_name, authority_key)
    made = _in(folder)
    if passphrase is not None:
        write_new(folder / AUTHORITY_KEY, _encrypted(authority_key, passphrase), 0o600)
    write_new(made.key, _plain(server_key), 0o600)
    write_new(made.authority, authority.public_bytes(serialization.Encoding.PEM), 0o644)
    write_new(made.certificate, server.public_bytes(serialization.Encoding.PEM), 0o644)
    return made


def renew(folder: Path, passphrase: str, hosts: Sequence[str] = ()) -> Certificates:
    """A new server key and certificate by the same authority, for the names of the old one unless others are given.

    Clients need nothing new. A server that runs takes them up before its next round.
    """
    found, kept = find_certificates(folder), folder / AUTHORITY_KEY
    if found is None or not kept.is_file():
        raise UsageError(
            "home",
            str(folder),
            f"a folder with certificates and {AUTHORITY_KEY} (prepared with --keep-authority)",
        )
    try:
        authority_key = serialization.load_pem_private_key(kept.read_bytes(), passphrase.encode())
    except (ValueError, TypeError):
        raise Refused(f"the passphrase does not open {str(kept)!r}.") from None
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
    authority = x509.load_pem_x509_certificate(found.authority.read_bytes())
    server_key = ec.generate_private_key(ec.SECP384R1())
    server = _server_certificate(
        hosts or _hosts(found.certificate), server_key.public_key(), authority.subject, authority_key
    )
    # The key first: a pair that does not fit for a moment is tried again by the server.
    write_bytes(found.key, _plain(server_key), mode=0o600)
    write_bytes(found.certificate, server.public_bytes(serialization.Encoding.PEM))
    return found


def _server_certificate(
    hosts: Sequence[str],
    key: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    signer: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    return (
        _builder(_name(hosts[0]), issuer, key, YEARS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .sign(signer, hashes.SHA384())
    )


def _hosts(certificate: Path) -> list[str]:
    """The names a certificate is for."""
    found = x509.load_pem_x509_certificate(certificate.read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def _plain(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _encrypted(key: ec.EllipticCurvePrivateKey, passphrase: str) -> bytes:
    if len(passphrase) < PASSPHRASE:
        raise UsageError("passphrase", "***", f"at least {PASSPHRASE} letters")
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(passphrase.encode()),
    )


def _in(folder: Path) -> Certificates:
    return Certificates(folder / "ca.crt", folder / "server.crt", folder / "server.key")


def expiry(certificate: Path) -> datetime:
    """When a certificate ends."""
    try:
        return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    except (OSError, ValueError):
        raise DataError(f"{str(certificate)!r} is not a certificate in PEM format.") from None


def find_certificates(folder: Path) -> Certificates | None:
    """The three files of `make_certificates`, if they are all there."""
    found = _in(folder)
    return found if all(path.is_file() for path in (found.authority, found.certificate, found.key)) else None


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, years: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks of the parties differ
        .not_valid_after(now + timedelta(days=365 * years))
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
