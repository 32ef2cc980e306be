"""Files that are either whole or not there: written beside their place, synced, then renamed over it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def write_bytes(path: str | Path, content: bytes, mode: int = 0o644) -> None:
    """Replace `path` by `content` in one step; a crash or a full disk leaves what was there before.

    The file has `mode` before it has its name, so a secret (0600) is never readable by others in between.
    """
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def write_text(path: str | Path, content: str) -> None:
    """`write_bytes` for text."""
    write_bytes(path, content.encode())


def _sync_folder(folder: Path) -> None:
    """The new name outlives a power failure only once the folder that holds it is on disk as well."""
    with contextlib.suppress(
        OSError
    ):  # some network file systems cannot, and the file is in its place already
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
