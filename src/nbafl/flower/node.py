"""A client's connection to the server: outbound only, through a proxy if there is one, and patient.

It signs on, waits for a question, gives it to the client's own installed code as data, and posts the answer. It
survives restarts of the server and its own, and clocks that jump. Everything the server sends is measured before it is
read: a broadcast may be as large as this client's model and no larger.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message

from nbafl import locks
from nbafl.durable import check_folder
from nbafl.errors import DataError, NbaflError, Refused, UsageError
from nbafl.flower import frames
from nbafl.flower.postbox import BEAT, public_bytes, sign_on_text
from nbafl.flower.requests import LONGEST_WAIT
from nbafl.flower.wire import Malformed

log = logging.getLogger("nbafl")

SMALL = 4096
"""Bytes of any response that is not a question."""
TIMEOUT = httpx.Timeout(30.0, read=3 * LONGEST_WAIT)
PAUSE = 1.0
"""Seconds between two tries when the server is away."""


class Lost(NbaflError):
    """The server does not know this session any more, or cannot answer now (it was restarted)."""


class Unknown(Lost):
    """The server knows no such key or session."""


class NotWanted(Lost):
    """The server has no such question open."""


class Connection:
    """One client's line to the server."""

    def __init__(
        self,
        address: str,
        authority: Path,
        key: ec.EllipticCurvePrivateKey,
        largest_message: int,
        proxy: str | None = None,
    ) -> None:
        """`authority`: certificate of the federation; `largest_message`: bytes of a broadcast this client can use.

        `proxy`: an HTTPS proxy as URL; left out, the environment's (HTTPS_PROXY, NO_PROXY).
        """
        self.address, self._key, self._public = address, key, public_bytes(key.public_key())
        self.largest = largest_message + frames.HEADER
        self._token = ""
        self._client = httpx.Client(
            base_url=f"https://{address}",
            verify=_trusted(authority),
            timeout=TIMEOUT,
            follow_redirects=False,  # a server could make this client send requests to any host it can reach
            proxy=_proxy(proxy),
        )

    @contextlib.contextmanager
    def activated(self) -> Iterator[None]:
        """Signed on, with a heartbeat, until the block is left."""
        self._sign_on()
        stop = threading.Event()
        beat = threading.Thread(target=self._beat, args=(stop,), daemon=True)
        beat.start()
        try:
            yield
        finally:
            stop.set()
            with contextlib.suppress(httpx.HTTPError, NbaflError):
                self._post("/v1/sign-off")

    def receive(self) -> tuple[str, Message] | None:
        """The next question of the server under its name, if there is one by the time it answers."""
        started = time.monotonic()
        block, name = self._post("/v1/next", largest=self.largest)
        if not name:
            if block:
                raise Lost(f"the server at {self.address} sent an unexpected message.")
            # Nothing new: a server that says so at once must not keep this machine busy.
            time.sleep(max(0.0, PAUSE - (time.monotonic() - started)))
            return None
        try:
            return name, frames.decode(block)
        except Malformed as error:
            log.warning("an unreadable message was discarded: %s", error)
            raise Lost(f"the server at {self.address} sent an unreadable message.") from None

    def send(self, question: str, reply: Message) -> bool:
        """Post the answer to a question; False when the server does not want it any more."""
        try:
            self._post("/v1/answer", frames.encode(reply), question=question)
        except NotWanted:
            log.info("the server no longer waited for this answer.")
            return False
        return True

    def round_trip(self) -> float:
        """Seconds one short request takes."""
        started = time.perf_counter()
        self._post("/v1/beat")
        return time.perf_counter() - started

    def close(self) -> None:
        self._client.close()

    # --- inside ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def visiting(self) -> Iterator[dict[str, Any]]:
        """Signed on to look, not to take part; what the server says of its federation."""
        self._sign_on(visitor=True)
        try:
            content, _ = self._post("/v1/facts")
            yield json.loads(content)
        except ValueError:
            raise Lost(f"the server at {self.address} does not speak this protocol.") from None
        finally:
            with contextlib.suppress(httpx.HTTPError, NbaflError):
                self._post("/v1/sign-off")

    def _sign_on(self, visitor: bool = False) -> None:
        """Prove to be a registered client; an earlier session of this key ends."""
        try:
            with self._client.stream("POST", "/v1/challenge", content=self._public) as response:
                certificate = _certificate(response)
                challenge, _ = self._read(response, SMALL)
            if len(challenge) != 32:
                raise Lost(f"the server at {self.address} does not speak this protocol.")
            text = sign_on_text(hashlib.sha256(certificate).digest(), challenge, self._public)
            signature = self._key.sign(text, ec.ECDSA(hashes.SHA384()))
            body = struct.pack(">H", len(self._public)) + self._public + signature
            token, _ = self._post("/v1/sign-on", body, visitor=visitor)
        except Unknown:
            raise Refused(
                f"the server at {self.address} refused this client: its key is not registered there, or was revoked."
            ) from None
        self._token = token.decode("ascii", "replace")

    def _post(
        self,
        path: str,
        body: bytes = b"",
        question: str = "",
        largest: int = SMALL,
        visitor: bool = False,
    ) -> tuple[bytes, str]:
        """(body, name of the question) of the response."""
        headers = {"nbafl-question": question} if question else {}
        if visitor:
            headers["nbafl-visitor"] = "1"
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        with self._client.stream("POST", path, content=body, headers=headers) as response:
            return self._read(response, largest)

    def _read(self, response: httpx.Response, largest: int) -> tuple[bytes, str]:
        """The body, if its length is one this client can use; what else a server answers becomes a sentence."""
        self._check_status(response.status_code)
        length = response.headers.get("content-length", "0" if response.status_code == 204 else "")
        if not length.isdecimal() or len(length) > 15 or "transfer-encoding" in response.headers:
            raise Lost(f"the server at {self.address} does not say how long its answer is.")
        if int(length) > largest:
            raise Refused(
                f"the server at {self.address} sent {length} bytes where this client's model needs at most {largest}: "
                "it was not read."
            )
        body = b"".join(response.iter_raw())
        if len(body) != int(length):
            raise Lost(f"the server at {self.address} broke off in the middle of an answer.")
        return body, response.headers.get("nbafl-question", "")

    def _check_status(self, status: int) -> None:
        if status in (200, 204):
            return
        if status == 401:
            raise Unknown(f"the server at {self.address} does not know this client ({status}).")
        if status == 410:
            raise Refused(f"another process signed on at {self.address} with this client's key.")
        if status == 409:
            raise NotWanted(f"the server at {self.address} did not accept this answer ({status}).")
        if status >= 500 or status in (408, 429):
            raise Lost(f"the server at {self.address} cannot answer now ({status}).")
        raise Refused(f"the server at {self.address} refused this client's request ({status}).")

    def _beat(self, stop: threading.Event) -> None:
        while not stop.wait(BEAT):
            with contextlib.suppress(httpx.HTTPError, NbaflError, RuntimeError):
                self._post("/v1/beat")


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One process at a time speaks for a client: two would end each other's sessions and pay for every round twice."""
    check_folder("state", folder)
    folder.mkdir(parents=True, exist_ok=True)
    with locks.hold(folder / "lock", 0.0, f"another nbafl join is running in {str(folder)!r}."):
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
                refuse_wrong_certificate(connection.address, error)
                if time.monotonic() - last_contact > patience:
                    raise Refused(
                        f"the server at {connection.address} could not be reached for {patience:g} s ({error})."
                    ) from None
                time.sleep(PAUSE)
    finally:
        connection.close()


