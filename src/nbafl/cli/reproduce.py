"""`nbafl reproduce`: figures 2 to 11 of the paper, reproduced, with a computed verdict on every claim."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nbafl.cli.progress import bar

if TYPE_CHECKING:
    from nbafl.paper.reproduce import Reproduction

HELP = """Reproduce the paper's result figures (2 to 11) and say which of its claims hold.

Every figure is drawn twice: with the noise the paper prints, and with noise that keeps the claimed epsilon.

\b
Examples:
  nbafl reproduce   # all ten figures; a second call only draws
  nbafl reproduce 10 11   # two figures; others made before stay on the page
  nbafl reproduce --jobs jobs.json   # to compute the trainings elsewhere
  python -m nbafl.paper.trainings jobs.json results.json
      # there: torch and numpy suffice
  nbafl reproduce --results results.json
"""


def reproduce(
    figures: Annotated[list[int] | None, typer.Argument(help="Figures to make, 2 to 11. [all]")] = None,
    seeds: Annotated[int, typer.Option(help="Seeds of data, weights, draws and noise.")] = 5,
    out: Annotated[Path, typer.Option(help="Folder for figures, data and page.", metavar="DIR")] = Path(
        "runs/reproduce"
    ),
    jobs: Annotated[
        Path | None,
        typer.Option(help="Only write the trainings still to be computed to FILE.", metavar="FILE"),
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="Take trainings computed elsewhere from FILE.", metavar="FILE")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdicts as one JSON list.")] = False,
) -> None:
    from nbafl.durable import check_file, check_folder
    from nbafl.paper import reproduce as paper
    from nbafl.paper.settings import Settings
    from nbafl.paper.trainings import write_trials

    check_folder("out", out)
    check_file("jobs", jobs)
    chosen = tuple(sorted(set(figures))) if figures else paper.FIGURES
    if jobs is not None:
        trials = paper.recall(paper.runs_of(chosen, Settings(), seeds), out).missing()
        write_trials(jobs, trials)
        print(f"{len(trials)} trainings in {jobs}")
        return
    made = paper.reproduce(chosen, seeds, out, results=results, meter=_progress)
    if as_json:
        print(json.dumps(made.verdicts, indent=2))
    else:
        _print(made)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A bar over client rounds with the time left, on the error stream so that --json stays clean."""
    with bar() as progress:
        task = progress.add_task("training", total=total)
        yield lambda done: progress.advance(task, done)


def _print(made: Reproduction) -> None:
    from rich.console import Console
    from rich.table import Table

    from nbafl.paper.page import overview

    table = Table(title="The paper's claims, tested over seeds")
    for heading in ("figure", "claim", "paper's noise", "exact noise"):
        table.add_column(heading)
    for row in overview(made.verdicts):
        table.add_row(str(row["figure"]), row["claim"], row["paper"], row["exact"])
    console = Console()
    console.print(table)
    console.print(
        "holds / fails: by a paired test over the seeds. artefact: it holds only because the noise is too small for the "
        "claimed epsilon (against the eavesdropper, granting 2C/m). undecided: too few seeds to tell "
        f"({made.verdicts[0]['evidence']['seeds']} here)."
    )
    if made.kept:
        kept = ", ".join(str(number) for number in made.kept)
        console.print(f"The page also lists what earlier calls made with the same numbers: figures {kept}.")
    console.print(f"Figures and evidence: {made.page}")
