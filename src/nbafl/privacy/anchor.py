"""Notice when a ledger was rolled back, copied or replaced: a note about its last row, kept elsewhere.

The anchor of a ledger lies in a folder of its own (NBAFL_ANCHORS, or ~/.nbafl/anchors) under the hash of the
ledger's first row, which holds random bytes. It names the last row seen and the file it was seen in. A ledger
restored from a backup has fewer rows than its anchor, a rewritten one has another hash there, a copy lies in
another file, and a new one stands where another one was. The anchor is written after the ledger, so after a
crash it may lag behind; it never runs ahead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nbafl import locks
from nbafl.durable import write_text
from nbafl.errors import Refused

PATIENCE = 60.0
"""Seconds to wait for another process that writes an anchor; it needs milliseconds."""


def default_folder() -> Path:
    """Where anchors lie unless the caller says otherwise."""
    return Path(os.environ.get("NBAFL_ANCHORS") or Path.home() / ".nbafl" / "anchors")


def check(
    folder: Path,
    ledger: Path,
    first: str,
    last: int,
    hash_of: Callable[[int], str | None],
    moved: bool = False,
) -> None:
    """Refuse a ledger that its anchor does not know; `moved` allows another place, never another past.

    `first`: hash of the first row; `last`: number of the last one; `hash_of`: the hash of any row there is.
    """
    place = _place(folder, first)
    if not place.is_file():
        check_nothing_was_here(folder, ledger)
        if last > 0 and not moved:
            raise Refused(_advice(ledger, f"is not known on this machine ({str(place)!r} is missing)"))
        return
    seen = _read(place)
    if hash_of(seen["number"]) != seen["hash"]:
        raise Refused(
            f"ledger {str(ledger)!r} was rolled back or rewritten: it held row {seen['number']} "
            f"({seen['hash'][:12]}) before and does not now. Nothing more is released from it."
        )
    if not moved and seen["file"] != _identity(ledger):
        raise Refused(_advice(ledger, f"is a copy of {seen['file']['path']!r}"))


def write(folder: Path, ledger: Path, first: str, number: int, hash: str) -> None:
    """Note the last row; an anchor never goes back, however many processes write it."""
    try:
        _write(folder, ledger, first, number, hash)
    except OSError as error:
        raise Refused(
            f"the anchors in {str(folder)!r} cannot be written ({error.strerror}): nothing is released."
        ) from None


def _write(folder: Path, ledger: Path, first: str, number: int, hash: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    place = _place(folder, first)
    busy = f"the anchors in {str(folder)!r} are being written by another process: nothing is released."
    with locks.hold(folder / "lock", PATIENCE, busy):
        if place.is_file() and _read(place)["number"] >= number:
            return
        note = {"number": number, "hash": hash, "file": _identity(ledger)}
        write_text(place, json.dumps(note) + "\n")


def check_nothing_was_here(folder: Path, ledger: Path) -> None:
    """Refuse a new ledger in the place of one that this machine knows."""
    for place in folder.glob("*.json"):
        seen = _read(place)
        if seen["file"]["path"] == str(ledger):
            raise Refused(
                f"ledger {str(ledger)!r} is new, but one with {seen['number'] + 1} rows was here before "
                f"({str(place)!r}): bring it back, or use another state folder for data never used before."
            )


def _read(place: Path) -> dict[str, Any]:
    """What an anchor says; one that cannot be read vouches for nothing, so nothing is released."""
    try:
        seen = json.loads(place.read_text(encoding="utf-8"))
        return {
            "number": int(seen["number"]),
            "hash": str(seen["hash"]),
            "file": {name: seen["file"][name] for name in ("path", "inode")},
        }
    except (OSError, ValueError, KeyError, TypeError):
        raise Refused(
            f"anchor {str(place)!r} cannot be read, so no ledger can be checked against it: nothing is released."
        ) from None


def _place(folder: Path, first: str) -> Path:
    return folder / f"{first[:32]}.json"


def _identity(ledger: Path) -> dict[str, object]:
    """Which file it is. Not its device: that number may be another one after every reboot."""
    return {"path": str(ledger), "inode": ledger.stat().st_ino}


def _advice(ledger: Path, finding: str) -> str:
    return (
        f"ledger {str(ledger)!r} {finding}: two copies of one budget could both be spent. "
        "If you moved it here and no other copy is in use, run: nbafl ledger adopt PATH"
    )
