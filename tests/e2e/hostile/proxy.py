"""An HTTPS proxy on loopback (CONNECT): the only one who knows where a name leads."""

from __future__ import annotations

import contextlib
import select
import socket
import socketserver
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hostile.listening import listening


@dataclass
class Proxy:
    """Where it listens, and what it was asked for."""

    url: str
    asked: list[str] = field(default_factory=list)


@contextlib.contextmanager
def proxy(names: Mapping[str, int]) -> Iterator[Proxy]:
    """Tunnels to `NAME:PORT` go to the given loopback ports; everything else is refused."""

    class Tunnel(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            method, target, _ = self.rfile.readline().decode().split(" ", 2)
            while self.rfile.readline().strip():
                continue
            found.asked.append(f"{method} {target}")
            if method != "CONNECT" or target not in names:
                self.wfile.write(b"HTTP/1.1 403 Forbidden\r\n\r\n")
                return
            with socket.create_connection(("127.0.0.1", names[target])) as inside:
                self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                with contextlib.suppress(OSError):
                    relay(self.connection, inside)

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Tunnel)
    server.daemon_threads = True
    found = Proxy(f"http://127.0.0.1:{server.server_address[1]}")
    with listening(server):
        yield found


def relay(one: socket.socket, other: socket.socket) -> None:
    while True:
        for ready in select.select([one, other], [], [])[0]:
            content = ready.recv(2**16)
            if not content:
                return
            (other if ready is one else one).sendall(content)
