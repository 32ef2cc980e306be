"""A socket server in a thread of its own, for as long as a test needs it."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def listening(server: socketserver.BaseServer) -> Iterator[None]:
    """Answer until the block ends."""
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
