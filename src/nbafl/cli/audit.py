"""`nbafl audit`: attack the mechanism as the adversary would, and set the epsilon proved beside the epsilon claimed."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nbafl.cli.options import plan_of, with_plan_options
from nbafl.errors import UsageError

if TYPE_CHECKING:
    from nbafl.audit.auditor import Audit
    from nbafl.plan import Plan

HELP = """Attack the mechanism as the adversary would, and report the epsilon that can be proved beside the one claimed.

The attacker plays on the worst neighbouring data it can build for the plan's sensitivity, runs the real mechanism many
times in both worlds, and scores each run by the likelihood ratio. Exit code 1: the claim is refuted.

\b
\b
Examples:
  nbafl audit                                exact noise for epsilon 50: consistent
  nbafl audit --calibration paper            the paper's noise for epsilon 50: refuted
  nbafl audit --preset private --trials 50000
  nbafl audit --per-round 20 --out audits/k  K-random: the broadcast shows who took part
"""


@with_plan_options
def audit(
    given: dict[str, Any],
    trials: Annotated[int, typer.Option(help="Runs of the mechanism in each of the two worlds.")] = 200_000,
    confidence: Annotated[float, typer.Option(help="Confidence of the lower bounds on epsilon.")] = 0.95,
    pictures: Annotated[
        bool, typer.Option("--pictures/--no-pictures", help="Draw what the attacks mean, as PNG files.")
    ] = True,
    out: Annotated[
        str | None, typer.Option(help="Folder of the audit. [runs/audit-TIME]", metavar="DIR")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    plan = plan_of(given)
    folder = Path(out) if out else Path("runs") / f"audit-{datetime.now():%Y%m%d-%H%M%S-%f}"
    if folder.exists() and not folder.is_dir():
        raise UsageError("out", str(folder), "a folder, not a file")
    found = _with_progress(plan, trials, confidence, quiet=as_json)
    _write(found, folder, pictures)
    if as_json:
        print(json.dumps(found.to_dict(), indent=2, allow_nan=False))
    else:
        _print(found, folder)
    if found.refuted:
        raise typer.Exit(1)


def _with_progress(plan: Plan, trials: int, confidence: float, quiet: bool) -> Audit:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from nbafl.audit.auditor import audit as attack
    from nbafl.audit.auditor import check

    check(plan, trials, confidence)  # before a bar appears
    columns = (TextColumn("attacking"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=quiet) as progress:
        task = progress.add_task("", total=trials)
        return attack(plan, trials, confidence, on_trials=lambda count: progress.advance(task, count))


def _write(found: Audit, folder: Path, pictures: bool) -> None:
    from nbafl.durable import write_text

    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "audit.json", json.dumps(found.to_dict(), indent=2, allow_nan=False) + "\n")
    write_text(folder / "plan.toml", found.plan.to_toml())
    if pictures:
        from nbafl.audit.pictures import draw_all

        draw_all(found, folder)


def _print(found: Audit, folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    console, plan = Console(soft_wrap=True), found.plan
    table = Table(title=f"epsilon at delta {plan.delta:g}", title_justify="left", box=None, pad_edge=False)
    for heading in ("adversary", "proved (Gaussian)", "proved (distribution-free)", "accounted at most"):
        table.add_column(heading, justify="left" if heading == "adversary" else "right")
    for proof in found.proofs.values():
        numbers = (proof.gaussian, proof.distribution_free, proof.accounted)
        table.add_row(proof.adversary, *("-" if n is None else f"{n:.4g}" for n in numbers))
    console.print(table, highlight=False)
    for sentence in sentences(found):
        console.print(sentence, highlight=False)
    console.print(f"\nAudit folder: {folder}", highlight=False)


def sentences(found: Audit) -> list[str]:
    """The audit in plain words."""
    plan, claim = found.plan, found.claim
    verdict = "REFUTED" if found.refuted else "consistent"
    said = [
        f"\nClaim: epsilon {plan.epsilon:g} at delta {plan.delta:g} against {claim.adversary}, who sees {claim.sees}.",
        f"Verdict: {verdict}. Proved: epsilon is at least {claim.epsilon:.4g} (confidence {found.confidence:g}, "
        f"{found.trials} runs in each world, {plan.calibration} noise).",
        f"Problem: {found.problem}; it attains {found.attained:.1%} of the sensitivity.",
        f"With so many runs a distribution-free bound cannot prove more than {found.ceiling:.3g}; "
        + (
            "there is no other here, as this attacker cannot tell in which rounds the target took part."
            if claim.gaussian is None
            else "the Gaussian one assumes the trade-off curve of Gaussian noise."
        ),
    ]
    if found.guessed_participation is not None:
        said.append(
            f"K-random: from the broadcast alone the attacker saw whether the target took part in "
            f"{found.guessed_participation:.1%} of the rounds; drawing clients at random amplifies nothing for a record."
        )
    if plan.sensitivity == "paper":
        said.append(
            "This problem satisfies the paper's premise for 2C/m; general models do not, and no audit can make it hold."
        )
    return said
