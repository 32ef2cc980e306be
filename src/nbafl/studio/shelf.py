"""The run folders on disk, as the Runs page lists them; `nbafl audit` leaves folders of its own among them.

A look at the shelf reads only what changed since the last look (by time and size of each file), and of a run's
metrics only the last line; whole curves are read for the runs somebody wants to see. A folder that is damaged or
half-written becomes an entry that says so; it never breaks the list.
"""

from __future__ import annotations

import json
import math
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from threading import Lock
from typing import Any, Literal

from nbafl.errors import DataError, NbaflError
from nbafl.plan import Plan
from nbafl.run import Run

State = Literal["running", "finished", "stopped", "damaged", "audit"]
Line = dict[str, Any]
Signature = tuple[tuple[int, int] | None, ...]

WATCHED = ("plan.toml", "metrics.jsonl", "model.safetensors", "privacy.json", "audit.json", "report.html")
TAIL = 16_384
RECENT_ROUNDS = 10


@dataclass(frozen=True)
class Entry:
    """One run folder at a glance."""

    name: str
    path: Path
    state: State
    changed: float
    plan: Plan | None = None
    rounds_done: int = 0
    last: Line | None = None
    seconds_per_round: float | None = None
    has_report: bool = False
    has_audit: bool = False
    problem: str | None = None
    kept: bool | None = None
    """Whether the noise is worth what the plan claims; unknown until the run has its privacy statement."""
    epsilon: float | None = None
    """What it is worth, against the plan's adversary at the plan's δ."""

    @property
    def seconds_left(self) -> float | None:
        """How long the remaining rounds will take if they go on as the last ones did."""
        if self.state != "running" or self.plan is None or self.seconds_per_round is None:
            return None
        return (self.plan.rounds - self.rounds_done) * self.seconds_per_round


class Shelf:
    """All run folders below one folder, remembered between looks."""

    def __init__(self, root: str | Path, apart: Path | None = None) -> None:
        self.root = Path(root)
        self.apart = apart
        """A folder below the root that holds no run: the figures of `nbafl reproduce`."""
        self._turn = Lock()  # several pages look from several threads
        self._entries: dict[str, tuple[Signature, Entry]] = {}
        self._curves: dict[str, tuple[tuple[int, int] | None, list[Line]]] = {}

    def look(self) -> list[Entry]:
        """Every run folder, newest first."""
        with self._turn:
            found = [self._look_at(name) for name in self._names()]
            self._forget({entry.name for entry in found})
        return sorted(found, key=lambda entry: (entry.state == "running", entry.changed), reverse=True)

    def find(self, name: str) -> Entry | None:
        """The run of that name; names that would leave the shelf are not found."""
        with self._turn:
            return self._look_at(name) if name in self._names() else None

    def curve(self, name: str) -> list[Line]:
        """All whole lines of a run's metrics; those before a damaged line when there is one."""
        path = self.root / name / "metrics.jsonl"
        signature = _signature(path)
        known = self._curves.get(name)
        if known is None or known[0] != signature:
            known = signature, _readable_lines(path)
            self._curves[name] = known
        return known[1]

    def privacy(self, name: str) -> dict[str, Any] | None:
        """The privacy statement of a finished run."""
        return _read_json(self.root / name / "privacy.json")

    def audit(self, name: str) -> dict[str, Any] | None:
        """What `nbafl audit` found about a run: in its own folder, or in the newest audit of the very same plan."""
        own = _read_json(self.root / name / "audit.json")
        if own is not None:
            return own
        with self._turn:
            known = {entry.name: entry for _, entry in self._entries.values()}
        plan = known[name].plan if name in known else None
        audits = [entry for entry in known.values() if entry.state == "audit" and entry.plan == plan]
        newest = max(audits, key=lambda entry: entry.changed, default=None)
        return _read_json(newest.path / "audit.json") if newest else None

    def _names(self) -> list[str]:
        try:
            with os.scandir(self.root) as folders:
                return [each.name for each in folders if each.is_dir() and self._may_be_a_run(each.name)]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _may_be_a_run(self, name: str) -> bool:
        return not name.startswith(".") and self.root / name != self.apart

    def _look_at(self, name: str) -> Entry:
        path = self.root / name
        signature = tuple(_signature(path / file) for file in WATCHED)
        known = self._entries.get(name)
        if known is None or known[0] != signature:
            known = signature, _read(path)
            self._entries[name] = known
        entry = known[1]
        if entry.state != "stopped" or entry.plan is None:
            return entry
        return replace(entry, state="running") if _active(path, entry.plan) else entry

    def _forget(self, present: set[str]) -> None:
        for gone in self._entries.keys() - present:
            self._entries.pop(gone)
            self._curves.pop(gone, None)


