"""Help texts as they were written: two places where typer and click, in the versions at hand, spoil them.

Typer puts a backslash before the bracket of `[default: 5]` for the benefit of rich, even where rich is switched off; and
click 8.5 overwrites the help text that typer gave a positional argument with nothing.
"""

from __future__ import annotations

import click
import typer
from typer.core import TyperArgument
from typer.models import ArgumentInfo


def readable(command: click.Command) -> click.Command:
    """The same command, and its subcommands, with every help text in place."""
    typer.core.HAS_RICH = False
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        readable(each)
    written = typer.main.get_params_from_function(getattr(command.callback, "__wrapped__", lambda: None))
    for parameter in command.params:
        info = written[parameter.name].default if parameter.name in written else None
        if isinstance(parameter, TyperArgument) and isinstance(info, ArgumentInfo) and not parameter.help:
            _restore(parameter, info.help or "")
    return command


def _restore(argument: TyperArgument, text: str) -> None:
    """Say `text` about an argument; were it set as its `help`, click would list the argument a second time."""
    without = argument.get_help_record

    def record(ctx: click.Context) -> tuple[str, str] | None:
        found = without(ctx)
        return found and (found[0], f"{text}  {found[1]}".strip())

    argument.get_help_record = record  # type: ignore[method-assign]
