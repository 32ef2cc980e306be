"""The run folders on disk, as the Runs page lists them; `nbafl audit` leaves folders of its own among them.

A look at the run_folders reads only what changed since the last look (by time and size of each file), and of a run's
metrics only the last line; whole curves are read for the runs somebody wants to see. A folder that is damaged or
half-written becomes an entry that says so; it never breaks the list.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from threading import Lock
from typing import Any, Literal

from nbafl.errors import DataError, NbaflError
from nbafl.folders import audits, files, labels, runs
from nbafl.folders.files import Line
from nbafl.folders.homes import is_home
from nbafl.folders.labels import Label
from nbafl.folders.runs import RunFolder
from nbafl.plan import Plan

State = Literal["running", "finished", "stopped", "damaged", "audit", "sweep", "federation"]
Signature = tuple[tuple[int, int] | None, ...]
SWEEP, TABLE = "sweep.json", "table.json"
"""What `nbafl sweep` leaves in its folder: what was asked for, and what was found."""

WATCHED = (
    runs.PLAN, runs.METRICS, runs.MODEL, runs.PRIVACY, runs.REPORT, audits.AUDIT, labels.FILE, SWEEP, TABLE,
)  # fmt: skip
MARKS = (runs.PLAN, "checkpoint", *WATCHED[1:6], SWEEP)
"""Any of these makes a folder a run's, whole or damaged."""
DEPTH = 4
"""How deep below the folder of runs another one is looked for."""
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
    guess: float | None = None
    """How often the best guess about one unit can be right; known of finished runs."""
    unit: str = ""
    verdict: str = ""
    """Of an audit in this folder."""
    label: Label = field(default_factory=Label)
    made: dict[str, Any] | None = None
    """Of a sweep: its table."""

    @property
    def seconds_left(self) -> float | None:
        """How long the remaining rounds will take if they go on as the last ones did."""
        if self.state != "running" or self.plan is None or self.seconds_per_round is None:
            return None
        return (self.plan.rounds - self.rounds_done) * self.seconds_per_round

    @property
    def duration(self) -> float | None:
        """Seconds that its rounds took, as far as the last ones tell."""
        return None if self.seconds_per_round is None else self.rounds_done * self.seconds_per_round


class RunFolders:
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
        """The run of that name; names that would leave the run_folders are not found."""
        with self._turn:
            return self._look_at(name) if name in self._names() else None

    def curve(self, name: str) -> list[Line]:
        """All whole lines of a run's metrics; those before a damaged line when there is one."""
        path = self.root / name
        signature = _signature(path / runs.METRICS)
        known = self._curves.get(name)
        if known is None or known[0] != signature:
            known = signature, _curve(path)
            self._curves[name] = known
        return known[1]

    def privacy(self, name: str) -> dict[str, Any] | None:
        """The privacy statement of a finished run."""
        return files.read_object(self.root / name / runs.PRIVACY)

    def audit(self, name: str) -> dict[str, Any] | None:
        """What `nbafl audit` found about a run: in its own folder, or in the newest audit of the very same plan."""
        own = audits.read(self.root / name)
        if own is not None:
            return own
        with self._turn:
            known = {entry.name: entry for _, entry in self._entries.values()}
        plan = known[name].plan if name in known else None
        same_plan = [entry for entry in known.values() if entry.state == "audit" and entry.plan == plan]
        newest = max(same_plan, key=lambda entry: entry.changed, default=None)
        return audits.read(newest.path) if newest else None

    def _names(self) -> list[str]:
        return [str(path.relative_to(self.root)) for path in self._below(self.root, DEPTH)]

    def _below(self, folder: Path, depth: int) -> Iterator[Path]:
        """The run folders in a folder and in its folders; a folder that holds nothing of a run is none."""
        try:
            with os.scandir(folder) as found:
                inside = [
                    Path(each.path) for each in found if not each.name.startswith(".") and each.is_dir()
                ]
        except OSError:
            return
        for path in inside:
            if path == self.apart:
                continue
            if is_home(path):
                yield path
                if (path / "run" / runs.PLAN).is_file():
                    yield path / "run"
            elif any((path / mark).exists() for mark in MARKS):
                yield path
            elif depth > 1:
                yield from self._below(path, depth - 1)

    def _look_at(self, name: str) -> Entry:
        path = self.root / name
        signature = tuple(_signature(path / file) for file in WATCHED)
        known = self._entries.get(name)
        if known is None or known[0] != signature:
            known = signature, _read(path, name)
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
        return RunFolder(path, plan).active
    except OSError:
        return False


def _read(path: Path, name: str) -> Entry:
    """The entry as if nobody were working on the folder; `stopped` may turn out to be `running`."""
    changed, label = _changed(path), labels.read(path)
    if is_home(path):
        return Entry(name, path, "federation", changed, label=label)
    try:
        if (path / SWEEP).is_file():
            made = files.read_object(path / TABLE)
            return Entry(name, path, "sweep", changed, label=label, made=made)
        run = RunFolder.load(path)
        last, seconds = run.newest()
        privacy = run.privacy if run.finished else {}
        audit = _audit(path)
    except NbaflError as error:
        return Entry(name, path, "damaged", changed, label=label, problem=str(error))
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Entry(
            name, path, "damaged", changed, label=label, problem=f"The folder cannot be read ({error})."
        )
    return Entry(
        name=name,
        path=path,
        state="finished" if run.finished else "audit" if audit is not None and last is None else "stopped",
        changed=changed,
        plan=run.plan,
        rounds_done=int(last["round"]) if last else 0,
        last=last,
        seconds_per_round=median(seconds[-RECENT_ROUNDS:]) if seconds else None,
        has_report=(path / runs.REPORT).is_file(),
        has_audit=audit is not None,
        kept=privacy.get("delivers_claim"),
        epsilon=privacy.get("epsilon"),
        guess=privacy.get("best_guess"),
        unit=run.plan.sensitivity_of().unit,
        verdict=str((audit or {}).get("verdict", "")),
        label=label,
    )


def _audit(path: Path) -> dict[str, Any] | None:
    """An audit in the folder; a damaged one says so, and the run is shown all the same."""
    try:
        return audits.read(path)
    except DataError:
        return {"verdict": "damaged"}


def _curve(path: Path) -> list[Line]:
    """The metrics up to the first line that cannot be read."""
    found: list[Line] = []
    with suppress(DataError):
        found.extend(runs.metrics_of(path))
    return found


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
