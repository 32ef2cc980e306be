"""Files that are either whole or not there: written beside their place, synced, then renamed over it.

`check_file` and `check_folder` look at a place that a user named before any work is done for it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from nbafl.errors import UsageError

OF_THE_PATH = frozenset(
    {
        errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS,
        errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL,
    }
)  # fmt: skip
"""What is wrong with a path that was named; anything else (a full disk) is not the user's choice."""


def check_file(option: str, path: str | Path | None) -> None:
    """Refuse a place where no file can be written; None is no place, and fine."""
    if path is None:
        return
    file = Path(path)
    if file.exists() and not file.is_file():
        raise UsageError(option, str(path), "a file, not a folder" if file.is_dir() else "an ordinary file")
    if not file.parent.is_dir():
        raise UsageError(option, str(path), f"a file in a folder that exists ({str(file.parent)!r} does not)")
    with _blaming(option, path, "a file in a folder that can be written to"):
        tempfile.TemporaryFile(dir=file.parent).close()


def check_folder(option: str, path: str | Path | None) -> None:
    """Refuse a place where there can be no folder to write to; one that is not there yet is not made."""
    if path is None:
        return
    there = next(each for each in (Path(path), *Path(path).absolute().parents) if each.exists())
    if not there.is_dir():
        raise UsageError(option, str(path), f"a folder ({str(there)!r} is a file)")
    with _blaming(option, path, "a folder that can be made and written to"):
        tempfile.TemporaryFile(dir=there).close()


@contextlib.contextmanager
def _blaming(option: str, path: str | Path, allowed: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in OF_THE_PATH:
            raise
        raise UsageError(option, str(path), f"{allowed} ({error.strerror})") from None


def write_bytes(path: str | Path, content: bytes, mode: int = 0o644) -> None:
    """Replace `path` by `content` in one step; a crash or a full disk leaves what was there before.

    An error names `path`, not the file beside it. The file has `mode` before it has its name, so a secret (0600) is
    never readable by others in between.
    """
    path = Path(path)
    try:
        _replace(path, content, mode)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    _sync_folder(path.parent)


def _replace(path: Path, content: bytes, mode: int) -> None:
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
