"""Help texts as they were written, options in groups: places where typer and click, in the versions at hand, spoil them.

Typer puts a backslash before the bracket of `[default: 5]` for the benefit of rich, even where rich is switched off; and
click 8.5 overwrites the help text that typer gave a positional argument with nothing. Groups of options are known to
rich alone; here they are plain headings.
"""

from __future__ import annotations

import functools
import re

import click
import typer
from typer.core import TyperArgument
from typer.models import ArgumentInfo

from nbafl.field_entries import PlanField
from nbafl.fields import table

OFTEN = ("dataset", "target", "model", "seed")


CLAUSE, DEFAULT = re.compile(r"[;:] | \(under |\. |, where | \["), re.compile(r"\[([^\[\]]*)\]$")
"""Of a field's help: where its conditions begin, and its default."""
ALL = "--help-all"
MANY = 30
"""Options that still make one screen; where a verb has more, those of the plan that are rarely set wait for --help-all."""


def readable(command: click.Command, everything: bool = False) -> click.Command:
    """The same command, and its subcommands, with every help text in place; `everything`: rare options too."""
    typer.core.HAS_RICH = False
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        readable(each, everything)
        each.short_help = each.short_help or _first_words(each.help or "")
    written = typer.main.get_params_from_function(getattr(command.callback, "__wrapped__", lambda: None))
    if not isinstance(command, click.Group):
        command.format_options = functools.partial(_in_groups, command, everything)  # type: ignore[method-assign]
    for parameter in command.params:
        info = written[parameter.name].default if parameter.name in written else None
        if isinstance(parameter, TyperArgument) and isinstance(info, ArgumentInfo) and not parameter.help:
            _restore(parameter, info.help or "")
    return command


def _first_words(text: str) -> str:
    """A verb of verbs in the list of its group, in a line that is not cut short."""
    return re.split(r"[;:.] | \(", text.partition("\n")[0])[0].rstrip(".") + "."


def _restore(argument: TyperArgument, text: str) -> None:
    """Say `text` about an argument; were it set as its `help`, click would list the argument a second time."""
    without = argument.get_help_record

    def record(ctx: click.Context) -> tuple[str, str] | None:
        found = without(ctx)
        return found and (found[0], f"{text}  {found[1]}".strip())

    argument.get_help_record = record  # type: ignore[method-assign]


def _rare(parameter: click.Parameter) -> bool:
    """Whether an option sets a field of the plan that most people leave alone."""
    field = table().get(parameter.name or "")
    return field is not None and field.entry.shown != "front" and field.name not in OFTEN


def _in_short(text: str, field: PlanField) -> str:
    """The first clause about a field, the values it may take, and its default."""
    clause, default = CLAUSE.split(text)[0].rstrip("."), DEFAULT.search(text)
    values = f": {', '.join(field.entry.choices())}" if field.entry.choices else ""
    shown = default[1].partition(";")[0] if default else ""
    left_out = "[follows from the others]" if field.entry.fitted else f"[{shown}]"
    return f"{clause}{values}. {left_out if default else ''}".rstrip()


def _in_groups(
    command: click.Command, everything: bool, ctx: click.Context, formatter: click.HelpFormatter
) -> None:
    """Arguments, then the options under the name of their group, in the order in which groups first appear."""
    groups: dict[str, list[tuple[str, str]]] = {"Arguments": []}
    parameters = command.get_params(ctx)
    folded = [each for each in parameters if _rare(each)] if len(parameters) > MANY and not everything else []
    for parameter in (each for each in parameters if each not in folded):
        record = parameter.get_help_record(ctx)
        if record is not None:
            of_options = getattr(parameter, "rich_help_panel", None) or "Options"
            name = "Arguments" if isinstance(parameter, click.Argument) else of_options
            field = table().get(parameter.name or "") if folded else None
            about = record[1] if field is None else _in_short(record[1], field)
            groups.setdefault(name, []).append((record[0], about))
    for name, records in groups.items():
        if records:
            with formatter.section(name):
                formatter.write_dl(records)
    if folded:
        formatter.write_paragraph()
        formatter.write_text(
            f"More about these, and {len(folded)} more options of the plan: {ctx.command_path} {ALL}"
        )
