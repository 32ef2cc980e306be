"""Notice when a ledger was rolled back, copied or replaced: a note about its last row, kept elsewhere.

The anchor of a ledger lies in a folder of its own (NBAFL_ANCHORS, or ~/.nbafl/anchors) under the hash of the
ledger's first row, which holds random bytes. It names the last row seen and the file it was seen in. A ledger
restored from a backup has fewer rows than its anchor, a rewritten one has another hash there, a copy lies in
another file, and a new one stands where another one was. The anchor is written after the ledger, so after a
crash it may lag behind; it never runs ahead.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from nbafl.durable import write_text
from nbafl.errors import Refused


class Chained(Protocol):
    """A row of a ledger, as far as an anchor looks at it."""

    @property
    def number(self) -> int: ...
    @property
    def hash(self) -> str: ...


def default_folder() -> Path:
    """Where anchors lie unless the caller says otherwise."""
    return Path(os.environ.get("NBAFL_ANCHORS") or Path.home() / ".nbafl" / "anchors")


def check(folder: Path, ledger: Path, rows: Sequence[Chained], moved: bool = False) -> None:
    """Refuse a ledger that its anchor does not know; `moved` allows another place, never another past."""
    place = _place(folder, rows)
    if not place.is_file():
        _check_nothing_was_here(folder, ledger)
        if len(rows) > 1 and not moved:
            raise Refused(_advice(ledger, f"is not known on this machine ({str(place)!r} is missing)"))
        return
    seen = _read(place)
    if len(rows) <= seen["number"] or rows[seen["number"]].hash != seen["hash"]:
        raise Refused(
            f"ledger {str(ledger)!r} was rolled back or rewritten: it held row {seen['number']} "
            f"({seen['hash'][:12]}) before and does not now. Nothing more is released from it."
        )
    if not moved and seen["file"] != _identity(ledger):
        raise Refused(_advice(ledger, f"is a copy of {seen['file']['path']!r}"))


def write(folder: Path, ledger: Path, rows: Sequence[Chained]) -> None:
    """Note the last row; an anchor never goes back, however many processes write it."""
    try:
        _write(folder, ledger, rows)
    except OSError as error:
        raise Refused(
            f"the anchors in {str(folder)!r} cannot be written ({error.strerror}): nothing is released."
        ) from None


def _write(folder: Path, ledger: Path, rows: Sequence[Chained]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    place = _place(folder, rows)
    with open(folder / "lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if place.is_file() and _read(place)["number"] >= rows[-1].number:
            return
        note = {"number": rows[-1].number, "hash": rows[-1].hash, "file": _identity(ledger)}
        write_text(place, json.dumps(note) + "\n")


def _check_nothing_was_here(folder: Path, ledger: Path) -> None:
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


def _place(folder: Path, rows: Sequence[Chained]) -> Path:
    return folder / f"{rows[0].hash[:32]}.json"


def _identity(ledger: Path) -> dict[str, object]:
    """Which file it is. Not its device: that number may be another one after every reboot."""
    return {"path": str(ledger), "inode": ledger.stat().st_ino}


def _advice(ledger: Path, finding: str) -> str:
    return (
        f"ledger {str(ledger)!r} {finding}: two copies of one budget could both be spent. "
        "If you moved it here and no other copy is in use, run: nbafl ledger adopt PATH"
    )
