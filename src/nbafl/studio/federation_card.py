"""A live federation, read from the folder that `nbafl serve` keeps: what its operator would ask first.

Nothing here writes. Who is connected is told; who was drawn, answered or refused in a round is not, because under a
secret draw the guarantee may rest on that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nbafl.errors import NbaflError
from nbafl.flower import status
from nbafl.flower.roster import Roster
from nbafl.folders.homes import HomeFolder
from nbafl.plan import Plan
from nbafl.privacy.scope import Scope
from nbafl.studio.wording import duration, escape, listed, short

NAMED = 30
IDLE = ("waiting", "checking", "paused")
"""Phases that are no part of a round."""


def draw(home: Path) -> str:
    """The card's content as HTML."""
    try:
        found, plan = status.read(home), Plan.from_toml(HomeFolder(home).plan_file)
    except (NbaflError, OSError, KeyError, TypeError) as error:
        return f'<p class="notice error">{escape(error)}</p>'
    if "phase" not in found:
        return '<p class="soft">The federation is prepared; its server has not been started yet.</p>'
    try:
        return f'<div class="facts">{"".join(_facts(found, plan))}</div>{_people(found, home)}{_privacy(found, plan)}'
    except (KeyError, TypeError, AttributeError):
        return '<p class="notice error">Its status file is not one of this release.</p>'


def _facts(found: dict[str, Any], plan: Plan) -> list[str]:
    done = found["rounds_done"]
    spent = sum(seconds for phase, seconds in found["seconds"].items() if phase not in IDLE)
    missing = sum(found["refusals"].values())
    asked = f", asked to {found['asked']}" if found["asked"] else ""
    scope = Scope.of(plan)
    return [
        _fact(found["state"], f"{found['phase']}{asked}"),
        _fact(f"{done} / {found['rounds']}", "rounds"),
        _fact(f"{len(found['online'])} / {found['clients']}", _lately(found, "clients connected")),
        _fact(_pace(spent / done) if done else "–", "a round, on average, waiting not counted"),
        _fact(str(missing), f"uploads missing: {_reasons(found['refusals'])}"),
        _fact(
            _left(found, plan),
            f"of ε {short(plan.epsilon)} left, δ {short(plan.delta)}, {scope.adversary}, per {scope.whom}{scope.premise}",
        ),
    ]


def _lately(found: dict[str, Any], label: str) -> str:
    """Of a server that is gone the last word is known, and nothing about now."""
    return label if found["state"] == "running" else f"{label} when it last wrote"


def _left(found: dict[str, Any], plan: Plan) -> str:
    spent = found["privacy"]["epsilon"]
    return "not known" if spent is None else f"{max(0.0, 1 - spent / plan.epsilon):.0%}"


def _pace(seconds: float) -> str:
    return duration(seconds) if seconds >= 1 else f"{short(seconds, 2)} s"


def _reasons(refusals: dict[str, int]) -> str:
    return listed([f"{count} {reason}" for reason, count in sorted(refusals.items())]) if refusals else "none"


def _people(found: dict[str, Any], home: Path) -> str:
    """Names of those connected and of those who are not."""
    try:
        names = [member.name for member in Roster.load(HomeFolder(home).roster_file).members]
    except (NbaflError, OSError):
        names = []
    away = [name for name in names if name not in found["online"]]
    rows = [
        (_lately(found, "Connected"), found["online"]),
        (_lately(found, "Not connected"), away),
        ("Revoked", found["revoked"]),
    ]
    return "".join(f"<p><b>{label}:</b> {escape(_some(each))}</p>" for label, each in rows if each)


def _some(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _privacy(found: dict[str, Any], plan: Plan) -> str:
    told, scope = found["privacy"], Scope.from_dict(found["privacy"])
    spent = "not known yet" if told["epsilon"] is None else f"ε = {short(told['epsilon'])}"
    rests = "".join(f"<li>{escape(each)}</li>" for each in told["assumptions"])
    return (
        f"<p>Spent so far: {spent} at δ = {short(scope.delta)} per {escape(scope.whom)} against "
        f"{escape(scope.adversary)}, of ε = {short(plan.epsilon)} claimed{escape(scope.premise)}.</p>"
        f'<details class="soft"><summary>What it rests on</summary><ul>{rests}</ul></details>'
    )


def _fact(value: str, label: str) -> str:
    return f'<div class="fact"><b>{escape(value)}</b><small>{escape(label)}</small></div>'
