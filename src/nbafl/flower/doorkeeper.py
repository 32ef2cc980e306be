"""Who may keep a connection to the server open: a bounded number, none for long without asking for something.

uvicorn accepts whatever comes and keeps it; a few hundred silent connections then use up the process's descriptors,
and the next checkpoint cannot be written. Here connections are accepted by hand: so many in all that descriptors are
left for files, so many per address, with a deadline for the TLS handshake and for silence. When it is full, the
oldest connection that never proved to be a client's makes room, so strangers cannot lock clients out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

HANDSHAKE = 10.0
"""Seconds a TLS handshake may take."""
IDLE = 20.0
"""Seconds a connection may be open without a request that is being answered."""
RESERVED = 64
"""Descriptors kept free for files: checkpoints, logs, the report."""
MOST = 65_536
CLOSING = 32
"""Connections that may be on their way out beside those."""
PER_CLIENT = 8
"""Connections one registered client may hold."""


@dataclass
class Entry:
    """One accepted connection."""

    address: str
    port: int
    close: Callable[[], None]
    since: float = field(default_factory=time.monotonic)
    protocol: Any = None
    closing: bool = False
    """It was told to go; its descriptor is free once the event loop has seen to it."""
    node: int | None = None
    """The client it proved to be, if it did."""

    def busy(self) -> bool:
        """Whether a request is being answered on it."""
        cycle = getattr(self.protocol, "cycle", None)
        return cycle is not None and not cycle.response_complete


def descriptors() -> int:
    """Raise the limit of open files as far as it goes; how many connections that leaves room for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, soft - len(os.listdir("/proc/self/fd")) - RESERVED)


class Doorkeeper:
    """Accepts connections for a listening socket and hands them to `make_protocol`."""

    def __init__(self, clients: int) -> None:
        self.most = min(descriptors(), 4 * clients + 200)
        self.most_per_address = max(1, min(self.most, 4 * clients + 100))
        self.refused: Counter[str] = Counter()
        self._entries: dict[tuple[str, int], Entry] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._staying())

    def _staying(self) -> list[Entry]:
        return [entry for entry in self._entries.values() if not entry.closing]

    def recognise(self, peer: tuple[str, int] | None, node: int) -> None:
        """A request on this connection carried a valid token; a client needs few connections at a time."""
        entry = self._entries.get((peer[0], peer[1])) if peer else None
        if entry is None or entry.node == node:
            return
        entry.node = node
        same = [other for other in self._entries.values() if other.node == node]
        if len(same) > PER_CLIENT:
            self._end(min(same, key=lambda other: other.since), "client")

    async def serve(
        self,
        listening: socket.socket,
        context: Callable[[], ssl.SSLContext],
        make_protocol: Callable[[], asyncio.Protocol],
    ) -> None:
        """Accept until cancelled."""
        loop = asyncio.get_running_loop()
        watch = loop.create_task(self._watch())
        try:
            while True:
                try:
                    connection, peer = await loop.sock_accept(listening)
                except OSError:  # no descriptor left, or the peer is gone again
                    await asyncio.sleep(0.1)
                    continue
                if self._room_for(peer[0]):
                    entry = Entry(peer[0], peer[1], partial(_hang_up, connection))
                    self._entries[peer[:2]] = entry
                    task = loop.create_task(self._admit(connection, entry, context(), make_protocol))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                else:
                    connection.close()
                # Let those go that were told to, before more descriptors are taken.
                await asyncio.sleep(0 if len(self._entries) < self.most + CLOSING else 0.05)
        finally:
            watch.cancel()
            for entry in list(self._entries.values()):
                entry.close()

    async def _admit(
        self,
        connection: socket.socket,
        entry: Entry,
        context: ssl.SSLContext,
        make_protocol: Callable[[], asyncio.Protocol],
    ) -> None:
        peer = (entry.address, entry.port)
        protocol = make_protocol()
        try:
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _told_at_end(protocol, lambda: self._entries.pop(peer, None)),
                connection,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE,
            )
        except Exception:  # no TLS, too slow, gone: asyncio closed it
            self.refused["handshake"] += not entry.closing
            self._entries.pop(peer, None)
            connection.close()
            return
        entry.close, entry.protocol, entry.since = transport.abort, protocol, time.monotonic()

    def _room_for(self, address: str) -> bool:
        staying = self._staying()
        mine = [entry for entry in staying if entry.address == address]
        if len(mine) >= self.most_per_address and not self._evict(mine, "address"):
            return False
        return len(self) < self.most or self._evict(staying, "full")

    def _evict(self, among: list[Entry], reason: str) -> bool:
        """Close the oldest connection that is nobody's."""
        strangers = [entry for entry in among if entry.node is None and not entry.closing]
        if not strangers:
            self.refused[reason] += 1
            return False
        self._end(min(strangers, key=lambda entry: entry.since), reason)
        return True

    def _end(self, entry: Entry, reason: str) -> None:
        self.refused[reason] += 1
        entry.closing = True
        entry.close()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(1)
            now = time.monotonic()
            for entry in self._staying():
                if entry.busy():
                    entry.since = now
                elif now - entry.since > max(IDLE, HANDSHAKE):
                    self._end(entry, "idle")


def _hang_up(connection: socket.socket) -> None:
    """End a connection the event loop is at work on: it notices, and closes the descriptor itself."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _told_at_end(protocol: asyncio.Protocol, ended: Callable[[], object]) -> asyncio.Protocol:
    """The protocol, with a word when its connection is over."""
    lost = protocol.connection_lost

    def connection_lost(error: Exception | None) -> None:
        ended()
        lost(error)

    protocol.connection_lost = connection_lost  # type: ignore[method-assign,assignment]
    return protocol
