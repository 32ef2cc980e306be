"""What an operator may do to a running federation: revoke a client, pause, go on, drain.

One small file beside the roster, HOME/operations.json, holds it. The server looks at it between rounds, so nothing has
to be restarted; the roster itself stays as it was agreed. A revoked client is absent for the rest of the run: to let
somebody else in its place means a new roster and a new run.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nbafl.durable import write_text
from nbafl.errors import DataError, NbaflError
from nbafl.flower.roster import Roster

if TYPE_CHECKING:
    from nbafl.flower.server import Server

log = logging.getLogger("nbafl")

FILE = "operations.json"


LOOK = 0.5
"""Seconds between two looks at the file while the federation is paused."""


class Drained(NbaflError):
    """The operator asked the server to stop between two rounds; the run is not finished."""

    exit_code = 0


@dataclass(frozen=True)
class Operations:
    """What is asked of the server."""

    revoked: tuple[str, ...] = ()
    paused: bool = False
    drain: bool = False
    """Stop after the round that is under way; started again, the run goes on."""
    goodbye: bool = False
    """Every client was told that the run is finished."""

    @classmethod
    def read(cls, home: Path) -> Operations:
        """What the file says; nothing is asked where there is none."""
        place = home / FILE
        if not place.is_file():
            return cls()
        try:
            content = json.loads(place.read_text(encoding="utf-8"))
            found = cls(**{**content, "revoked": tuple(content["revoked"])})
        except (OSError, ValueError, TypeError, KeyError):
            raise DataError(
                f"{str(place)!r} was not written by nbafl; remove it to continue without it."
            ) from None
        if not all(isinstance(name, str) for name in found.revoked):
            raise DataError(f"{str(place)!r} was not written by nbafl; remove it to continue without it.")
        return found

    def write(self, home: Path) -> None:
        write_text(home / FILE, json.dumps(asdict(self), indent=2) + "\n")


def change(home: Path, **values: object) -> Operations:
    """Ask for something else than before."""
    changed = replace(Operations.read(home), **values)  # type: ignore[arg-type]
    changed.write(home)
    return changed


def revoke(home: Path, name: str) -> Operations:
    """From the next round on this client is absent."""
    Roster.load(home / "roster.toml").named(name)
    known = Operations.read(home).revoked
    return change(home, revoked=(*known, name) if name not in known else known)


def obey(home: Path, roster: Roster) -> Callable[[Server], None]:
    """What the server does between two rounds: look at the file, and do what it says."""

    def between_rounds(server: Server) -> None:
        asked = Operations.read(home)
        said = False
        while asked.paused and not asked.drain:
            if not said:
                log.info("paused before round %d.", server.round + 1)
            said = True
            with server.progress.during("paused"):
                time.sleep(LOOK)
            asked = Operations.read(home)
        if asked.drain:
            change(home, drain=False)
            raise Drained(f"stopped after round {server.round}, as asked; start it again to go on.")
        if server.hub.renew():
            log.info("the renewed certificate is in use.")
        for member in roster.members:
            if member.name in asked.revoked and member.index not in server.strategy.gone:
                log.warning("client %s is revoked.", member.name)
                server.hub.postbox.revoke(member.number)
                server.strategy.gone[member.index] = "it was revoked."

    return between_rounds
