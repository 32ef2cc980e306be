"""A real hub on loopback: who gets in, what is reachable, and replies no single client can spoil."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from flwr.app import ConfigRecord, Error, Message, MessageType, RecordDict
from free_ports import free_port
from hostile.client import HostileClient
from hostile.server import HostileServer, Said, hostile_server, signs_on_then

from nbafl.errors import DataError, NbaflError, Refused
from nbafl.flower import certificates, frames, keys, postbox
from nbafl.flower.hub import Hub
from nbafl.flower.node import Connection, alone, stay
from nbafl.flower.wire import UNREADABLE

LARGEST = 100_000


class Place:
    """A link with two registered clients, and a way to connect as them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.certificates = certificates.make_certificates(["127.0.0.1"], folder / "tls")
        self.private = [keys.make_client_key(name, folder)[0] for name in ("a", "b", "stranger")]
        public = [keys.read_public_key(f"{path}.pub") for path in self.private[:2]]
        self.hub = Hub("127.0.0.1", self.port, self.certificates, public, LARGEST)
        self.node = {number: node for node, number in self.hub.nodes.items()}
        self.connections: list[HostileClient] = []

    def connect(
        self, client: int, authority: Path | None = None, address: str | None = None
    ) -> HostileClient:
        made = HostileClient(
            address or f"127.0.0.1:{self.port}",
            authority or self.certificates.authority,
            keys.read_private_key(self.private[client]),
            LARGEST,
        )
        self.connections.append(made)
        return made

    def question(self, client: int, text: str = "?") -> Message:
        content = RecordDict({"config": ConfigRecord({"text": text})})
        return Message(content, dst_node_id=self.node[client], message_type=MessageType.TRAIN)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("link"))
    with made.hub:
        yield made
        for connection in made.connections:
            connection.close()


def echo(message: Message) -> Message:
    return Message(RecordDict({"config": message.content["config"]}), reply_to=message)


def answering(
    place: Place, client: int, handle: Callable[[Message], Message | None] = echo
) -> threading.Thread:
    """A client that answers one message, in a thread."""
    answered: list[bool] = []

    def once(message: Message) -> Message | None:
        answered.append(True)
        return handle(message)

    thread = threading.Thread(
        target=stay, args=(place.connect(client), once, lambda: bool(answered), 120.0), daemon=True
    )
    thread.start()
    return thread


def online(place: Place, count: int) -> None:
    deadline = time.monotonic() + 120
    while len(set(place.hub.exchange.get_node_ids())) != count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/control/register-node", 404),
        ("/v1/fleet/activate-node", 404),
        ("/docs", 404),
        ("/v1/../v1/next", 404),
        ("/v1/next", 401),
        ("/v1/answer", 401),
        ("/v1/beat", 401),
        ("/v1/sign-off", 401),
        ("/v1/sign-on", 401),
        ("/v1/challenge", 401),
    ],
)
def test_strangers_reach_nothing(place: Place, path: str, status: int) -> None:
    context = ssl.create_default_context(cafile=str(place.certificates.authority))
    connection = http.client.HTTPSConnection("127.0.0.1", place.port, context=context)
    with contextlib.closing(connection):
        connection.request("POST", path, body=b"")
        assert connection.getresponse().status == status
        connection.request("GET", path)
        assert connection.getresponse().status == 404


def test_huge_and_endless_requests_are_not_read(place: Place) -> None:
    client = place.connect(0)
    with client.activated():
        assert client.raw("/v1/answer", bytes(place.hub.largest + 1)).status_code == 413
        assert client.raw("/v1/answer", iter([b"x"])).status_code == 411
        assert client.raw("/v1/challenge", bytes(5000)).status_code == 413


def test_plain_text_is_refused(place: Place) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.post(f"http://127.0.0.1:{place.port}/v1/next", content=b"")


def test_an_unregistered_key_and_a_wrong_certificate_are_refused(place: Place, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="its key is not registered there"):
        stay(place.connect(2), echo, lambda: False, 1.0)
    other = certificates.make_certificates(["127.0.0.1"], tmp_path / "other")
    with pytest.raises(Refused, match="cannot prove that it belongs to this federation"):
        stay(place.connect(0, authority=other.authority), echo, lambda: False, 5.0)


@contextmanager
def pretender(place: Place, said: Callable[[str], Said]) -> Iterator[tuple[Connection, HostileServer]]:
    """A connection to a server that is not what it should be."""
    with hostile_server(place.certificates, said) as server:
        yield place.connect(0, address=server.address), server


