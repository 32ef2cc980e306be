"""A client's way into a federation in one command: keys made where there are none, then a wait for the handout.

The key file for the coordinator and the handout travel by whatever way the parties trust; the command waits between them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from nbafl.errors import UsageError
from nbafl.flower.keys import fingerprint, make_client_key, read_public_key
from nbafl.folders import homes

NEEDED = (homes.PLAN, homes.AUTHORITY, homes.ROSTER)
LOOK = 0.5
"""Seconds between two looks at the folder."""
QUIET = 2.0
"""Seconds in which nothing changes there: all of it has arrived."""


def begin(
    key: Path, handout: Path | None, records: int | None, patience: float, say: Callable[[str], None]
) -> None:
    """Make the keys if they are not there, and wait until the handout is."""
    if handout is None:
        raise UsageError("handout", None, "the folder the coordinator's handout will be put into")
    if not key.exists():
        _, public = make_client_key(key.name, key.parent, records)
        say(
            f"keys made: give {public} to the coordinator; fingerprint {fingerprint(read_public_key(public))}"
        )
    if not _there(handout):
        say(f"waiting for the coordinator's handout in {handout}")
    deadline = time.monotonic() + patience
    seen, since = _content(handout), time.monotonic() if not _there(handout) else -QUIET
    while not (_there(handout) and time.monotonic() - since >= QUIET):
        if time.monotonic() > deadline:
            needed = ", ".join(NEEDED)
            raise UsageError("handout", str(handout), f"a folder with {needed} within {patience:g} s")
        time.sleep(LOOK)
        if (now := _content(handout)) != seen:
            seen, since = now, time.monotonic()


def _there(handout: Path) -> bool:
    return all((handout / name).is_file() for name in NEEDED)


def _content(handout: Path) -> list[tuple[str, int, int]]:
    """Names, sizes and times of what has arrived so far."""
    found = []
    for file in sorted(handout.iterdir()) if handout.is_dir() else []:
        with suppress(FileNotFoundError):  # under another name while it was on its way
            found.append((file.name, (stat := file.stat()).st_size, stat.st_mtime_ns))
    return found
