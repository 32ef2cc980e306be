"""A real SuperLink on loopback: who gets in, what is reachable, and replies no single client can spoil."""

from __future__ import annotations

import http.client
import http.server
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

from nbafl.errors import DataError, NbaflError, Refused
from nbafl.flower import keys
from nbafl.flower.grid import LOST, UNREADABLE, check_sizes
from nbafl.flower.link import Link
from nbafl.flower.node import Connection, alone, stay

LARGEST = 100_000


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Place:
    """A link with two registered clients, and a way to connect as them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.certificates = keys.make_certificates(["127.0.0.1"], folder / "tls")
        self.private = [keys.make_client_key(name, folder)[0] for name in ("a", "b", "stranger")]
        public = [keys.read_public_key(f"{path}.pub") for path in self.private[:2]]
        self.link = Link("127.0.0.1", self.port, self.certificates, public, LARGEST)
        self.node = {number: node for node, number in self.link.nodes.items()}

    def connect(self, client: int, authority: Path | None = None, life: int = 0) -> Connection:
        return Connection(
            f"127.0.0.1:{self.port}",
            authority or self.certificates.authority,
            keys.read_private_key(self.private[client]),
            self.folder / f"node-{client}-{life}",
        )

    def question(self, client: int, text: str = "?") -> Message:
        content = RecordDict({"config": ConfigRecord({"text": text})})
        return Message(content, dst_node_id=self.node[client], message_type=MessageType.TRAIN)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("link"))
    with made.link:
        yield made


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
    while len(set(place.link.grid.get_node_ids())) != count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/control/register-node", 404),
        ("/v1/control/start-run", 404),
        ("/v1/runtime/acquire-task", 404),
        ("/docs", 404),
        ("/openapi.json", 404),
        ("/v1/fleet/../control/list-nodes", 404),
        ("/v1/fleet/activate-node", 401),
    ],
)
def test_strangers_reach_the_fleet_api_and_nothing_else(place: Place, path: str, status: int) -> None:
    context = ssl.create_default_context(cafile=str(place.certificates.authority))
    connection = http.client.HTTPSConnection("127.0.0.1", place.port, context=context)
    connection.request("POST", path, body=b"", headers={"content-type": PROTOBUF_MEDIA_TYPE})
    assert connection.getresponse().status == status


def test_huge_and_endless_requests_are_not_read(place: Place) -> None:
    context = ssl.create_default_context(cafile=str(place.certificates.authority))
    with httpx.Client(verify=context, base_url=f"https://127.0.0.1:{place.port}") as client:
        assert client.post("/v1/fleet/push-object", content=bytes(LARGEST + 1)).status_code == 413
        assert client.post("/v1/fleet/push-object", content=iter([b"x"])).status_code == 411


def test_plain_text_is_refused(place: Place) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.post(f"http://127.0.0.1:{place.port}/v1/fleet/activate-node", content=b"")


def test_an_unregistered_key_and_a_wrong_certificate_are_refused(place: Place, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="its key is not registered there"):
        stay(place.connect(2), echo, lambda: False, 1.0)
    other = keys.make_certificates(["127.0.0.1"], tmp_path / "other")
    with pytest.raises(Refused, match="does not prove to be this federation's"):
        stay(place.connect(0, authority=other.authority), echo, lambda: False, 5.0)


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """A server with the right certificate that answers every request with `status`, and with `body`."""

    status, body, location, asked = 200, b"", "", 0

    def do_POST(self) -> None:
        type(self).asked += 1
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(self.status)
        self.send_header("location", self.location)
        self.send_header("content-length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def pretender(
    place: Place, tls: bool = True, **answer: object
) -> Iterator[tuple[Connection, type[Elsewhere]]]:
    """A connection to a server that is not what it should be."""
    kind = type("Pretender", (Elsewhere,), answer)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind)
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(place.certificates.certificate, place.certificates.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    key = keys.read_private_key(place.private[0])
    address = f"127.0.0.1:{server.server_address[1]}"
    yield Connection(address, place.certificates.authority, key, place.folder / "pretender"), kind
    server.shutdown()
    server.server_close()


def test_a_server_cannot_send_a_client_elsewhere(place: Place) -> None:
    """Redirects would let it reach whatever the hospital's machine can reach."""
    with pretender(place, tls=False) as (inner, inside):
        target = f"http://{inner.address}/admin"
        with pretender(place, status=307, location=target) as (connection, outside):
            with pytest.raises(Refused, match=r"refused this client's request \(307\)"):
                connection._activate()
            assert (outside.asked, inside.asked) == (1, 0)


