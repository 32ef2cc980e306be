"""A client's connection to the server, over Flower's Fleet API, without Flower's SuperNode.

A SuperNode downloads whatever app the server hands it and runs it. This loop never asks for an app: it pulls
messages, gives them to the client's own installed code as data, and pushes the answers. It survives a restart of the
server and its own: the number the server gave it is kept, so that it can sign off an earlier life.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from nbafl.durable import write_text
from nbafl.errors import DataError, NbaflError, Refused

log = logging.getLogger("nbafl")

HEARTBEAT = 10.0
"""Seconds; the shortest Flower allows. A client that is silent for twice as long counts as gone."""
FASTEST, SLOWEST = 0.1, 1.0
"""Seconds between two looks for messages: often while rounds run, seldom while nothing happens."""


class Lost(NbaflError):
    """The server does not know this connection any more, or cannot answer now (it was restarted)."""


class Connection:
    """One client's line to the server."""

    def __init__(self, address: str, authority: Path, key: ec.EllipticCurvePrivateKey, memory: Path) -> None:
        """`authority`: certificate of the federation; `memory`: a file for the number the server gives us."""
        self._public, self._memory = public_key_to_bytes(key.public_key()), memory
        signed = NodeAuthHttpInterceptor(key, key.public_key())
        version = RuntimeVersionHttpInterceptor(component_name="SuperNode")
        try:
            self._client = FleetHttpClient.from_server_address(
                address, False, authority.read_bytes(), [version, signed]
            )
        except (ValueError, ssl.SSLError):
            raise DataError(f"certificate {str(authority)!r} is not a certificate in PEM format.") from None
        # Flower follows redirects: a server could make this client send requests to any host it can reach.
        self._client._client.follow_redirects = False
        self.address, self._node = address, Node()

    @contextlib.contextmanager
    def activated(self) -> Iterator[None]:
        """Signed on, with a heartbeat, until the block is left."""
        self._activate()
        stop = threading.Event()
        beat = threading.Thread(target=self._beat, args=(stop,), daemon=True)
        beat.start()
        try:
            yield
        finally:
            stop.set()
            with contextlib.suppress(httpx.HTTPError, ValueError):
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))
                self._memory.unlink(missing_ok=True)  # only once signed off: else the next life has to do it

    def receive(self) -> Message | None:
        """The next message of the server, if there is one."""
        response: PullMessagesResponse = self._call(
            self._client.PullMessages, PullMessagesRequest(node=self._node)
        )
        if not response.messages_list:
            return None
        try:
            run_id, tree = response.messages_list[0].metadata.run_id, response.message_object_trees[0]
            message = pull_and_inflate_object_from_tree(
                tree,
                make_pull_object_fn_protobuf(self._pull_object, self._node, run_id),
                make_confirm_message_received_fn_protobuf(self._confirm, self._node, run_id),
                return_type=Message,
                max_time=60,
            )
        except (httpx.TransportError, NbaflError):
            raise
        except Exception as error:  # whatever a server's bytes may provoke
            log.warning("a message that cannot be read was dropped (%s).", type(error).__name__)
            return None
        message.metadata.__dict__["_message_id"] = tree.object_id
        return message

    def send(self, reply: Message) -> None:
        """Push a reply and all its parts; not how long it took, which depends on the data."""
        with no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            header = message_to_proto(remove_content_from_message(reply))
            announced = self._call(
                self._client.PushMessages,
                PushMessagesRequest(
                    node=self._node,
                    messages_list=[header],
                    message_object_trees=[get_object_tree(reply)],
                    clientapp_runtime_list=[0.0],
                ),
            )
            parts = get_all_nested_objects(reply)
        for part in announced.objects_to_push:
            content = PushObjectRequest(
                node=self._node,
                run_id=reply.metadata.run_id,
                object_id=part,
                object_content=parts[part].deflate(),
                session_id=announced.session_id,
            )
            self._call(self._client.PushObject, content)

    def close(self) -> None:
        self._client.close()

    # --- inside ------------------------------------------------------------------------------------------

    def _activate(self) -> None:
        """Sign on; an earlier life of this client that was killed is signed off first."""
        if self._memory.is_file():
            with contextlib.suppress(
                ValueError, Lost, Refused
            ):  # unreadable, or forgotten by the server as well
                request = DeactivateNodeRequest(node_id=int(self._memory.read_text()))
                self._call(self._client.DeactivateNode, request)
        asked = ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT)
        try:
            self._node.node_id = self._call(self._client.ActivateNode, asked, unknown=Refused).node_id
        except Refused as error:
            raise Refused(
                f"the server at {self.address} refused this client: its key is not registered there, another client is "
                f"using it now, or this machine's clock is not the server's ({error})"
            ) from None
        write_text(self._memory, str(self._node.node_id))

    def _pull_object(self, request: object) -> Any:
        return self._call(self._client.PullObject, request)

    def _confirm(self, request: object) -> Any:
        return self._call(self._client.ConfirmMessageReceived, request)

    def _beat(self, stop: threading.Event) -> None:
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT)
        while not stop.wait(HEARTBEAT / 2):
            with contextlib.suppress(httpx.HTTPError, ValueError, RuntimeError):
                self._client.SendNodeHeartbeat(request)

    def _call(self, method: Callable[..., object], request: object, unknown: type[NbaflError] = Lost) -> Any:
        """Ask the server; what it answers instead of a reply becomes one of two sentences: come back, or give up."""
        try:
            return method(request)
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
        except ValueError:  # what came back is no reply to this request
            raise Lost(f"the server at {self.address} answers in another language.") from None
        if status >= 500:
            raise Lost(f"the server at {self.address} cannot answer now ({status}).")
        if status in (401, 403, 404, 412):
            raise unknown(f"the server at {self.address} does not know this client ({status}).")
        raise Refused(f"the server at {self.address} refused this client's request ({status}).")


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One process at a time speaks for a client: two would sign each other off and pay for every round twice."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(f"another nbafl join is at work in {str(folder)!r}.") from None
        yield


