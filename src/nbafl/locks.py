"""Lock files: one process at a time works in a place, and the system lets go of its lock however it ends.

These are `flock` locks on an open file, so a process killed with -9 leaves no lock behind. Asking whether a lock is
held needs no right to write.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from nbafl.errors import Refused

PAUSE = 0.02


@contextmanager
def hold(path: Path, patience: float, refusal: str) -> Iterator[None]:
    """Hold the lock file for the block; `Refused(refusal)` when others keep it longer than `patience` seconds.

    Whoever only asks (`is_held`) has the lock for an instant too, so a little patience is always needed.
    """
    with open(path, "ab") as file:
        deadline = time.monotonic() + patience
        while not _take(file, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise Refused(refusal)
            time.sleep(PAUSE)
        yield


def is_held(path: Path) -> bool:
    """Whether some process holds the lock file now."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return not _take(file, fcntl.LOCK_SH)


def _take(file: IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
