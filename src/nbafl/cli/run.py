"""`nbafl run`: train a federation in simulation on this machine and leave a run folder."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nbafl.cli.options import plan_and_federation, with_plan_options
from nbafl.errors import UsageError

if TYPE_CHECKING:
    from nbafl.data.federation import Federation
    from nbafl.plan import Plan
    from nbafl.run import Run
    from nbafl.simulation.metrics import RoundMetrics

HELP = """Train a federation on this machine: model, metrics, privacy statement and report in one folder.

\b
Examples:
  nbafl run   # MNIST, 50 clients, 25 rounds, exact noise
  nbafl run --preset paper --epsilon 60   # the paper's setting, as printed
  nbafl run --dataset hospital/ --target outcome --model softmax
  nbafl run --resume runs/NAME   # go on after Ctrl-C or a crash
"""


@with_plan_options
def run(
    given: dict[str, Any],
    out: Annotated[str | None, typer.Option(help="Folder of the run. [runs/NAME]", metavar="DIR")] = None,
    resume: Annotated[
        str | None, typer.Option(help="Go on with the run in this folder.", metavar="DIR")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    from nbafl import caveats

    plan, federation, folder = _what_to_run(given, out, resume)
    for remark in (*federation.remarks, caveats.about_simulating(plan)):
        if remark is not None:
            print(f"Note: {remark}", file=sys.stderr)
    finished = _with_progress(plan, federation, folder, resume is not None, quiet=as_json)
    if as_json:
        print(json.dumps(finished.summary(), indent=2, allow_nan=False))
    else:
        _print_outcome(finished)


def _what_to_run(given: dict[str, Any], out: str | None, resume: str | None) -> tuple[Plan, Federation, str]:
    from nbafl.run import Run, federation_of, fresh_folder

    if resume is None:
        plan, federation = plan_and_federation(given)
        return plan, federation, out or str(fresh_folder(plan))
    if given or out:
        named = next(iter(given), "out")
        raise UsageError(
            "resume", resume, f"used alone: the folder's plan decides everything, so drop --{named}"
        )
    plan = Run.load(resume).plan
    return plan, federation_of(plan), resume


def _with_progress(plan: Plan, federation: Federation, out: str, resume: bool, quiet: bool) -> Run:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from nbafl.run import simulate

    columns = (
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), disable=quiet) as progress:
        task = progress.add_task("", total=plan.rounds)

        def on_round(metrics: RoundMetrics) -> None:
            if not quiet and not progress.tasks[task].completed:
                progress.console.print(_what_epsilon_means(plan), highlight=False)
            progress.update(task, completed=metrics.round, description=_in_short(plan, metrics))

        try:
            return simulate(plan, federation, out=out, resume=resume, on_round=on_round)
        except UsageError:
            progress.update(task, visible=False)  # the sentence stands alone
            raise
        except KeyboardInterrupt:
            progress.console.print(f"Every finished round is kept. Go on with: nbafl run --resume {out}")
            raise


def _what_epsilon_means(plan: Plan) -> str:
    """The line above the bar: whom the ε beside it is about."""
    if not plan.noise:
        return "No noise: nothing is guaranteed."
    sensitivity = plan.sensitivity_of()
    premise = ", if the sensitivity 2C/m holds" if sensitivity.conditional else ""
    return f"ε is against {plan.adversary} at δ={plan.delta:g}, per {sensitivity.unit}{premise}."


def _in_short(plan: Plan, metrics: RoundMetrics) -> str:
    parts = [f"loss {metrics.train_loss:.3f}"] if metrics.train_loss is not None else []
    if metrics.test_accuracy is not None:
        parts.append(f"accuracy {metrics.test_accuracy:.1%}")
    if plan.noise:
        parts.append(f"ε so far {plan.epsilon_after(metrics.round):.4g}")
    return ", ".join(parts)


def _print_outcome(finished: Run) -> None:
    from rich.console import Console

    console = Console(soft_wrap=True)
    last = finished.metrics[-1] if finished.metrics else {}
    for label, name in (("Training", "train"), ("Test", "test")):
        if last.get(f"{name}_loss") is not None:
            accuracy = last.get(f"{name}_accuracy")
            shown = f", accuracy {accuracy:.2%}" if accuracy is not None else ""
            console.print(f"{label} loss {last[f'{name}_loss']:.4f}{shown}")
    console.print("\n[bold]Privacy statement[/bold]")
    for sentence in finished.privacy["sentences"]:
        console.print(f"  {sentence}", highlight=False)
    console.print(
        f"\nRun folder: {finished.path}\nReport:     {finished.path / 'report.html'}", highlight=False
    )
