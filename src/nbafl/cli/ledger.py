"""`nbafl ledger`: read, check and govern the record of what a client has released."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nbafl.cli.lines import say

if TYPE_CHECKING:
    from nbafl.privacy.ledger import Ledger, Limits, Sum
    from nbafl.privacy.units import Account

ledger_app = typer.Typer(
    help="Read, check and govern the record of what a client has released.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
LEDGER_FILE = "ledger.sqlite"
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Where = Annotated[
    Path, typer.Argument(help="The ledger file, or the state folder it lies in.", metavar="PATH")
]


def _open(path: Path, adopt: bool = False) -> Ledger:
    from nbafl.privacy.ledger import Ledger

    return Ledger(path / LEDGER_FILE if path.is_dir() else path, adopt=adopt, must_exist=True)


@ledger_app.command("show")
def show(path: Where, as_json: Json = False) -> None:
    """Say what was released, what it is worth together, and what is left.

    Example: nbafl ledger show ~/.nbafl/north-hospital
    """
    from nbafl.privacy.ledger import as_json as dump
    from nbafl.privacy.ledger import wording
    from nbafl.privacy.ledger.sums import read_limits

    ledger = _open(path)
    content = dump(ledger)
    if as_json:
        print(json.dumps({name: content[name] for name in ("path", "limits", "spent")}, indent=2))
        return
    for row in ledger.rows():
        when = datetime.fromtimestamp(row.time).strftime("%Y-%m-%d %H:%M:%S")
        what = f"round {row.round} of plan {row.plan[:12]}" if row.plan else row.note[:60]
        if row.kind == "limit":
            what = wording.sentence(read_limits(row.note)).removeprefix("limit ")
        say(f"{row.number:5}  {when}  {row.kind:8}  {what}")
    _print_sum(ledger)


def _print_sum(ledger: Ledger) -> None:
    from nbafl.privacy.ledger import wording

    spent = ledger.spent()
    say(f"\n{spent.releases} releases, {spent.resends} resends of stored bytes (free).")
    if spent.releases:
        for each in spent.sums:
            for sentence in _worth(each):
                say(sentence)
    for limit in ledger.limits():
        say(wording.sentence(limit))


def _worth(worth: Sum) -> list[str]:
    """What one account's sum is worth, each epsilon with its unit, adversary, delta and condition."""
    who = f"{worth.unit} ({worth.account.change})"
    if worth.unknown:
        plans = ", ".join(plan[:16] for plan in worth.unknown)
        return [
            f"{who}: no epsilon is known, because nothing bounds the releases of {plans}: they are of 0.1.0 and their "
            "plan is not at hand (nbafl ledger migrate --plan FILE), or noisy scores of a plan that protects a smaller unit."
        ]
    if worth.epsilon is None or worth.epsilon_uploads is None:
        return []
    condition = (
        ", if the premise of the plans' sensitivity holds, which was not checked" if worth.conditional else ""
    )
    from nbafl.privacy.ledger import together

    against = together(worth.adversaries)
    return [
        f"{who}: epsilon {worth.epsilon:.6g} at delta {worth.delta:g} against {against}, as the plans assume it{condition};",
        f"    epsilon {worth.epsilon_uploads:.6g} at delta {worth.delta:g} against the server itself "
        f"(every upload; sums, with the accomplices planned for, where uploads are masked){condition}.",
    ]


@ledger_app.command("export")
def export(
    path: Where,
    out: Annotated[Path | None, typer.Option(help="File to write. [stdout]", metavar="FILE")] = None,
) -> None:
    """Write every row, the limits and the sum as JSON (not the stored uploads).

    Example: nbafl ledger export ~/.nbafl/north-hospital --out ledger.json
    """
    from nbafl.durable import check_file, write_text
    from nbafl.privacy.ledger import as_json

    check_file("out", out)
    content = json.dumps(as_json(_open(path)), indent=2) + "\n"
    if out is None:
        print(content, end="")
    else:
        write_text(out, content)


@ledger_app.command("extract")
def extract(
    path: Where,
    plan: Annotated[Path, typer.Option(help="The plan whose releases are shown.", metavar="FILE")],
    key: Annotated[Path, typer.Option(help="This client's private key file, to sign with.", metavar="FILE")],
    out: Annotated[Path | None, typer.Option(help="File to write. [stdout]", metavar="FILE")] = None,
) -> None:
    """Write a signed extract for the evidence of one federation: rows of other plans as hashes only.

    Take the plan of the handout: an evaluation.toml beside it names the noisy scores that belong to the federation.

    Example: nbafl ledger extract ~/.nbafl/north-hospital --plan plan.toml --key north-hospital --out north.json
    """
    from nbafl.durable import check_file, write_text
    from nbafl.evaluation import FILE, Evaluation
    from nbafl.evidence.extracts import make
    from nbafl.flower.keys import read_signing_key
    from nbafl.plan import Plan

    check_file("out", out)
    beside = plan.parent / FILE
    evaluation = Evaluation.load(beside) if beside.is_file() else None
    content = make(_open(path), Plan.from_toml(plan), key.name, read_signing_key(key), evaluation)
    text = json.dumps(content, indent=2) + "\n"
    if out is None:
        print(text, end="")
    else:
        write_text(out, text)


