"""Real processes and the network around them: strangers, floods, oversized messages, proxies, foreign certificates."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from federation_processes import (
    SMALL,
    Federation,
    Nursery,
    finish_all,
    releases,
    serving,
)
from flwr.app import ConfigRecord, Message, RecordDict
from hostile.client import HostileClient
from hostile.proxy import proxy
from hostile.server import Said, hostile_server, signs_on_then
from hostile.stranger import drip, idle_connections, is_closed

from nbafl.flower import certificates, frames, keys, wire
from nbafl.flower.doorkeeper import HANDSHAKE, IDLE

pytestmark = pytest.mark.e2e


def hostile(federation: Federation, client: int) -> HostileClient:
    authority = federation.home / "handout" / "ca.crt"
    key = keys.read_private_key(federation.key(client))
    return HostileClient(f"127.0.0.1:{federation.port}", authority, key, 2**20)


# --- 1: memory ---------------------------------------------------------------------------------------------


def test_a_registered_client_cannot_fill_the_memory_of_the_server(tmp_path: Path, nursery: Nursery) -> None:
    """In 0.1.0 the same question announced again and again took 1 GB in 23 s."""
    federation = Federation(tmp_path, 2, "--rounds", 2, *SMALL)
    server = serving(nursery, federation, "--min-answers", 1, "--timeout", 600)
    honest = nursery.start("join-0", *federation.join(0))
    attacker = hostile(federation, 1)
    with attacker.activated():
        checked = attacker.question()  # asked before the first round whether it could answer
        before = server.memory_mb
        said = RecordDict({wire.ANSWER: ConfigRecord({wire.CHECK: wire.PROTOCOL})})
        ready = frames.encode(Message(said, reply_to=attacker.asked))
        assert attacker.post(checked, ready) == 204
        asked = attacker.question()
        large = 2**18 + 30_000  # about as large as an answer may be
        statuses = {attacker.post(name, os.urandom(large)) for name in [checked, "f" * 32] * 20}
        assert statuses == {409}, "only the open question takes an answer"
        assert attacker.post(asked, os.urandom(large)) == 204
        assert set(attacker.flood(asked, large, 60)) == {409}
        for path in ("push-messages", "push-object"):  # where 0.1.0 took it
            assert attacker.raw(f"/v1/fleet/{path}", b"x" * 1000).status_code == 404
        assert server.memory_mb < before + 60
    finish_all(server, honest)
    assert [line["round"] for line in federation.metrics] == [1, 2]


# --- 2: connections ----------------------------------------------------------------------------------------


def test_idle_connections_of_strangers_do_not_end_the_server(tmp_path: Path, nursery: Nursery) -> None:
    """In 0.1.0, with 256 descriptors, 400 connections that said nothing ended `serve`."""
    federation = Federation(tmp_path, 2, "--rounds", 3, *SMALL)
    server = serving(nursery, federation, descriptors=256)
    with (
        idle_connections(federation.port, 400),
        idle_connections(federation.port, 100, tls=True),
    ):
        clients = [nursery.start(f"join-{client}", *federation.join(client)) for client in range(2)]
        finish_all(server, *clients)
    assert [line["round"] for line in federation.metrics] == [1, 2, 3]
    assert all(releases(federation, client) == 3 for client in range(2))


def test_a_stranger_who_says_half_a_request_is_hung_up_on(tmp_path: Path, nursery: Nursery) -> None:
    federation = Federation(tmp_path, 2, "--rounds", 1, *SMALL)
    server = serving(nursery, federation)
    half = [b"POST /v1/next HT", b"POST /v1/challenge HTTP/1.1\r\nhost: x\r\ncontent-length: 90\r\n\r\nabc"]
    connections = [drip(federation.port, request) for request in half]
    with idle_connections(federation.port, 1) as silent:
        for connection in (*connections, *silent):
            assert is_closed(connection, 2 * (HANDSHAKE + IDLE))
            connection.close()
    assert server.alive


# --- 5: sizes ----------------------------------------------------------------------------------------------


def test_a_client_hangs_up_on_a_broadcast_larger_than_its_model(tmp_path: Path, nursery: Nursery) -> None:
    """In 0.1.0 a broadcast of 1 GiB took 2.4 GB at every client."""
    federation = Federation(tmp_path, 2, "--rounds", 1, *SMALL)
    made = certificates.find_certificates(federation.home / "tls")
    huge = Said(promised=2**30, headers={"nbafl-question": "1"})
    with hostile_server(made, signs_on_then(lambda: huge)) as server:
        federation.port = int(server.address.rpartition(":")[2])
        client = nursery.start("join-0", *federation.join(0))
        finish_all(client, code=1)
        assert "1073741824 bytes where this client's model needs at most" in client.output
        assert server.sent < 2**27
    assert releases(federation, 0) == 0


# --- 14: networks ----------------------------------------------------------------------------------------------


def organisation_certificate(folder: Path, host: str) -> None:
    """A server certificate as an organisation's authority hands it out, with an intermediate in between."""
    names = {
        name: x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]) for name in ("root", "between")
    }
    private = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("root", "between", "server")}

    def issue(subject: x509.Name, of: str, issuer: str, authority: bool) -> x509.Certificate:
        import datetime

        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(names[issuer])
            .public_key(private[of].public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=9))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if not authority:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        return builder.sign(private[issuer], hashes.SHA256())

    root = issue(names["root"], "root", "root", True)
    between = issue(names["between"], "between", "root", True)
    leaf = issue(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)]), "server", "between", False)
    folder.mkdir(parents=True, exist_ok=True)
    pem = serialization.Encoding.PEM
    (folder / "ca.crt").write_bytes(root.public_bytes(pem))
    (folder / "server.crt").write_bytes(leaf.public_bytes(pem) + between.public_bytes(pem))
    (folder / "server.key").write_bytes(
        private["server"].private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


def test_clients_go_through_a_proxy_to_a_server_with_the_organisations_certificate(
    tmp_path: Path, nursery: Nursery
) -> None:
    """Only the proxy knows where the name leads: a client that went by itself would find nothing."""
    name = "fl.organisation.test:443"
    organisation_certificate(tmp_path / "home" / "tls", "fl.organisation.test")
    federation = Federation(tmp_path, 2, "--rounds", 2, *SMALL)
    server = serving(nursery, federation)
    with proxy({name: federation.port}) as between:
        commands = [federation.join(client) for client in range(2)]
        for command in commands:
            command[1] = name
        clients = [
            nursery.start("join-0", *commands[0], "--proxy", between.url),
            nursery.start("join-1", *commands[1], HTTPS_PROXY=between.url),
        ]
        finish_all(server, *clients)
        assert set(between.asked) == {f"CONNECT {name}"}


def test_tls_below_1_2_and_plain_text_are_refused(tmp_path: Path, nursery: Nursery) -> None:
    federation = Federation(tmp_path, 2, "--rounds", 1, *SMALL)
    serving(nursery, federation)
    with pytest.raises(httpx.TransportError):
        httpx.post(f"http://127.0.0.1:{federation.port}/v1/next", content=b"")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(httpx.TransportError):
        httpx.post(f"https://127.0.0.1:{federation.port}/v1/next", content=b"", verify=context)