@pytest.mark.parametrize("answer", [{"status": 503}, {"body": b"\xff" * 9}])
def test_a_server_that_cannot_answer_or_babbles_is_waited_for(
    place: Place, answer: dict[str, object]
) -> None:
    away = pytest.raises(Refused, match=r"could not be reached for 0\.5 s \(the server at")
    with pretender(place, **answer) as (connection, _), away:
        stay(connection, echo, lambda: False, 0.5)


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
        key = keys.read_private_key(place.private[0])
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        connection = Connection(address, place.certificates.authority, key, place.folder / "away")
        with pytest.raises(Refused, match=r"could not be reached for 0\.5 s"):
            stay(connection, echo, lambda: False, 0.5)


def test_how_long_training_took_is_not_told(place: Place) -> None:
    def slowly(message: Message) -> Message:
        time.sleep(0.3)
        return echo(message)

    before = place.link.grid.run.clientapp_runtime
    thread = answering(place, 0, slowly)
    online(place, 1)
    assert len(list(place.link.grid.send_and_receive([place.question(0)], timeout=60))) == 1
    thread.join(60)
    assert place.link.grid.run.clientapp_runtime == before == 0
    online(place, 0)


def test_what_an_earlier_life_left_behind_may_be_garbage(place: Place) -> None:
    (place.folder / "node-0-0").write_text("no number")
    thread = answering(place, 0)
    online(place, 1)
    assert len(list(place.link.grid.send_and_receive([place.question(0)], timeout=60))) == 1
    thread.join(60)
    online(place, 0)


