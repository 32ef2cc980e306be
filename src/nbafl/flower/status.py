"""How a federation is, from the folder its server keeps: for `nbafl status` and for the studio.

It reads and never writes, and it knows totals and who is connected, never who was drawn, answered or refused in a round.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from nbafl.errors import DataError, UsageError
from nbafl.flower import processes
from nbafl.flower.operations import Operations
from nbafl.folders.homes import HomeFolder

STALE = 15.0
"""Seconds after which a server of another machine that wrote nothing counts as gone: it writes every two."""


def read(home: Path) -> dict[str, Any]:
    """Everything known of a federation from its folder."""
    folder = HomeFolder(home)
    if not folder.plan_file.is_file():
        raise UsageError("home", str(home), "the folder of a federation (nbafl serve --prepare makes one)")
    asked = Operations.read(home)
    found: dict[str, Any] = {"home": str(home), "state": "prepared", "revoked": list(asked.revoked)}
    found["asked"] = "drain" if asked.drain else "pause" if asked.paused else None
    if folder.status_file.is_file():
        try:
            found |= json.loads(folder.status_file.read_text(encoding="utf-8"))
        except ValueError:
            raise DataError(f"{str(folder.status_file)!r} is not a status file.") from None
        privacy = found.get("privacy")
        if not isinstance(privacy, dict) or "adjacency" not in privacy:
            raise DataError(f"{str(folder.status_file)!r} was written by another release of nbafl.")
        found["state"] = _state(found)
    certificate = folder.certificate_folder / "server.crt"
    if certificate.is_file():
        from nbafl.flower.certificates import expiry

        found["certificate_expires"] = expiry(certificate).timestamp()
    return found


def _state(found: dict[str, Any]) -> str:
    if found["phase"] in ("finished", "stopped"):
        return str(found["phase"])
    here = processes.alive(found["pid"], found.get("process", ""))
    fresh = time.time() - found["time"] < STALE
    return "running" if (fresh if here is None else here) else "not running"
