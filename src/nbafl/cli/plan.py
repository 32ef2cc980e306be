"""`nbafl plan`: what noise a federation needs, what that noise is worth against each adversary, and which T and K suit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nbafl.cli.options import plan_of, with_plan_options

if TYPE_CHECKING:
    from nbafl.plan import Plan

HELP = """Say how much noise a federation needs and what it guarantees, before anything is trained.

\b
Examples:
  nbafl plan   # what `nbafl run` promises
  nbafl plan --preset paper   # the paper's own rule, and its real worth
  nbafl plan --epsilon 3 --adversary curious-server
  nbafl plan --bounds   # convergence bounds, best T and K
"""


@with_plan_options
def plan(
    given: dict[str, Any],
    bounds: Annotated[bool, typer.Option("--bounds", help="Add convergence bounds, best T and K.")] = False,
    constants: Annotated[
        str | None,
        typer.Option(
            help="Constants of the loss: read from here, or measured and saved here.", metavar="FILE"
        ),
    ] = None,
    save: Annotated[str | None, typer.Option(help="Write the plan as TOML.", metavar="FILE")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    from nbafl.cli.tables import print_plan
    from nbafl.durable import check_file, write_text

    check_file("save", save)
    if constants is not None and not Path(constants).is_file():
        check_file("constants", constants)
    described = plan_of(given)
    summary = described.summary()
    if bounds or constants:
        summary |= _with_bounds(described, constants)
    if save:
        write_text(save, described.to_toml())
    if as_json:
        print(json.dumps(summary, indent=2, allow_nan=False))
    else:
        print_plan(described, summary)


def _with_bounds(described: Plan, constants: str | None) -> dict[str, Any]:
    from rich.console import Console

    from nbafl.theory.planning import plan_bounds

    with Console(stderr=True).status("Training a short pilot without noise, and looking over T and K …"):
        return plan_bounds(described, constants)
