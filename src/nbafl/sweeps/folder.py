"""The folder of a sweep.

    sweep.json   the grid: what was asked for
    runs/NAME/   one run folder each, as `nbafl run` leaves it
    table.csv    a row a run;  table.json: the same, and a summary over seeds
    index.html   the page, with its pictures

A finished run is kept, a damaged one is made again, one that was interrupted goes on from its last round.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from nbafl.durable import write_text
from nbafl.errors import DataError, NbaflError, UsageError
from nbafl.run import Run
from nbafl.sweeps.grid import Grid, Point


class SweepFolder:
    """Where a sweep is kept."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    def run(self, point: Point) -> Path:
        return self.runs / point.name

    def open(self, grid: Grid) -> None:
        """Begin the sweep, or go on with the same one; another one in this folder is left alone."""
        begun = self.runs.is_dir() and any(self.runs.iterdir())
        if (self.path / "sweep.json").exists() and begun:
            if self.grid() != grid.to_dict():
                raise UsageError(
                    "out", str(self.path), "a new folder: it holds a sweep of other fields or seeds"
                )
            return
        if begun or (self.path.exists() and not (self.path.is_dir() and _unused(self.path))):
            raise UsageError("out", str(self.path), "a new or empty folder, or one with the same sweep")
        self.runs.mkdir(parents=True, exist_ok=True)
        write_text(self.path / "sweep.json", json.dumps(grid.to_dict(), indent=2) + "\n")

    def grid(self) -> dict[str, Any]:
        """What was asked for, as it was written down."""
        place = self.path / "sweep.json"
        try:
            return json.loads(place.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DataError(f"{str(self.path)!r} is not a sweep folder: it holds no sweep.json.") from None
        except ValueError:
            raise DataError(f"{str(place)!r} is damaged: it is not valid JSON.") from None

    def finished(self, point: Point) -> bool:
        """Whether this run is there whole."""
        return finished(self.run(point))


def _unused(path: Path) -> bool:
    """Whether nothing is in a folder but a sweep that never began."""
    return {each.name for each in path.iterdir()} <= {"sweep.json", "runs"}


def finished(path: Path) -> bool:
    """Whether a run is there whole; what is damaged is cleared away, so that it can be made again."""
    if not path.exists():
        return False
    try:
        if is_whole(path):
            return True
        if resumable(path):
            return False
    except (NbaflError, OSError, ValueError, KeyError, TypeError):
        pass
    shutil.rmtree(path)
    return False


def is_whole(path: Path) -> bool:
    """All rounds, and the model that the statement vouches for."""
    run = Run.load(path)
    if not run.finished or run.rounds_done != run.plan.rounds:
        return False
    content = (path / "model.safetensors").read_bytes()
    if run.privacy["model_digest"] != hashlib.sha256(content).hexdigest():
        raise DataError(f"{str(path)!r} is damaged: its model is not the one of its statement.")
    return True


def resumable(path: Path) -> bool:
    """Whether a run that was interrupted can go on."""
    run = Run.load(path)
    return not run.finished and (path / "checkpoint" / "state.safetensors").is_file()
