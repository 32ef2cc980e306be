"""What `nbafl audit` leaves: audit.json and plan.toml, beside the pictures; in a folder of its own or in a run's.

The plan of a folder is never replaced: what a run promised is its plan.toml, and an audit there is about that plan.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from nbafl.durable import check_folder, write_text
from nbafl.errors import UsageError
from nbafl.folders import files
from nbafl.folders.runs import METRICS, MODEL, PLAN, PRIVACY
from nbafl.plan import Plan

AUDIT = "audit.json"
AUDIT_REPORT = "audit.html"
OF_A_RUN = (MODEL, METRICS, PRIVACY, "checkpoint")
PICTURES = {
    "reconstruction.png": "A record read back from one upload: without noise and with it",
    "membership.png": "Was this digit among the client's records? The scores of a guess, without noise and with it",
    "scores.png": "The attack's scores in both worlds, beside the distance that the claim allows",
}


def folder_of(out: str | Path | None) -> Path:
    """Where an audit goes: the folder asked for, or a new one under runs/."""
    folder = Path(out) if out else Path("runs") / f"audit-{datetime.now():%Y%m%d-%H%M%S-%f}"
    check_folder("out", folder)
    return folder


def check_place(folder: Path, plan: Plan) -> None:
    """Refuse a folder of something else: of another plan, or of a run whose plan is lost."""
    kept = (folder / PLAN).exists()
    if kept and Plan.from_toml(folder / PLAN).digest() == plan.digest():
        return
    if kept or any((folder / name).exists() for name in OF_A_RUN):
        allowed = "a folder without another plan in it (to audit the plan of a run there: --config DIR/plan.toml --out DIR)"
        raise UsageError("out", str(folder), allowed)


def write(folder: Path, plan: Plan, found: dict[str, Any]) -> None:
    """Keep what was found (as `nbafl audit --json` prints it) about a plan, beside that plan."""
    check_place(folder, plan)
    folder.mkdir(parents=True, exist_ok=True)
    files.write_json(folder / AUDIT, found)
    if not (folder / PLAN).exists():
        write_text(folder / PLAN, plan.to_toml())


def stands_alone(folder: Path) -> bool:
    """Whether a folder holds an audit and no run, begun or finished."""
    return (folder / AUDIT).is_file() and not any((folder / name).exists() for name in OF_A_RUN)


def read(folder: Path) -> dict[str, Any] | None:
    """What was found; None where there is no audit."""
    return files.read_object(folder / AUDIT)
