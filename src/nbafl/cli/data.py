"""`nbafl data`: look at a folder of tables before training, and write the schema its owners agree on."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nbafl.cli.lines import say
from nbafl.errors import DataError, UsageError

if TYPE_CHECKING:
    from nbafl.data.description import Described

data_app = typer.Typer(
    help="Check tables of your own, and write the schema that says how they become numbers.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Folder = Annotated[str, typer.Argument(help="Folder with one CSV or Parquet file per client.", metavar="DIR")]
Target = Annotated[str | None, typer.Option(help="Column to predict. [schema.toml's]", metavar="COLUMN")]
Test = Annotated[
    str | None,
    typer.Option(help="File with test records, or none: a file called test is a client's.", metavar="FILE"),
]
Task = Annotated[
    str | None, typer.Option(help="binary, classification or regression, where it could be either.")
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(help="Columns to leave out, separated by commas; may be repeated.", metavar="COLUMNS"),
]
Person = Annotated[
    str | None,
    typer.Option(
        help="Column that says whose row it is: all rows of a person are protected together.",
        metavar="COLUMN",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@data_app.command("check", short_help="Describe a folder of tables and everything wrong with it.")
def check(
    folder: Folder,
    target: Target = None,
    test: Test = None,
    task: Task = None,
    ignore: Ignore = None,
    person: Person = None,
    as_json: Json = False,
) -> None:
    """Describe a folder of tables: clients, columns, classes, missing values, and what training would refuse.

    For the owner's eyes: what it prints comes straight from the records.
    """
    from nbafl.data.description import describe

    found = describe(folder, target, test, task, _names(ignore), person)
    if as_json:
        print(json.dumps(found.to_dict(), indent=2, allow_nan=False))
    else:
        _print(found)
    if found.problems:
        raise DataError(f"{folder} cannot be trained on yet, for the reasons above.")


@data_app.command("schema", short_help="Write DIR/schema.toml for a person to read and declare public.")
def schema(
    folder: Folder,
    target: Target = None,
    test: Test = None,
    task: Task = None,
    ignore: Ignore = None,
    person: Person = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a schema.toml that is there.")] = False,
) -> None:
    """Write DIR/schema.toml: kinds, ranges, categories, and rules for missing values.

    Columns that look like identifiers, persons or dates are named and left out: their values stay out of the file.

    Its contents are read from the records, so it starts with public = false. Correct it from public knowledge (a code
    book, not the data), then set public = true: nothing that shapes the model is read from private records any more.
    """
    from nbafl.data.description import write_draft
    from nbafl.data.identifying import ways_out
    from nbafl.data.inference import Wanted

    if target is None:
        raise UsageError("target", None, "the name of the column to predict")
    wanted = Wanted(target, task, _names(ignore), person)
    drafted = write_draft(folder, wanted, test, replace=force)
    made, left_out = drafted.schema, drafted.left_out
    print(drafted.sentence)
    if left_out:
        print("Left out, so that no value of theirs is in the file (they stand under ignore):")
        for each in left_out:
            print(f"  {each.name}: {each.looks} ({each.different:,} different values in {each.rows:,} rows)")
        print(f"If that is wrong (then --force): {ways_out(left_out)}.")
    filled = [column.name for column in made.columns if column.fill is not None]
    if filled:
        print(
            f"Rules for missing values (a constant beside an indicator, or a category of its own): {', '.join(filled)}."
        )
    if drafted.problems:
        print(f"Training will still refuse: {' '.join(drafted.problems)}")
    print("Read it, correct it from what is known in public, then set public = true.")


def _names(ignore: list[str] | None) -> tuple[str, ...]:
    from nbafl.data.inference import names_in

    return names_in(",".join(ignore or ()))


def settled_test(fields: dict[str, Any]) -> dict[str, Any]:
    """Ask about a file called test that no option names; without a terminal the data room refuses it."""
    from nbafl.data.tabular import AS_CLIENT, unnamed_test

    dataset = fields.get("dataset", "mnist")
    if dataset == "mnist" or fields.get("test") is not None:
        return fields
    lying = unnamed_test(dataset)
    if lying is None or not sys.stdin.isatty():
        return fields
    answer = typer.confirm(
        f"{lying} is in the folder. Use it as the test set (no: train on it as a client)?", default=True
    )
    return {**fields, "test": str(lying) if answer else AS_CLIENT}


def _print(found: Described) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(soft_wrap=True)
    sizes = ", ".join(f"{name} {size:,}" for name, size in found.clients.items())
    total = sum(found.clients.values())
    say(f"{_counted(len(found.clients), 'client')} with {total:,} records: {sizes}")
    say(f"Test file: {found.test or 'none'}. Schema: {found.schema}.")
    table = Table()
    for heading in ("column", "kind", "different", "from", "to", "missing", ""):
        table.add_column(heading)
    for column in found.columns:
        missing = ", ".join(f"{name} {count}" for name, count in column["missing"].items())
        ends = ["" if column[end] is None else f"{column[end]:g}" for end in ("from", "to")]
        table.add_row(
            column["name"], column["kind"], str(column["different"]), *ends, missing, column["remark"]
        )
    console.print(table)
    if found.classes is not None:
        names = list(next(iter(found.classes.values())))
        table = Table(title="Classes at each client")
        for heading in ("client", *names):
            table.add_column(heading)
        for client, counts in found.classes.items():
            table.add_row(client, *(str(count) for count in counts.values()))
        console.print(table)
    for remark in found.remarks:
        say(f"Note: {remark}")
    for problem in found.problems:
        say(f"Problem: {problem}")


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