def _contacts(connection: Connection, handle: Handle, done: Callable[[], bool]) -> Iterator[None]:
    """Wait for a question, handle it, post the answer; yields after each contact with the server."""
    while True:
        found = connection.receive()
        yield
        if found is None:
            continue
        name, message = found
        reply = handle(message)
        if reply is None:
            return
        connection.send(name, reply)
        yield
        if done():
            return


def _trusted(authority: Path) -> ssl.SSLContext:
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(cadata=authority.read_text(encoding="ascii"))
        return context
    except (ValueError, ssl.SSLError):
        raise DataError(f"certificate {str(authority)!r} is not a certificate in PEM format.") from None
    except OSError as error:
        raise DataError(f"certificate {str(authority)!r} cannot be read: {error.strerror}.") from None


def _proxy(proxy: str | None) -> httpx.Proxy | None:
    if proxy is None:
        return None
    try:
        return httpx.Proxy(proxy)
    except ValueError:
        raise UsageError("proxy", proxy, "a URL such as http://proxy.example.org:3128") from None


def _certificate(response: httpx.Response) -> bytes:
    """The certificate the server showed in the handshake of this very connection."""
    secured = response.extensions["network_stream"].get_extra_info("ssl_object")
    found = secured.getpeercert(True) if secured is not None else None
    if not found:
        raise Refused("the server's certificate cannot be seen from here. Nothing was sent.")
    return bytes(found)


_CLOCK = (9, 10)  # OpenSSL: not yet valid, expired


def refuse_wrong_certificate(address: str, error: BaseException) -> None:
    """Another certificate, or no TLS at all; a server killed in the middle of a handshake is only away.

    A certificate out of its time may be a clock that was set wrong for a moment: that is worth another try.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if cause is None or isinstance(cause, (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)):
        return
    if isinstance(cause, ssl.SSLCertVerificationError) and cause.verify_code in _CLOCK:
        log.warning(
            "by this machine's clock the server's certificate is not valid now: %s", cause.verify_message
        )
        return
    raise Refused(
        f"the server at {address} cannot prove that it belongs to this federation: {cause}. Nothing was sent."
    ) from None
