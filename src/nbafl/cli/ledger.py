"""`nbafl ledger`: read, check and govern the record of what a client has released."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from nbafl.privacy.ledger import Ledger

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

    ledger = _open(path)
    content = dump(ledger)
    if as_json:
        print(json.dumps({name: content[name] for name in ("path", "limits", "spent")}, indent=2))
        return
    for row in ledger.rows():
        when = datetime.fromtimestamp(row.time).strftime("%Y-%m-%d %H:%M:%S")
        what = f"round {row.round} of plan {row.plan[:12]}" if row.plan else row.note[:60]
        print(f"{row.number:5}  {when}  {row.kind:8}  {what}")
    _print_sum(ledger)


def _print_sum(ledger: Ledger) -> None:
    spent, limits = ledger.spent(), ledger.limits
    print(f"\n{spent.releases} releases, {spent.resends} resends of stored bytes (free).")
    if spent.releases:
        against = ", ".join(spent.adversaries)
        print(
            f"epsilon {spent.epsilon:.6g} at delta {spent.delta:g} against {against}, as the plans assume it;"
        )
        print(
            f"epsilon {spent.epsilon_curious_server:.6g} at delta {spent.delta:g} against whoever sees every upload "
            "(curious-server), trusting nobody. Both rest on the sensitivity the plans state."
        )
    if limits:
        most = "any number of releases" if limits.releases is None else f"at most {limits.releases} releases"
        print(f"limit: epsilon {limits.epsilon:g} at delta {limits.delta:g} for all plans together, {most}.")


@ledger_app.command("export")
def export(
    path: Where,
    out: Annotated[Path | None, typer.Option(help="File to write. [stdout]", metavar="FILE")] = None,
) -> None:
    """Write every row, the limits and the sum as JSON (not the stored uploads).

    Example: nbafl ledger export ~/.nbafl/north-hospital --out ledger.json
    """
    from nbafl.durable import write_text
    from nbafl.privacy.ledger import as_json

    content = json.dumps(as_json(_open(path)), indent=2) + "\n"
    if out is None:
        print(content, end="")
    else:
        write_text(out, content)


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


@ledger_app.command("adopt")
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
    max_releases: Annotated[int | None, typer.Option(help="Uploads allowed in all. [any]")] = None,
    loosen: Annotated[
        bool, typer.Option("--loosen", help="Allow a weaker limit than before; the chain keeps the old one.")
    ] = False,
) -> None:
    """Set this client's own limits; without --loosen they only ever get stricter.

    Example: nbafl ledger limit ~/.nbafl/north-hospital --epsilon 8 --delta 1e-5
    """
    from nbafl.privacy.ledger import Limits

    now = _open(path).set_limits(Limits(epsilon, delta, max_releases), loosen=loosen)
    print(f"limit: epsilon {now.epsilon:g} at delta {now.delta:g}, releases {now.releases or 'any number'}.")