def _active(path: Path, plan: Plan) -> bool:
    """Whether some process works on the folder; one that is being deleted, or that nobody may read, has none."""
    try:
        return Run(path, plan).active
    except OSError:
        return False


def _read(path: Path) -> Entry:
    """The entry as if nobody were working on the folder; `stopped` may turn out to be `running`."""
    changed = _changed(path)
    try:
        run = Run.load(path)
        last, recent = _last_lines(path / "metrics.jsonl")
        rounds_done = int(last["round"]) if last else 0
        privacy = (_read_json(path / "privacy.json") if run.finished else None) or {}
        audited = (path / "audit.json").is_file()
    except NbaflError as error:
        return Entry(path.name, path, "damaged", changed, problem=str(error))
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Entry(path.name, path, "damaged", changed, problem=f"The folder cannot be read ({error}).")
    return Entry(
        name=path.name,
        path=path,
        state="finished" if run.finished else "audit" if audited and last is None else "stopped",
        changed=changed,
        plan=run.plan,
        rounds_done=rounds_done,
        last=last,
        seconds_per_round=median(recent) if recent else None,
        has_report=(path / "report.html").is_file(),
        has_audit=audited,
        kept=privacy.get("delivers_claim"),
        epsilon=privacy.get("epsilon"),
    )


def _last_lines(path: Path) -> tuple[Line | None, list[float]]:
    """The last whole line with the newest value of everything measured, and what recent rounds took."""
    lines = [_parsed(line, path) for line in _tail(path)]
    if not lines:
        return None, []
    newest: Line = {}
    for line in lines:
        newest.update({name: value for name, value in line.items() if value is not None})
    return newest, [float(line["seconds"]) for line in lines[-RECENT_ROUNDS:]]


def _tail(path: Path) -> list[bytes]:
    """The last whole lines; one that is being written (no newline yet) is left out, and so is one cut by the window."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL))
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return []
    whole = lines[:-1] if size <= TAIL else lines[1:-1]
    return [line for line in whole if line.strip()]


def _parsed(line: bytes, path: Path) -> Line:
    try:
        parsed = json.loads(line)
    except ValueError:
        raise DataError(
            f"{path.name} of {path.parent.name!r} is damaged: a line in it is not JSON."
        ) from None
    if not isinstance(parsed, dict) or "round" not in parsed or "seconds" not in parsed:
        raise DataError(
            f"{path.name} of {path.parent.name!r} is damaged: a line in it is not a round's metrics."
        )
    return {name: None if _endless(value) else value for name, value in parsed.items()}


def _endless(value: object) -> bool:
    """A loss that has run away to infinity or NaN is shown as missing."""
    return isinstance(value, float) and not math.isfinite(value)


def _readable_lines(path: Path) -> list[Line]:
    """The metrics up to the first line that cannot be read."""
    lines: list[Line] = []
    with suppress(DataError):
        for raw in (_content(path) or b"").split(b"\n")[:-1]:
            lines.append(_parsed(raw, path))
    return lines


def _read_json(path: Path) -> dict[str, Any] | None:
    raw = _content(path)
    if raw is None:
        return None
    try:
        content = json.loads(raw)
    except ValueError:
        raise DataError(f"{path.name} of {path.parent.name!r} is damaged: it is not JSON.") from None
    if not isinstance(content, dict):
        raise DataError(f"{path.name} of {path.parent.name!r} is damaged: it is not a JSON object.")
    return content


def _content(path: Path) -> bytes | None:
    """A file's bytes; None where there is none, also when its folder was deleted a moment ago."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{path.name} of {path.parent.name!r} cannot be read: {error.strerror}.") from None


def _signature(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _changed(path: Path) -> float:
    """When something in the folder last changed; the beginning of time for one that was deleted under our eyes."""
    times = [_signature(path / name) for name in WATCHED]
    known = [time[0] for time in times if time] or [time[0] for time in (_signature(path),) if time]
    return max(known, default=0) / 1e9
