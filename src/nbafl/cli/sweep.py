"""`nbafl sweep`: many runs as one question, with a table, a picture and a page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nbafl import toml_file
from nbafl.cli.options import (
    SEVERAL_OPTIONS,
    TRACK,
    plan_and_federation,
    plan_fields,
    values_of,
    with_plan_options,
)
from nbafl.cli.progress import bar
from nbafl.errors import UsageError
from nbafl.fields import table as table_of_fields

if TYPE_CHECKING:
    from nbafl.data.federation import Federation
    from nbafl.sweeps.grid import Grid
    from nbafl.sweeps.table import SweepTable

HELP = """Train many runs: any field may have several values, separated by commas, and every combination is trained.

Values of --class-weights hold commas themselves and are separated by semicolons: "ill=5,well=1;ill=2,well=1".

Leaves a folder with one run each, a table (CSV, JSON), a picture and a page. Called again with the same --out, it keeps
what is finished and makes the rest.

\b
Examples:
  nbafl sweep --epsilon 1,3 --adversary eavesdropper,curious-server --seeds 5
  nbafl sweep --lr 0.2,0.4 --record-clip 0.5,1 --holdout 0.2
      # choose on training records
  nbafl sweep --grid grid.toml --out sweeps/one --workers 8
  nbafl sweep --epsilon 1,3,8 --seeds 5 --ray auto   # on a Ray cluster
"""

MOST_SEEDS = 100_000
"""Runs that a sweep could keep a folder for, each."""
OF_THE_DATA = frozenset(
    {"dataset", "target", "test", "task", "ignore", "clients", "samples", "sizes", "partition", "person"}
)
"""Fields that decide how a folder of data is read, or that it decides: it is read once, so they cannot vary."""


def _sweep(
    given: dict[str, Any],
    grid: Annotated[
        str | None, typer.Option(help="A TOML file with lists of values by field.", metavar="FILE")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Seeds of every setting. [1]", min=1)] = None,
    holdout: Annotated[
        float | None,
        typer.Option(help="Judge runs on this share of the training records. [the test records]"),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes of this machine. [one for each core]", min=1)
    ] = None,
    ray: Annotated[
        str | None, typer.Option(help="Use a Ray cluster: its address, or auto.", metavar="ADDRESS")
    ] = None,
    out: Annotated[
        str | None, typer.Option(help="Folder of the sweep. [runs/DATE-sweep]", metavar="DIR")
    ] = None,
    track: Annotated[list[str] | None, TRACK] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as one JSON object.")] = False,
) -> None:
    from nbafl import tracking
    from nbafl.durable import check_folder
    from nbafl.sweeps.whole import run_grid

    check_folder("out", out)
    callbacks = tracking.find(track or ())
    asked, federation = read_grid(given, grid, seeds, holdout)
    asked.points()  # refuses an invalid combination before anything is shown or written
    with _progress(asked.size, quiet=as_json) as done:
        table = run_grid(
            asked, federation, out=out, workers=workers, ray=ray, on_done=done, callbacks=callbacks
        )
    if as_json:
        print(json.dumps({**table.to_dict(), "sweep_dir": str(table.path)}, indent=2, allow_nan=False))
    else:
        _print(table)


sweep = with_plan_options(_sweep, SEVERAL_OPTIONS)


def read_grid(
    given: dict[str, Any], file: str | None, seeds: int | None, holdout: float | None
) -> tuple[Grid, Federation | None]:
    """What somebody asked for: the fixed fields, those that vary, and the data where they are the user's own."""
    from nbafl.run.plan_data import public_facts
    from nbafl.sweeps.grid import Grid

    told = toml_file.read(file, "grid file") if file is not None else {}
    count = seeds or told.pop("seeds", 1)
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MOST_SEEDS:
        raise UsageError("seeds", count, f"a whole number from 1 to {MOST_SEEDS}")
    axes = {name: tuple(value) for name, value in told.items() if isinstance(value, list) and name != "sizes"}
    fixed = {name: value for name, value in told.items() if name not in axes}
    for name, value in given.items():
        values = values_of(name, value) if name in table_of_fields() else [value]
        if len(values) > 1:
            axes[name] = tuple(values)
        else:
            fixed[name] = values[0]
            axes.pop(name, None)
    first = fixed.pop("seed", 0)
    numbers = tuple(range(first, first + count))
    base = plan_fields(fixed)
    if base.get("dataset", "mnist") == "mnist" and "dataset" not in axes:
        return Grid(base, axes, numbers, holdout), None
    varying = sorted(OF_THE_DATA & axes.keys())
    if varying:
        raise UsageError(varying[0], list(axes[varying[0]]), "one value: the folder of data is read once")
    plan, federation = plan_and_federation({**fixed, **{name: values[0] for name, values in axes.items()}})
    base = public_facts(federation, base.get("features", "raw") == "raw") | base
    base |= {"clients": plan.clients, "sizes": plan.sizes} if plan.sizes else {"clients": plan.clients}
    return Grid({**base, "test": plan.test}, axes, numbers, holdout), federation


@contextmanager
def _progress(total: int, quiet: bool) -> Iterator[Callable[[int, int, str], None]]:
    """A bar over runs with the time left, on the error stream so that --json stays clean."""
    with bar(quiet) as progress:
        task = progress.add_task("runs", total=total)
        yield partial(_advance, progress, task)


def _advance(progress: Any, task: Any, done: int, total: int, name: str) -> None:
    progress.update(task, completed=done, total=total, description=name)


def _print(found: SweepTable) -> None:
    from rich.console import Console
    from rich.table import Table

    score, settings = found.score, found.settings()
    about = ", ".join(sorted({f"δ={entry['delta']:g}, one {entry['unit']}" for entry in settings}))
    shown = Table(title=f"{score.replace('_', ' ')} on {found.scored_on}; ε at {about}")
    fields = list(dict.fromkeys((*found.grid.axes, "adversary")))
    for heading in (*fields, "ε that holds", "seeds", "mean", "± over seeds"):
        shown.add_column(heading.replace("_", " "))
    for entry in settings:
        mean, deviation = entry[score]["mean"], entry[score]["deviation"]
        shown.add_row(
            *(_told(entry.get(field, entry["against"])) for field in fields),
            "∞"
            if entry["real_epsilon"] is None
            else f"{entry['real_epsilon']:.4g} {entry['premise']}".strip(),
            str(entry["seeds"]),
            "–" if mean is None else f"{mean:.4f}" + (" best" if entry["best"] else ""),
            "–" if deviation is None else f"{deviation:.4f}",
        )
    console = Console()
    console.print(shown)
    composed = found.composed()
    worst = max(composed, key=lambda each: each["epsilon"] or float("inf")) if composed else None
    if worst is not None:
        premise = ", under the premises above" if any(entry["premise"] for entry in settings) else ""
        epsilon = "no finite ε" if worst["epsilon"] is None else f"ε = {worst['epsilon']:.4g}"
        console.print(
            f"Made in one federation, all {worst['runs']} runs together would cost {epsilon} against "
            f"{worst['adversary']} (δ = {worst['delta']:g}, one {worst['unit']}{premise}); "
            "the choice between them is not free."
        )
    console.print(f"Table, picture and page: {found.path / 'index.html'}", soft_wrap=True)


def _told(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