@pytest.mark.parametrize("content", [b"", b"no certificate", b"\xff\xfe"])
def test_a_certificate_that_is_none_is_one_sentence(place: Place, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ca.crt").write_bytes(content)
    with pytest.raises(DataError, match="is not a certificate in PEM format"):
        place.connect(0, authority=tmp_path / "ca.crt")


def test_two_processes_do_not_speak_for_one_client(tmp_path: Path) -> None:
    refused = pytest.raises(Refused, match="another nbafl join is at work")
    with alone(tmp_path / "state"), refused, alone(tmp_path / "state"):
        pass
    with alone(tmp_path / "state"):
        pass


def test_a_server_that_is_away_is_waited_for_in_vain(place: Place) -> None:
    gone = Connection(
        f"127.0.0.1:{free_port()}",
        place.certificates.authority,
        keys.read_private_key(place.private[0]),
        place.folder / "gone",
    )
    with pytest.raises(Refused, match=r"could not be reached for 0\.5 s"):
        stay(gone, echo, lambda: False, 0.5)


def test_a_taken_port_is_one_sentence(place: Place) -> None:
    second = Link("127.0.0.1", place.port, place.certificates, [], LARGEST)
    with pytest.raises(NbaflError, match="cannot listen on"):
        second.__enter__()


def test_questions_are_answered(place: Place) -> None:
    threads = [answering(place, client) for client in (0, 1)]
    online(place, 2)
    replies = list(
        place.link.grid.send_and_receive([place.question(0, "x"), place.question(1, "y")], timeout=120)
    )
    assert {reply.content["config"]["text"] for reply in replies} == {"x", "y"}
    assert {reply.metadata.src_node_id for reply in replies} == set(place.node.values())
    for thread in threads:
        thread.join(120)
    online(place, 0)


def test_a_client_killed_and_restarted_in_the_middle_of_a_round_is_asked_again(place: Place) -> None:
    first = place.connect(0)
    first._activate()  # signed on, and never signs off: as if killed
    replies: list[Message] = []
    asking = threading.Thread(
        target=lambda: replies.extend(place.link.grid.send_and_receive([place.question(0)], timeout=120))
    )
    asking.start()
    while first.receive() is None:
        time.sleep(0.02)
    answering(place, 0).join(120)
    asking.join(120)
    assert [reply.content["config"]["text"] for reply in replies] == ["?"]
    online(place, 0)


def test_a_reply_that_never_becomes_whole_holds_up_nobody_else(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place.link.grid, "grace", 0.5)

    def announce_only(message: Message) -> Message | None:
        push(connection, echo(message))
        return None

    connection = place.connect(1)
    lazy = threading.Thread(target=stay, args=(connection, announce_only, lambda: False, 5.0), daemon=True)
    lazy.start()
    good = answering(place, 0)
    online(place, 2)
    replies = list(place.link.grid.send_and_receive([place.question(0), place.question(1)], timeout=120))
    assert [reply.metadata.src_node_id for reply in replies if reply.has_content()] == [place.node[0]]
    good.join(120)
    lazy.join(120)
    online(place, 0)


def push(connection: Connection, message: Message) -> tuple[list[str], str]:
    """Announce a message as a client; (parts the server wants, the session to send them in)."""
    message.metadata.__dict__["_message_id"] = message.object_id
    request = PushMessagesRequest(
        node=connection._node,
        messages_list=[message_to_proto(remove_content_from_message(message))],
        message_object_trees=[get_object_tree(message)],
    )
    pushed = connection._call(connection._client.PushMessages, request)
    return list(pushed.objects_to_push), pushed.session_id


def test_a_client_cannot_give_instructions_in_the_servers_name(place: Place) -> None:
    """Not even if it found out the number of another client: that one would train, and spend, for it."""
    attacker, victim = place.connect(0), place.connect(1)
    with attacker.activated(), victim.activated():
        forged = place.question(1, "train for me")
        assert forged.metadata.src_node_id == 1, "the SuperLink's own number"
        wanted, _ = push(attacker, forged)
        assert wanted == []
        assert victim.receive() is None
    online(place, 0)


def test_a_reply_of_too_many_bytes_is_not_stored(place: Place) -> None:
    connection = place.connect(0)
    with connection.activated():
        replies: list[Message] = []
        asking = threading.Thread(
            target=lambda: replies.extend(place.link.grid.send_and_receive([place.question(0)], timeout=120))
        )
        asking.start()
        while (message := connection.receive()) is None:
            time.sleep(0.02)
        large = ArrayRecord(
            {f"w{n}": Array(np.full(10_000, n)) for n in range(5)}
        )  # 400 kB, each part is allowed
        reply = Message(RecordDict({"arrays": large}), reply_to=message)
        wanted, session = push(connection, reply)
        parts = get_all_nested_objects(reply)
        stored = [
            connection._call(
                connection._client.PushObject,
                PushObjectRequest(
                    node=connection._node,
                    run_id=reply.metadata.run_id,
                    object_id=part,
                    object_content=parts[part].deflate(),
                    session_id=session,
                ),
            ).stored
            for part in wanted
        ]
        assert any(stored)
        assert not all(stored)
    asking.join(120)
    assert [reply.error.code for reply in replies] == [LOST]
    online(place, 0)


class Bomb(Array):
    """An array that claims to consist of its one chunk twenty thousand times."""

    def deflate(self) -> bytes:
        content = super().deflate()
        head, body = content.split(b"\x00", 1)
        fields = {**json.loads(body), "arraychunk_ids": [0] * 20_000}
        body = json.dumps(fields).encode()
        return b"Array %s %d\x00" % (head.split(b" ")[1], len(body)) + body


def test_a_reply_that_cannot_be_put_together_is_that_clients_error_alone(place: Place) -> None:
    def bomb(message: Message) -> Message:
        arrays = ArrayRecord({"w": Array(np.zeros(1000))})
        arrays.__dict__["_data"]["w"] = Bomb(np.zeros(1000))  # Flower itself would make a plain Array of it
        return Message(RecordDict({"arrays": arrays}), reply_to=message)

    bad, good = answering(place, 1, bomb), answering(place, 0)
    online(place, 2)
    replies = list(place.link.grid.send_and_receive([place.question(0), place.question(1)], timeout=120))
    by_node = {reply.metadata.src_node_id: reply for reply in replies}
    assert by_node[place.node[0]].has_content()
    assert by_node[place.node[1]].error.code == UNREADABLE
    for thread in (bad, good):
        thread.join(120)
    online(place, 0)


def test_an_array_may_not_unfold_to_more_than_the_largest_message() -> None:
    body = json.dumps({"arraychunk_ids": [0] * 100}).encode()
    contents = {"c": b"ArrayChunk  1000\x00" + bytes(1000), "a": b"Array c %d\x00" % len(body) + body}
    check_sizes(contents, 60_000)
    with pytest.raises(ValueError, match="too large"):
        check_sizes(contents, 40_000)


def test_a_refusal_travels_as_an_error(place: Place) -> None:
    answering(place, 0, lambda message: Message(Error(900, "no"), reply_to=message))
    online(place, 1)
    (reply,) = place.link.grid.send_and_receive([place.question(0)], timeout=120)
    assert reply.error.reason == "no"
    online(place, 0)