@ledger_app.command("verify")
def verify(path: Where, as_json: Json = False) -> None:
    """Check the chain of hashes, the stored uploads and the anchor; exit code 1 if anything was changed.

    Example: nbafl ledger verify ~/.nbafl/north-hospital
    """
    ledger = _open(path)
    rows = ledger.verify()
    if as_json:
        print(json.dumps({"path": str(ledger.path), "rows": rows, "whole": True}))
    else:
        print(f"{ledger.path}: {rows} rows, the chain is whole and its anchor agrees.")


@ledger_app.command("adopt", short_help="Declare that this ledger was moved here on purpose.")
def adopt(path: Where) -> None:
    """Declare that this ledger was moved here on purpose and no other copy is in use. The chain records it.

    Example: nbafl ledger adopt /new/place/ledger.sqlite
    """
    ledger = _open(path, adopt=True)
    print(f"{ledger.path}: adopted; row {ledger.rows()[-1].number} says so.")


@ledger_app.command("limit")
def limit(
    path: Where,
    epsilon: Annotated[float, typer.Option(help="Privacy loss allowed over all plans together.")],
    delta: Annotated[float, typer.Option(help="At this delta.")],
    unit: Annotated[
        str | None,
        typer.Option(
            help="What it protects: record, person, client, or any (what a plan protects). [any; to loosen, the only one]"
        ),
    ] = None,
    adjacency: Annotated[
        str, typer.Option(help="replace, or drop for a client that is left out.")
    ] = "replace",
    epsilon_uploads: Annotated[
        float | None,
        typer.Option(
            help="Allowed to the server itself: every upload, or sums where they are masked. [as before, or any]"
        ),
    ] = None,
    max_releases: Annotated[
        int | None, typer.Option(help="Uploads allowed in all. [as before, or any]")
    ] = None,
    loosen: Annotated[
        bool, typer.Option("--loosen", help="Allow a weaker limit than before; the chain keeps the old one.")
    ] = False,
) -> None:
    """Set this client's own limits; without --loosen they only ever get stricter.

    Each unit has a limit of its own, and `join` sets that of the plan's unit. With --loosen and without --unit the limit
    meant is the one that is there; where there are several, --unit says which. Numbers that are not given stay as they are.

    Example: nbafl ledger limit ~/.nbafl/north-hospital --epsilon 8 --delta 1e-5 --unit record
    """
    from nbafl.errors import Refused
    from nbafl.privacy.ledger import wording

    ledger = _open(path)
    with ledger.transaction():
        account = _account_of(ledger, unit, adjacency, loosen)
        limits = {each.account: each for each in ledger.limits()}
        current = limits.pop(account, None)
        wanted = _wanted(current, epsilon, delta, max_releases, account, epsilon_uploads)
        if current is not None and not loosen and wanted.stricter(current) != wanted:
            raise Refused(f"Nothing was changed: {wording.not_applied(path, current, wanted)}")
        say(wording.sentence(ledger.set_limits(wanted, loosen=loosen)))
    for other in limits.values():
        say(f"also in force, as before: {wording.sentence(other)}")


def _account_of(ledger: Ledger, unit: str | None, adjacency: str, loosen: bool) -> Account | None:
    """Which limit is meant; None: the one that binds in the unit of whichever plan asks."""
    from nbafl.errors import UsageError
    from nbafl.privacy.ledger import wording
    from nbafl.privacy.units import Account

    if unit is not None:
        return None if unit == wording.ANY else Account.of(unit, adjacency)
    limits = ledger.limits() if loosen else []
    if len(limits) > 1:
        named = " or ".join(wording.unit_of(each) for each in limits)
        raise UsageError("unit", None, f"given, because this ledger has several limits to loosen: {named}")
    return limits[0].account if limits else None


def _wanted(
    current: Limits | None,
    epsilon: float,
    delta: float,
    releases: int | None,
    account: Account | None,
    uploads: float | None,
) -> Limits:
    """The limit asked for; what was not said is as it was."""
    from nbafl.privacy.ledger import Limits

    if current is not None:
        releases = current.releases if releases is None else releases
        uploads = current.epsilon_uploads if uploads is None else uploads
    return Limits(epsilon, delta, releases, account, uploads)


@ledger_app.command("migrate")
def migrate(
    path: Where,
    plan: Annotated[
        list[Path] | None,
        typer.Option(
            help="A plan file of the first release that the ledger has releases of (repeat).", metavar="FILE"
        ),
    ] = None,
) -> None:
    """Bring a ledger of the first release up to date; plans supplied give its rows their units.

    Rows whose plan is not at hand count in the dearest unit: four times their cost for a record, and without a bound for
    a person or a client. The old rows and their hashes stay as they are.

    Example: nbafl ledger migrate ~/.nbafl/north-hospital --plan old/plan.toml
    """
    from nbafl.flower.first_release import supply

    ledger = _open(path)
    for file in plan or []:
        row = supply(ledger, file)
        say(
            f"{file}: row {row.number} gives the releases of plan {row.plan[:16]} the unit {row.unit} ({row.adjacency})."
        )
    rows, missing = ledger.verify(), [each for each in ledger.spent().sums if each.unknown]
    say(f"{ledger.path}: {rows} rows, the chain is whole.")
    for name in sorted(
        {name for each in missing for name in each.unknown} & ledger.of_first_release().keys()
    ):
        say(f"plan {name} is not at hand: its releases count in the dearest unit.")
