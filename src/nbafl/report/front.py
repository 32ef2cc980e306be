"""The five plain lines at the top of a report: who, which data, protected against whom, how strongly, where and when."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbafl.folders.facts import FROM_PYTHON, OF_CLIENTS, Facts
from nbafl.privacy import badges
from nbafl.tasks import classes_of

if TYPE_CHECKING:
    from nbafl.plan import Plan

NAMED = 6
COLUMNS = 12
UNITS = {
    "record": "each single record (one row) of each client",
    "person": "each person with all of their rows",
    "client": "each client with all of its records",
}


def five_lines(plan: Plan, facts: Facts | None, statement: dict[str, Any]) -> list[tuple[str, str]]:
    """Label and sentence of each line; no symbol but ε."""
    return [
        ("Who", _who(plan, facts)),
        ("Data", _data(plan, facts)),
        ("Protected", _protected(statement)),
        ("How strongly", _how_strongly(statement)),
        ("Where and when", _where(facts)),
    ]


def _who(plan: Plan, facts: Facts | None) -> str:
    names = () if facts is None else facts.clients
    records = int(plan.client_sizes.sum())
    count = plan.clients
    numbered = not names or all(name.startswith("client ") for name in names)
    named = "" if numbered else f" ({', '.join(names[:NAMED])}{' …' if count > NAMED else ''})"
    unit = "records" if plan.rule.unit == "client" else f"{_unit_word(plan)}s"
    return f"{count:,} client{'s' if count != 1 else ''}{named} trained one model together on {records:,} {unit}."


def _unit_word(plan: Plan) -> str:
    unit = plan.sensitivity_of().unit
    return "record" if unit == "client" else unit


def _data(plan: Plan, facts: Facts | None) -> str:
    if facts is None:
        return f"{plan.dataset}."
    known = {
        "mnist": "Handwritten digits (MNIST)",
        FROM_PYTHON: "Data given from Python",
        OF_CLIENTS: "The clients' own tables",
    }
    named = known.get(facts.data, f"Tables of {Path(facts.data).name}")
    count = classes_of(facts.task, facts.outputs)
    what = f"{count} classes" if count else "a number"
    if facts.classes is not None and len(facts.classes) <= NAMED:
        what = ", ".join(facts.classes)
    if not facts.columns:
        return f"{named}; the model learns to tell {what}."
    shown = ", ".join(facts.columns[:COLUMNS]) + (
        f" and {len(facts.columns) - COLUMNS} more" if len(facts.columns) > COLUMNS else ""
    )
    return f"{named}; from the columns {shown} the model learns to tell {facts.target} ({what})."


def _protected(statement: dict[str, Any]) -> str:
    unit = UNITS.get(statement["unit"], f"each {statement['unit']}")
    if statement["epsilon"] is None:
        return f"Nothing: no noise protects {unit} against {statement['adversary']['name']}."
    return f"{unit[0].upper()}{unit[1:]}, against someone who sees {_plainly(statement)}."


def _plainly(statement: dict[str, Any]) -> str:
    """What the adversary sees without the symbols of the mathematics."""
    mechanism = statement["mechanism"]
    exposures, everyone = mechanism["exposures"], mechanism["per_round"] == mechanism["clients"]
    taps = f"{exposures} upload{'s' if exposures != 1 else ''}"
    rounds = f"{exposures} further round{'s' if exposures != 1 else ''}"
    name, _, count = statement["adversary"]["name"].partition(":")
    masked = ""
    if mechanism["aggregation"] == "secure":
        masked = f"; uploads are masked, and only sums of at least {mechanism['min_answers']} of them open"
    told = {
        "broadcast": "every model that is sent out",
        "targeted": f"every model that is sent out and {taps} of one client",
        # With everyone in every round the dearest taps of each client are these; else others' lie in more rounds.
        "eavesdropper": f"every model that is sent out and up to {taps} of each client"
        if everyone
        else f"every model that is sent out, up to {taps} of one client, and the others' uploads in up to {rounds}",
        "eavesdropper-spread": f"every model that is sent out and up to {taps} of each client, at times of its choice",
        "curious-server": "every upload, such as the server itself",
        "colluders": f"every model that is sent out, with the help of {count or 'some'} of the clients",
    }.get(name, statement["adversary"]["sees"])
    return told + masked


def _how_strongly(statement: dict[str, Any]) -> str:
    guess = statement.get("best_guess")
    if statement["epsilon"] is None or guess is None:
        return "Not at all: an adversary who sees that much may learn everything."
    grade = badges.strength(guess).word.capitalize()
    unit = statement["unit"]
    premise = "" if statement["sensitivity"]["verified"] else ", if an unproved premise holds (see below)"
    return (
        f"{grade} (ε = {statement['epsilon']:.3g}{premise}): asked which of two possible {unit}s was used, the best guess "
        f"is right {100 * guess:.1f}% of the time; a coin, 50%."
    )


def _where(facts: Facts | None) -> str:
    if facts is None:
        return "On one machine or several; this folder does not say."
    when = f"{date.fromisoformat(facts.started):%-d %B %Y}"
    if facts.where == "federation":
        return f"A federation of real parties, begun on {when}; no record left its owner."
    return f"A simulation on one machine, begun on {when}: for its owner to look at, not for giving the model away."
