"""`nbafl run`: train a federation in simulation on this machine and leave a run folder."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nbafl.cli.lines import say
from nbafl.cli.options import TRACK, plan_and_federation, with_plan_options
from nbafl.cli.progress import bar
from nbafl.errors import UsageError
from nbafl.fields import table
from nbafl.privacy.scope import Scope

if TYPE_CHECKING:
    from nbafl.data.federation import Federation
    from nbafl.plan import Plan
    from nbafl.run import Run
    from nbafl.simulation.scoring.metrics import RoundMetrics
    from nbafl.tracking import Callback

HELP = """Train a federation on this machine: model, metrics, privacy statement and report in one folder.

\b
Examples:
  nbafl run   # MNIST, 50 clients, a guarantee that holds at epsilon 1
  nbafl run --preset paper --epsilon 60   # the paper's setting, as printed
  nbafl run --dataset hospital/ --target outcome
  nbafl run --resume runs/NAME   # go on after Ctrl-C or a crash
  torchrun --nproc-per-node 2 -m nbafl run   # on several processes
"""


@with_plan_options
def run(
    given: dict[str, Any],
    out: Annotated[str | None, typer.Option(help="Folder of the run. [runs/NAME]", metavar="DIR")] = None,
    resume: Annotated[
        str | None, typer.Option(help="Go on with the run in this folder.", metavar="DIR")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Print warnings and the whole privacy statement.")
    ] = False,
    track: Annotated[list[str] | None, TRACK] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    from nbafl import caveats, tracking
    from nbafl.simulation import ranks

    callbacks = tracking.find(track or ())
    ranks.begin()
    plan, federation, folder = ranks.once_per_node(lambda: _what_to_run(given, out, resume))
    alone = ranks.number() == 0
    say(f"{federation.described()}.", sys.stderr)
    if plan.fitted and resume is None:
        values = ", ".join(f"{name} {value:g}" for name, value in plan.fitted.items())
        say(f"Settings that follow from public numbers: {values}.", sys.stderr)
    for remark in (*federation.remarks, caveats.about_simulating(plan)):
        if remark is not None and alone:
            say(f"Note: {remark}", sys.stderr)
    finished = _with_progress(
        plan, federation, folder, resume is not None, callbacks, quiet=as_json or not alone
    )
    if not alone:
        return
    if as_json:
        print(json.dumps(finished.summary(), indent=2, allow_nan=False))
    else:
        _print_outcome(finished, full)


def _what_to_run(given: dict[str, Any], out: str | None, resume: str | None) -> tuple[Plan, Federation, str]:
    from nbafl.durable import check_folder
    from nbafl.plan import Plan
    from nbafl.run import Run, federation_of, fresh_folder

    if resume is None:
        check_folder("out", out)
        plan, federation = plan_and_federation(given)
        return plan, federation, out or str(fresh_folder(plan))
    promised = [name for name in given if name not in table() or table()[name].entry.promise]
    if promised or out:
        named = next(iter(promised), "out")
        raise UsageError("resume", resume, f"without --{named}: the folder's plan decides what is promised")
    begun = Run.load(resume)
    plan = Plan(**{**begun.plan.model_dump(), **given})
    return plan, federation_of(plan, of_first_release=begun.facts is None), resume


def _with_progress(
    plan: Plan, federation: Federation, out: str, resume: bool, callbacks: tuple[Callback, ...], quiet: bool
) -> Run:
    from nbafl.run import simulate

    with bar(quiet) as progress:
        task = progress.add_task("", total=plan.rounds)

        def on_round(metrics: RoundMetrics) -> None:
            if not quiet and not progress.tasks[task].completed:
                progress.console.print(_what_epsilon_means(plan), highlight=False)
            progress.update(task, completed=metrics.round, description=_in_short(plan, metrics))

        try:
            return simulate(plan, federation, out=out, resume=resume, on_round=on_round, callbacks=callbacks)
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
    scope = Scope.of(plan)
    return f"ε is against {scope.adversary} at δ={scope.delta:g}, per {scope.whom}{scope.premise}."


def _in_short(plan: Plan, metrics: RoundMetrics) -> str:
    parts = [f"loss {metrics.train_loss:.3f}"] if metrics.train_loss is not None else []
    if metrics.test_accuracy is not None:
        parts.append(f"accuracy {metrics.test_accuracy:.1%}")
    if plan.noise:
        parts.append(f"ε so far {plan.epsilon_after(metrics.round):.4g}")
    return ", ".join(parts)


def _print_outcome(finished: Run, full: bool) -> None:
    """Three lines and what to beware of, or with --full everything; then where it lies."""
    if full:
        _print_in_full(finished)
    else:
        say("\n".join(three_lines(finished)))
        for warning in (*finished.plan.warnings(), *(finished.scores or {"notices": ()})["notices"]):
            say(f"Warning: {warning}")
    say(f"\nRun folder: {finished.path}\nReport:     {finished.path / 'report.html'}")


def three_lines(finished: Run) -> tuple[str, str, str]:
    """How good the model is, what is promised and kept, and how strong that is."""
    from nbafl.privacy import badges

    plan, statement, scores = finished.plan, finished.privacy, finished.scores
    last = finished.metrics[-1] if finished.metrics else {}
    model = (
        f"loss {last['train_loss']:.4f} on training records" if last.get("train_loss") is not None else "-"
    )
    if scores is not None:
        model = _told_scores(scores)[0].removeprefix("On ")
    if not plan.noise:
        return (
            f"Model: {model}",
            "Privacy: none, no noise was added.",
            "Strength: nothing is guaranteed.",
        )
    worth = "no finite epsilon" if statement["epsilon"] is None else f"epsilon {statement['epsilon']:.6g}"
    claim = badges.kept(statement["delivers_claim"], plan.rule.conditional).word
    guess = statement["best_guess"]
    chance = (
        ""
        if guess is None
        else f" (the best guess can be right {badges.percent(guess)} of the time, a coin 50%)"
    )
    return (
        f"Model: {model}",
        f"Privacy: {worth} {Scope.of(plan).words}; the claim of {plan.epsilon:g} is {claim}.",
        f"Strength: {badges.strength(guess).word}{chance}.",
    )


def _print_in_full(finished: Run) -> None:
    last = finished.metrics[-1] if finished.metrics else {}
    for label, name in (("Training", "train"), ("Test", "test")):
        if last.get(f"{name}_loss") is not None:
            accuracy = last.get(f"{name}_accuracy")
            shown = f", accuracy {accuracy:.2%}" if accuracy is not None else ""
            say(f"{label} loss {last[f'{name}_loss']:.4f}{shown}")
    for line in _told_scores(finished.scores):
        say(line)
    for warning in finished.plan.warnings():
        say(f"Warning: {warning}")
    say("\nPrivacy statement")
    statement = finished.privacy
    for sentence in statement["sentences"]:
        if sentence.startswith("Not covered:"):
            say("  Not covered:")
            for each in statement["not_covered"]:
                say(f"    - {each}")
        else:
            say(f"  {sentence}")


def _told_scores(scores: dict[str, Any] | None) -> list[str]:
    """The measures that suit the task, beside the constant predictor, and what training noticed."""
    if scores is None:
        return []
    constant, worst = scores["constant"], scores.get("worst_client")
    if "rmse" in scores:
        r2 = "" if scores["r2"] is None else f", R² {scores['r2']:.3f}"
        lines = [
            f"On {scores['measured_on']}: RMSE {scores['rmse']:.4g}, MAE {scores['mae']:.4g}{r2} (always answering "
            f"{constant['prediction']:.4g}: RMSE {constant['rmse']:.4g})"
        ]
    else:
        auc = "" if scores["auc"] is None else f", AUC {scores['auc']:.3f}"
        lines = [
            f"On {scores['measured_on']}: accuracy {scores['accuracy']:.1%}, balanced accuracy "
            f"{scores['balanced_accuracy']:.1%}{auc} (always answering {constant['prediction']!r}: "
            f"{constant['accuracy']:.1%})"
        ]
    if worst is not None:
        measure = f"accuracy {worst['accuracy']:.1%}" if "accuracy" in worst else f"RMSE {worst['rmse']:.4g}"
        lines.append(f"Served worst: {worst['name']}, {measure} on its own records (outside the guarantee)")
    return lines + [f"Noticed: {notice}" for notice in scores["notices"]]
