"""The server's door: TLS, a handful of requests, and nothing else reachable.

Flower's own SuperLink keeps what a client announces without a bound, trusts clocks, and answers some twenty requests
per client and round; its Control API listens on the same port. The parties here speak Flower's messages over a
smaller protocol instead (`requests`): a client signs on once, waits for a question and posts its answer,
one request each. uvicorn does HTTP, `doorkeeper` decides who may connect, `postbox` keeps questions and answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.task_identity import TaskIdentity

from nbafl.errors import NbaflError
from nbafl.flower import frames, requests
from nbafl.flower.certificates import Certificates
from nbafl.flower.doorkeeper import Doorkeeper
from nbafl.flower.exchange import HubExchange
from nbafl.flower.offline import check_flower
from nbafl.flower.postbox import Postbox
from nbafl.flower.requests import Receive, Send

if TYPE_CHECKING:
    from nbafl.flower.inspection import Facts


class Hub:
    """A server that clients can reach; `exchange` talks to them."""

    def __init__(
        self,
        host: str,
        port: int,
        certificates: Certificates,
        clients: Sequence[ec.EllipticCurvePublicKey],
        largest_message: int,
    ) -> None:
        """`largest_message`: bytes of an answer, at most."""
        check_flower()
        self.host, self.port, self.certificates = host, port, certificates
        self.largest = largest_message + frames.HEADER
        self.postbox = Postbox(clients, certificate_hash(certificates))
        self.nodes = {node: node - 1 for node in self.postbox.desks}
        self.facts: Callable[[], Facts] | None = None
        """What the server says of its federation, once it is known."""
        self.exchange = HubExchange(self.postbox)
        self.doorkeeper = Doorkeeper(len(clients))
        self.bytes: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._app,
                log_level="critical",
                interface="asgi3",
                proxy_headers=False,
                access_log=False,
                lifespan="off",
                ws="none",
                timeout_keep_alive=600,  # the doorkeeper ends silent connections, and sooner
                timeout_graceful_shutdown=1,
                server_header=False,
            )
        )
        self._context = self._tls()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._serve, name="hub", daemon=True)

    def __enter__(self) -> Hub:
        # Flower's Message asks for them; here there is one run, and this process is its server.
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, SUPERLINK_NODE_ID
        self._listening = self._listen()
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=5)
        self._listening.close()

    @property
    def alive(self) -> bool:
        """Whether the door is open."""
        return self._thread.is_alive() and self._server.started

    def renew(self) -> bool:
        """Use the certificate files as they are now, if they changed; connections that are open keep theirs."""
        try:
            found = certificate_hash(self.certificates)
            known = self.postbox.certificate_hashes
            if found == known[0]:
                return False
            context = self._tls()
        except (OSError, ssl.SSLError, ValueError):  # half replaced: the next look finds both
            return False
        self._context, self.postbox.certificate_hashes = context, [found, known[0]]
        return True

    # --- the listening thread ----------------------------------------------------------------------------

    def _listen(self) -> socket.socket:
        try:
            family = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0][0]
            listening = socket.create_server((self.host, self.port), family=family, backlog=512)
        except OSError as error:
            raise NbaflError(
                f"cannot listen on {self.host}:{self.port}: {error.strerror or error}; is another server there?"
            ) from None
        listening.setblocking(False)
        return listening

    def _tls(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificates.certificate, self.certificates.key)
        return context

    def _serve(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        config = self._server.config
        config.load()
        self._server.lifespan = config.lifespan_class(config)

        def make_protocol() -> asyncio.Protocol:
            kind: Any = config.http_protocol_class
            return kind(config=config, server_state=self._server.server_state, app_state={}, _loop=self._loop)

        self.postbox.loop = self._loop
        door = asyncio.create_task(
            self.doorkeeper.serve(self._listening, lambda: self._context, make_protocol)
        )
        try:
            await self._server.serve(sockets=[])  # it serves the connections; the doorkeeper accepts them
        finally:
            door.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await door

    async def _app(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await requests.answer(self, scope, receive, send)


def certificate_hash(certificates: Certificates) -> bytes:
    """sha256 of the server's own certificate, as clients see it in the handshake."""
    found = x509.load_pem_x509_certificate(certificates.certificate.read_bytes())
    return hashlib.sha256(found.public_bytes(serialization.Encoding.DER)).digest()