Handle = Callable[[Message], Message | None]


def stay(connection: Connection, handle: Handle, done: Callable[[], bool], patience: float) -> None:
    """Answer the server until `handle` returns None (it is over) or `done`; come back after its restarts.

    Gives up with `Refused` when the server could not be reached for `patience` seconds, at once when it is not the
    federation's or refuses this client.
    """
    last_contact = time.monotonic()
    try:
        while True:
            try:
                with connection.activated():
                    log.info("connected to %s.", connection.address)
                    for _ in _contacts(connection, handle, done):
                        last_contact = time.monotonic()
                return
            except (httpx.TransportError, Lost, ssl.SSLError) as error:
                _refuse_wrong_certificate(connection.address, error)
                if time.monotonic() - last_contact > patience:
                    raise Refused(
                        f"the server at {connection.address} could not be reached for {patience:g} s ({error})."
                    ) from None
                time.sleep(1)
    finally:
        connection.close()


def _contacts(connection: Connection, handle: Handle, done: Callable[[], bool]) -> Iterator[None]:
    """Pull, handle, push; yields after each contact with the server."""
    pause = FASTEST
    while True:
        message = connection.receive()
        yield
        if message is None:
            time.sleep(pause)
            pause = min(pause * 1.3, SLOWEST)
            continue
        reply = handle(message)
        if reply is None:
            return
        connection.send(reply)
        if done():
            return
        pause = FASTEST
        yield


def _refuse_wrong_certificate(address: str, error: BaseException) -> None:
    """Another certificate, or no TLS at all; a server killed in the middle of a handshake is only away."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if cause is not None and not isinstance(
        cause, (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
    ):
        raise Refused(
            f"the server at {address} does not prove to be this federation's: {cause}. Nothing was sent."
        ) from None
