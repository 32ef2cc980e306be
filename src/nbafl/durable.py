"""Files that are either whole or not there: written beside their place, synced, then renamed over it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_bytes(path: str | Path, content: bytes) -> None:
    """Replace `path` by `content` in one step; a crash or a full disk leaves what was there before."""
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_text(path: str | Path, content: str) -> None:
    """`write_bytes` for text."""
    write_bytes(path, content.encode())
