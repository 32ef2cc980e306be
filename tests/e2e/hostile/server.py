"""A server that has the federation's certificate and answers as it pleases."""

from __future__ import annotations

import contextlib
import http.server
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hostile.listening import listening
from nbafl.flower.certificates import Certificates


@dataclass
class Said:
    """One answer of the server."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    promised: int | None = None
    """The length it announces, where that is not the body's."""


@dataclass
class HostileServer:
    """Where it listens, and what it was asked."""

    address: str
    asked: list[str] = field(default_factory=list)
    sent: int = 0
    """Bytes of bodies that could be written before the client hung up."""


@contextlib.contextmanager
def hostile_server(
    certificates: Certificates | None, answer: Callable[[str], Said]
) -> Iterator[HostileServer]:
    """`answer` says what comes back for a path; without certificates it speaks plain HTTP."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.asked.append(self.path)
            self.rfile.read(int(self.headers.get("content-length") or 0))
            said = answer(self.path)
            self.send_response(said.status)
            length = len(said.body) if said.promised is None else said.promised
            for name, value in {"content-length": str(length), **said.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):
                for start in range(0, length, 2**20):
                    self.wfile.write((said.body or bytes(2**20))[: length - start])
                    found.sent += min(2**20, length - start)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.certificate, certificates.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    found = HostileServer(f"127.0.0.1:{server.server_address[1]}")
    with listening(server):
        yield found


def signs_on_then(answer: Callable[[], Said]) -> Callable[[str], Said]:
    """Lets every client sign on, and answers the wait for a question with `answer`."""
    known = {"/v1/challenge": Said(body=bytes(32)), "/v1/sign-on": Said(body=b"token")}

    def said(path: str) -> Said:
        return answer() if path == "/v1/next" else known.get(path, Said(204))

    return said
