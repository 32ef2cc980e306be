"""Keys and certificates: readable by Flower and by TLS, private where they must be, never overwritten."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from flwr.supernode.cli.flower_supernode import load_ssh_private_key

from nbafl.cli import run_command
from nbafl.errors import DataError, UsageError
from nbafl.flower import certificates, keys


def test_a_pair_fits_and_flowers_own_supernode_could_use_it(tmp_path: Path) -> None:
    private, public = keys.make_client_key("north", tmp_path / "new")
    assert private.stat().st_mode & 0o077 == 0
    key = keys.read_private_key(private)
    assert keys.fingerprint(key.public_key()) == keys.fingerprint(keys.read_public_key(public))
    assert load_ssh_private_key(private.read_bytes(), None).key_size == 384
    assert public.read_text().startswith("ecdsa-sha2-nistp384 ")


def test_keys_are_never_overwritten(tmp_path: Path) -> None:
    keys.make_client_key("north", tmp_path)
    with pytest.raises(UsageError, match="never overwritten"):
        keys.make_client_key("north", tmp_path)
    for name in ("", "../up", "a/b", ".hidden"):
        with pytest.raises(UsageError, match="plain file name"):
            keys.make_client_key(name, tmp_path)


def test_what_is_no_key_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "junk").write_text("junk")
    for read in (keys.read_private_key, keys.read_public_key):
        with pytest.raises(DataError, match="is not an"):
            read(tmp_path / "junk")
        with pytest.raises(DataError, match="cannot be read"):
            read(tmp_path / "missing")


def test_a_certificate_names_only_what_can_be_connected_to() -> None:
    certificates.check_hosts(
        "name", ["fl.example.org", "my_server", "*.example.org", "a", "192.0.2.7", "::1"]
    )
    for name in ("", "a b", "a.", "-", "é", "a" * 254, "a,b", "https://a"):
        with pytest.raises(UsageError, match="name must be a host name like"):
            certificates.check_hosts("name", [name])


def test_only_the_agreed_kind_of_key_is_taken(tmp_path: Path) -> None:
    weak = ec.generate_private_key(ec.SECP256R1())
    encoded = weak.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    (tmp_path / "weak").write_bytes(encoded)
    (tmp_path / "weak.pub").write_bytes(
        weak.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    )
    for read, name in ((keys.read_private_key, "weak"), (keys.read_public_key, "weak.pub")):
        with pytest.raises(DataError, match="must be an ECDSA P-384 key"):
            read(tmp_path / name)


def handshake(made: certificates.Certificates, authority: Path, host: str) -> None:
    """A TLS handshake in memory, as a client that expects `host` and trusts `authority`."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(made.certificate, made.key)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(authority)
    wires = [ssl.MemoryBIO() for _ in range(2)]
    ends = [
        client.wrap_bio(wires[0], wires[1], server_hostname=host),
        server.wrap_bio(wires[1], wires[0], server_side=True),
    ]
    for turn in range(10):
        try:
            ends[turn % 2].do_handshake()
        except ssl.SSLWantReadError:
            continue
    assert ends[0].version() in ("TLSv1.2", "TLSv1.3")


def test_a_client_accepts_its_federations_server_only(tmp_path: Path) -> None:
    made = certificates.make_certificates(["fl.example.org", "127.0.0.1"], tmp_path / "a")
    assert made.key.stat().st_mode & 0o077 == 0
    handshake(made, made.authority, "fl.example.org")
    handshake(made, made.authority, "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(made, made.authority, "evil.example.org")
    other = certificates.make_certificates(["fl.example.org"], tmp_path / "b")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(other, made.authority, "fl.example.org")
    assert certificates.find_certificates(tmp_path / "a") == made
    assert certificates.find_certificates(tmp_path) is None
    with pytest.raises(UsageError, match="at least one name"):
        certificates.make_certificates([], tmp_path / "c")


def test_the_verbs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["keys", "make", "north", "--out", str(tmp_path)]) == 0
    made = capsys.readouterr().out
    assert run_command(["keys", "show", str(tmp_path / "north.pub")]) == 0
    assert capsys.readouterr().out.strip() in made
    assert run_command(["keys", "certificate", "localhost", "--out", str(tmp_path / "tls")]) == 0
    assert run_command(["keys", "make", "north", "--out", str(tmp_path)]) == 2
    assert run_command(["keys", "show", str(tmp_path / "missing")]) == 2