def test_a_server_cannot_send_a_client_elsewhere(place: Place) -> None:
    """Redirects would let it reach whatever the hospital's machine can reach."""
    with hostile_server(None, lambda _: Said()) as inside:
        redirect = Said(307, headers={"location": f"http://{inside.address}/admin"})
        with pretender(place, lambda _: redirect) as (connection, outside):
            with pytest.raises(Refused, match=r"refused this client's request \(307\)"):
                connection._sign_on()
            assert (len(outside.asked), len(inside.asked)) == (1, 0)


@pytest.mark.parametrize(
    "said",
    [
        lambda _: Said(503),
        lambda _: Said(body=b"\xff" * 9),
        lambda _: Said(headers={"transfer-encoding": "chunked"}),
        signs_on_then(lambda: Said(body=b"no question")),
        signs_on_then(lambda: Said(body=b"\x00", headers={"nbafl-question": "1"})),
    ],
)
def test_a_server_that_cannot_answer_or_babbles_is_waited_for(
    place: Place, said: Callable[[str], Said]
) -> None:
    away = pytest.raises(Refused, match=r"could not be reached for 0\.5 s")
    with pretender(place, said) as (connection, _), away:
        stay(connection, echo, lambda: False, 0.5)


def test_a_broadcast_larger_than_the_model_is_not_read(place: Place) -> None:
    huge = Said(promised=2**30, headers={"nbafl-question": "1"})
    with pretender(place, signs_on_then(lambda: huge)) as (connection, server):
        with pytest.raises(Refused, match=r"1073741824 bytes where this client's model needs at most"):
            stay(connection, echo, lambda: False, 5.0)
        assert server.sent < 2**27, "the client hung up instead of reading on"


def test_a_server_with_nothing_to_say_does_not_keep_a_client_busy(place: Place) -> None:
    with pretender(place, signs_on_then(lambda: Said(204))) as (connection, _):
        connection._sign_on()
        started = time.monotonic()
        for _ in range(2):
            assert connection.receive() is None
        assert time.monotonic() - started > 1.5


def test_a_server_killed_in_the_middle_of_a_handshake_is_only_away(place: Place) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()

        def hang_up() -> None:
            for _ in range(2):
                caller, _ = listening.accept()
                caller.recv(2**16)
                caller.close()

        threading.Thread(target=hang_up, daemon=True).start()
        connection = place.connect(0, address=f"127.0.0.1:{listening.getsockname()[1]}")
        with pytest.raises(Refused, match=r"could not be reached for 0\.5 s"):
            stay(connection, echo, lambda: False, 0.5)


