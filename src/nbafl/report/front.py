"""The five plain lines at the top of a report: who, which data, protected against whom, how strongly, where and when."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbafl.folders.facts import FROM_PYTHON, OF_CLIENTS, Facts
from nbafl.privacy import badges
from nbafl.privacy.scope import Scope
from nbafl.privacy.units import Account
from nbafl.tasks import classes_of

if TYPE_CHECKING:
    from nbafl.plan import Plan

NAMED = 6
COLUMNS = 12
PROTECTED = {
    Account.RECORD: "each single record (one row) of each client",
    Account.PERSON: "each person of each client, with all of their rows there",
    Account.CLIENT: "each client with all of its records",
    Account.CLIENT_DROP: "the presence of each client's data, all of its records together",
}
UNPROVED = "as long as an unproved premise about what clients upload holds"


def five_lines(plan: Plan, facts: Facts | None, statement: dict[str, Any]) -> list[tuple[str, str]]:
    """Label and sentence of each line; no symbol but ε."""
    return [
        ("Who", _who(plan, facts)),
        ("Data", _data(plan, facts)),
        ("Protected", _protected(plan, statement)),
        ("How strongly", _how_strongly(statement)),
        ("Where and when", _where(facts)),
    ]


def _who(plan: Plan, facts: Facts | None) -> str:
    names = () if facts is None else facts.clients
    records = int(plan.client_sizes.sum())
    count = plan.clients
    numbered = not names or all(name.startswith("client ") for name in names)
    named = "" if numbered else f" ({', '.join(names[:NAMED])}{' …' if count > NAMED else ''})"
    units = plan.counted if plan.person is None else f"{plan.counted}, counted at each client"
    return f"{count:,} client{'s' if count != 1 else ''}{named} trained one model together on {records:,} {units}."


def _data(plan: Plan, facts: Facts | None) -> str:
    if facts is None:
        return f"{plan.dataset}."
    known = {
        "mnist": "Handwritten digits (MNIST)",
        FROM_PYTHON: "Data given from Python",
        OF_CLIENTS: "The clients' own tables",
    }
    named = known.get(facts.data, f"Tables of {Path(facts.data).name or 'one folder'}")
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


def _protected(plan: Plan, statement: dict[str, Any]) -> str:
    what = PROTECTED[Account.of(statement["unit"], statement["adjacency"])]
    if statement["epsilon"] is None:
        return f"Nothing: no noise protects {what} against {statement['adversary']['name']}."
    unproved = () if statement["sensitivity"]["verified"] else (UNPROVED,)
    conditions = "".join(f", {each}" for each in (*unproved, *Scope.of(plan).provided))
    return f"{what[0].upper()}{what[1:]}, against someone who sees {_plainly(statement)}{conditions}."


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
    premise = "" if statement["sensitivity"]["verified"] else ", if an unproved premise holds (see below)"
    return (
        f"{grade} (ε = {statement['epsilon']:.3g}{premise}): asked {_question(statement)}, the best guess "
        f"can be right {badges.percent(guess)} of the time; a coin, 50%."
    )


def _question(statement: dict[str, Any]) -> str:
    """What the best guess is about: neighbours differ by whose data they hold, or by whether those are there."""
    if statement["adjacency"] == "drop":
        return f"whether a {statement['unit']}'s data were there"
    return f"which of two possible {statement['unit']}s was used"


def _where(facts: Facts | None) -> str:
    if facts is None:
        return "On one machine or several; this folder does not say."
    when = f"{date.fromisoformat(facts.started):%-d %B %Y}"
    if facts.where == "federation":
        return f"A federation of real parties, begun on {when}; no record left its owner."
    return f"A simulation on one machine, begun on {when}: for its owner to look at, not for giving the model away."
