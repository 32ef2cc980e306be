"""`nbafl audit`: attack the mechanism as the adversary would, and set the epsilon proved beside the epsilon claimed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nbafl.cli.lines import say
from nbafl.cli.options import plan_of, with_plan_options
from nbafl.cli.progress import bar

if TYPE_CHECKING:
    from nbafl.audit.auditor import Audit
    from nbafl.plan import Plan

HELP = """Attack the mechanism as the adversary would, and report the epsilon that can be proved next to the one claimed.

The attacker plays on the worst neighbouring data it can build for the plan's sensitivity, runs the mechanism many
times in both worlds, and scores each run by the likelihood ratio. A few runs go the real path, upload by upload, and all
noise is tested. Exit code 1: refuted, because a proof exceeds its own account.

\b
Examples:
  nbafl audit --trials 50000   # the default plan: consistent
  nbafl audit --preset paper   # the paper's noise for epsilon 50: refuted
  nbafl audit --per-round 20   # K of N: the broadcast shows who took part
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
    from nbafl.folders import audits

    folder = audits.folder_of(out)
    plan = plan_of(given)
    audits.check_place(folder, plan)
    if plan.secure_sums() is not None:
        _audit_sums(plan, trials, confidence, folder, as_json)
        return
    found = _with_progress(plan, trials, confidence, quiet=as_json)
    audits.write(folder, plan, found.to_dict())
    if pictures:
        from nbafl.audit.pictures import draw_all

        draw_all(found, folder)
    _report(folder, plan, found.to_dict())
    if as_json:
        print(json.dumps(found.to_dict(), indent=2, allow_nan=False))
    else:
        _print(found, folder)
    if found.refuted:
        raise typer.Exit(1)


def _audit_sums(plan: Plan, trials: int, confidence: float, folder: Path, as_json: bool) -> None:
    """Under secure aggregation there are no uploads to look at: sums are attacked."""
    from nbafl.audit.auditor import check
    from nbafl.audit.secure import audit_secure
    from nbafl.folders import audits

    check(plan, trials, confidence)
    found = audit_secure(plan, trials, confidence)
    audits.write(folder, plan, found.to_dict())
    _report(folder, plan, found.to_dict())
    print(json.dumps(found.to_dict(), indent=2, allow_nan=False) if as_json else "\n".join(found.sentences()))
    if found.refuted:
        raise typer.Exit(1)


def _report(folder: Path, plan: Plan, found: dict[str, Any]) -> None:
    """audit.html, and the audit as a part of the report where the folder is a finished run's."""
    from nbafl.folders.runs import REPORT
    from nbafl.report.audit import write_audit

    write_audit(folder, plan, found)
    if (folder / REPORT).is_file():
        from nbafl.run import Run

        Run.load(folder).report()


def _with_progress(plan: Plan, trials: int, confidence: float, quiet: bool) -> Audit:
    from nbafl.audit.auditor import audit as attack
    from nbafl.audit.auditor import check

    check(plan, trials, confidence)  # before a bar appears
    if not quiet and not sys.stderr.isatty():
        return attack(plan, trials, confidence, on_trials=_Told(trials))
    with bar(quiet) as progress:
        task = progress.add_task("attacking", total=trials)
        return attack(plan, trials, confidence, on_trials=lambda count: progress.advance(task, count))


class _Told:
    """Progress for a log, a line a tenth: what the studio shows while an audit goes."""

    def __init__(self, trials: int) -> None:
        self.trials, self.done, self.said = trials, 0, 0

    def __call__(self, count: int) -> None:
        self.done += count
        tenths = 10 * self.done // self.trials
        if tenths > self.said:
            self.said = tenths
            print(f"attacking: {10 * min(tenths, 10)}% of {self.trials} runs", file=sys.stderr, flush=True)


def _print(found: Audit, folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from nbafl.privacy.scope import Scope

    console, plan = Console(soft_wrap=True), found.plan
    title = f"epsilon at delta {plan.delta:g}, per {Scope.of(plan).whom}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for heading in ("adversary", "proved (Gaussian)", "proved (distribution-free)", "accounted at most"):
        table.add_column(heading, justify="left" if heading == "adversary" else "right")
    for proof in found.proofs.values():
        numbers = (proof.gaussian, proof.distribution_free, proof.accounted)
        table.add_row(proof.adversary, *("-" if n is None else f"{n:.4g}" for n in numbers))
    console.print(table, highlight=False)
    for sentence in sentences(found):
        say(sentence)
    say(f"\nAudit folder: {folder} (audit.html for people)")


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
    said += _looked(found)
    if found.guessed_participation is not None:
        said.append(
            f"K-random: from the broadcast alone the attacker saw whether the target took part in "
            f"{found.guessed_participation:.1%} of the rounds; drawing clients at random amplifies nothing for a record."
        )
    if plan.rule.conditional:
        said.append(
            f"This problem satisfies the premise {plan.rule.condition}; general models do not, and no audit can make them."
        )
    return said


def _looked(found: Audit) -> list[str]:
    """What refuted, each with its account and proof; else how much was looked at."""
    error = found.shares
    said = [
        f"Looks: {len(found.looks)} more comparisons (uploads on the real path, noise, patterns of signs). "
        f"A sound mechanism is refuted by one of all these with probability {error.designed:.2g} at most."
    ]
    said += [
        f"Refuted by the attack of {proof.adversary}: proved epsilon {proof.epsilon:.4g}, accounted {proof.accounted:.4g}."
        for proof in found.proofs.values()
        if proof.refuted
    ]
    said += [
        f"Refuted by {look.name}: {look.measures} is {look.proof:.4g}, at most {look.account:.4g} in a sound mechanism."
        for look in found.looks
        if look.refuted
    ]
    return said