@pytest.mark.parametrize("content", [b"", b"no certificate", b"\xff\xfe"])
def test_a_certificate_that_is_none_is_one_sentence(place: Place, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ca.crt").write_bytes(content)
    with pytest.raises(DataError, match="is not a certificate in PEM format"):
        place.connect(0, authority=tmp_path / "ca.crt")


def test_two_processes_do_not_speak_for_one_client(tmp_path: Path) -> None:
    refused = pytest.raises(Refused, match="another nbafl join is running")
    with alone(tmp_path / "state"), refused, alone(tmp_path / "state"):
        pass
    with alone(tmp_path / "state"):
        pass


def test_a_server_that_is_away_is_waited_for_in_vain(place: Place) -> None:
    gone = place.connect(0, address=f"127.0.0.1:{free_port()}")
    with pytest.raises(Refused, match=r"could not be reached for 0\.5 s"):
        stay(gone, echo, lambda: False, 0.5)


def test_a_taken_port_is_one_sentence(place: Place) -> None:
    second = Hub("127.0.0.1", place.port, place.certificates, [], LARGEST)
    with pytest.raises(NbaflError, match="cannot listen on"):
        second.__enter__()


def test_questions_are_answered(place: Place) -> None:
    threads = [answering(place, client) for client in (0, 1)]
    online(place, 2)
    replies = list(
        place.hub.exchange.send_and_receive([place.question(0, "x"), place.question(1, "y")], timeout=120)
    )
    assert {reply.content["config"]["text"] for reply in replies} == {"x", "y"}
    assert {reply.metadata.src_node_id for reply in replies} == set(place.node.values())
    for thread in threads:
        thread.join(120)
    online(place, 0)


def test_a_client_killed_and_restarted_in_the_middle_of_a_round_is_asked_again(place: Place) -> None:
    first = place.connect(0)
    first._sign_on()  # and never signs off: as if killed
    replies: list[Message] = []
    asking = threading.Thread(
        target=lambda: replies.extend(place.hub.exchange.send_and_receive([place.question(0)], timeout=120))
    )
    asking.start()
    while first.receive() is None:
        time.sleep(0.02)
    answering(place, 0).join(120)
    asking.join(120)
    assert [reply.content["config"]["text"] for reply in replies] == ["?"]
    online(place, 0)


def asking(place: Place, *questions: Message) -> tuple[threading.Thread, list[Message]]:
    """The server asks, in a thread; what came back."""
    replies: list[Message] = []
    thread = threading.Thread(
        target=lambda: replies.extend(place.hub.exchange.send_and_receive(questions, timeout=120))
    )
    thread.start()
    return thread, replies


def test_a_reply_that_never_becomes_whole_holds_up_nobody_else(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place.hub.exchange, "grace", 0.5)
    lazy = place.connect(1)

    def broken_off() -> None:
        with lazy.activated():
            question = lazy.question()
            body = iter([b"x" * 10])  # less than it says
            with suppress(Exception):  # its own library objects
                lazy.raw("/v1/answer", body, nbafl_question=question, content_length="50")

    slow, good = threading.Thread(target=broken_off), answering(place, 0)
    slow.start()
    online(place, 2)
    thread, replies = asking(place, place.question(0), place.question(1))
    for one in (thread, slow, good):
        one.join(120)
    assert [reply.metadata.src_node_id for reply in replies if reply.has_content()] == [place.node[0]]
    online(place, 0)


def test_one_answer_is_kept_and_nothing_else(place: Place) -> None:
    """The flood of 0.1.0: a known question answered over and over filled the memory of the server."""
    client = place.connect(0)
    with client.activated():
        thread, replies = asking(place, place.question(0))
        name = client.question()
        assert client.post("f" * 32, b"x") == 409, "a question nobody asked"
        good = frames.encode(Message(RecordDict({}), reply_to=place.question(0)))
        assert client.post(name, good) == 204
        assert set(client.flood(name, LARGEST, 50)) == {409}
        assert place.hub.postbox.held_bytes() <= len(good)
        thread.join(120)
    assert [reply.has_content() for reply in replies] == [True]
    assert place.hub.postbox.held_bytes() == 0, "withdrawn with the question"
    online(place, 0)


def test_an_answer_of_too_many_bytes_is_that_clients_error_at_once(place: Place) -> None:
    client = place.connect(0)
    with client.activated():
        thread, replies = asking(place, place.question(0))
        assert client.post(client.question(), bytes(place.hub.largest + 1)) == 413
        thread.join(120)
    assert [reply.error.code for reply in replies] == [UNREADABLE]
    online(place, 0)


def test_a_key_alone_is_no_session_and_a_token_is_nobody_elses(place: Place) -> None:
    client, other = place.connect(0), place.connect(1)
    with client.activated(), other.activated():
        thread, replies = asking(place, place.question(0))
        name = client.question()
        forged = frames.encode(Message(RecordDict({}), reply_to=place.question(0)))
        assert other.post(name, forged) == 409, "another client's question"
        assert (
            client.raw("/v1/answer", forged, nbafl_question=name, authorization="Bearer x").status_code == 401
        )
        assert client.post(name, forged) == 204
        thread.join(120)
    assert [reply.metadata.src_node_id for reply in replies] == [place.node[0]]
    online(place, 0)


def test_a_signature_is_good_for_one_challenge_and_one_server(place: Place) -> None:
    key = keys.read_private_key(place.private[0])
    public = postbox.public_bytes(key.public_key())
    box = place.hub.postbox

    def signed(certificate: bytes, challenge: bytes) -> bytes:
        text = postbox.sign_on_text(certificate, challenge, public)
        return key.sign(text, postbox.ec.ECDSA(postbox.hashes.SHA384()))

    challenge = box.challenge(public)
    assert challenge is not None
    good = signed(box.certificate_hashes[0], challenge)
    assert box.sign_on(public, good) is not None
    assert box.sign_on(public, good) is None, "the same again"
    assert box.challenge(public) != challenge
    assert box.sign_on(public, good) is None, "an old signature for a new challenge"
    challenge = box.challenge(public)
    assert challenge is not None
    assert box.sign_on(public, signed(bytes(32), challenge)) is None, "made for another server"
    box.sign_off(box.desks[place.node[0]])


def test_whoever_signs_on_last_holds_the_session(place: Place) -> None:
    first, second = place.connect(0), place.connect(0)
    with first.activated(), second.activated():
        with pytest.raises(Refused, match="another process signed on"):
            first.receive()
        second.round_trip()
    online(place, 0)


def test_a_refusal_travels_as_an_error(place: Place) -> None:
    answering(place, 0, lambda message: Message(Error(900, "no"), reply_to=message))
    online(place, 1)
    (reply,) = place.hub.exchange.send_and_receive([place.question(0)], timeout=120)
    assert reply.error.reason == "no"
    online(place, 0)
