"""Somebody without a key who reaches the server's port."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator


@contextlib.contextmanager
def idle_connections(port: int, count: int, tls: bool = False) -> Iterator[list[socket.socket]]:
    """Connections that are opened and say nothing (or shake hands and then say nothing)."""
    opened: list[socket.socket] = []
    context = ssl._create_unverified_context() if tls else None
    try:
        for _ in range(count):
            try:
                raw = socket.create_connection(("127.0.0.1", port), timeout=5)
                opened.append(context.wrap_socket(raw) if context else raw)
            except OSError:  # turned away
                continue
        yield opened
    finally:
        for connection in opened:
            with contextlib.suppress(OSError):
                connection.close()


def drip(port: int, request: bytes) -> socket.socket:
    """A TLS connection on which only the beginning of a request is sent."""
    raw = socket.create_connection(("127.0.0.1", port), timeout=120)
    secured = ssl._create_unverified_context().wrap_socket(raw)
    secured.sendall(request)
    return secured


def is_closed(connection: socket.socket, seconds: float) -> bool:
    """Whether the other side hangs up within this time."""
    connection.settimeout(seconds)
    try:
        while connection.recv(2**12):  # it may say why first
            continue
    except TimeoutError:
        return False
    except OSError:
        return True
    return True
