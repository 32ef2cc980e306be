"""The command line: one file per verb. Heavy imports happen inside the verbs, so `--help` answers at once.

Exit codes: 0 done; 1 refused, failed, or an audit that refutes; 2 bad usage or an invalid plan; 130 Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import click
import typer

from nbafl import __version__
from nbafl.cli import audit as audit_verb
from nbafl.cli import bench as bench_verb
from nbafl.cli import doctor as doctor_verb
from nbafl.cli import evidence as evidence_verb
from nbafl.cli import help as help_texts
from nbafl.cli import join as join_verb
from nbafl.cli import plan as plan_verb
from nbafl.cli import predict as predict_verb
from nbafl.cli import reproduce as reproduce_verb
from nbafl.cli import run as run_verb
from nbafl.cli import serve as serve_verb
from nbafl.cli import status as status_verb
from nbafl.cli import studio as studio_verb
from nbafl.cli import sweep as sweep_verb
from nbafl.cli.data import data_app
from nbafl.cli.keys import keys_app
from nbafl.cli.ledger import ledger_app
from nbafl.cli.lines import say
from nbafl.errors import NbaflError


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"nbafl {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="nbafl",
    help="Train one model over data that never leaves its owners, and say what an eavesdropper could learn.",
    epilog="\b\nStart with:               nbafl run\nWhat would it promise?    nbafl plan --epsilon 8",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


@app.callback()
def main_options(
    version: Annotated[  # the callback answers
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Options of `nbafl` itself, before any verb."""


VERBS = (
    ("plan", plan_verb.plan, plan_verb.HELP, "Say how much noise a plan needs and what it guarantees."),
    ("run", run_verb.run, run_verb.HELP, "Train a federation on this machine; leaves a report."),
    ("predict", predict_verb.predict, predict_verb.HELP, "Use the model of a run on new rows."),
    ("sweep", sweep_verb.sweep, sweep_verb.HELP, "Train many runs; leaves a table and a page."),
    (
        "reproduce",
        reproduce_verb.reproduce,
        reproduce_verb.HELP,
        "Reproduce the paper's figures and judge its claims.",
    ),
    ("audit", audit_verb.audit, audit_verb.HELP, "Attack the mechanism and prove how much leaks."),
    (
        "evidence",
        evidence_verb.evidence,
        evidence_verb.HELP,
        "Write or check one signed file about a run.",
    ),
    ("bench", bench_verb.bench, bench_verb.HELP, "Measure this machine against the arithmetic floor."),
    ("studio", studio_verb.studio, studio_verb.HELP, "Plan, watch and compare in the browser."),
    ("serve", serve_verb.serve, serve_verb.HELP, "Run a federation of real parties."),
    ("status", status_verb.status, status_verb.HELP, "Show the status of a federation's server."),
    ("doctor", doctor_verb.doctor, doctor_verb.HELP, "Show what this machine has and what is missing."),
    ("join", join_verb.join, join_verb.HELP, "Take part in a federation with your own data."),
)
"""Each verb with its help, and in one line that fits the list of verbs on a narrow terminal."""

for _name, _verb, _help, _line in VERBS:
    app.command(_name, help=_help, short_help=_line)(_verb)
app.add_typer(data_app, name="data", short_help="Check tables of your own and write their schema.")
app.add_typer(ledger_app, name="ledger", short_help="Read, check and govern what a client has released.")
app.add_typer(keys_app, name="keys")

EXTRAS = {
    "flwr": "flower",
    "cryptography": "flower",
    "nicegui": "studio",
    "fastapi": "studio",
    "starlette": "studio",
}
"""Packages that only an extra brings, and its name."""


def main() -> None:
    """Run a verb; every failure a user can cause ends in one sentence and the exit code of its kind."""
    sys.exit(run_command(sys.argv[1:]))


def run_command(arguments: list[str]) -> int:
    """Run `nbafl ARGUMENTS` and return the exit code."""
    try:
        everything = help_texts.ALL in arguments
        command = help_texts.readable(typer.main.get_command(app), everything)
        arguments = ["--help" if each == help_texts.ALL else each for each in arguments]
        outcome = command.main(arguments, prog_name="nbafl", standalone_mode=False)
        return outcome if isinstance(outcome, int) else 0
    except NbaflError as error:
        return _say(str(error), error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        return 2
    except click.UsageError as error:
        hint = f" Try '{error.ctx.command_path} --help'." if error.ctx and error.ctx.parent else ""
        return _say(error.format_message() + hint, 2)
    except click.exceptions.Exit as error:
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return _say("Stopped.", 130)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        return _say(f"This needs {error.name}, which is not installed: pip install 'nbafl[{extra}]'.", 1)
    except BrokenPipeError:
        return 1
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        return _say(f"The system refused: {error.strerror or error}{where}.", 1)
    except MemoryError:
        return _say("There is not enough memory for this; use fewer clients, records or a smaller model.", 1)


def _say(sentence: str, code: int) -> int:
    if os.environ.get("RANK", "0") == "0":  # under torchrun one process speaks for all
        say(f"nbafl: {sentence}", sys.stderr)
    return code
