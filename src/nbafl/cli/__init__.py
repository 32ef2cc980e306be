"""The command line: one file per verb. Heavy imports happen inside the verbs, so `--help` answers at once.

Exit codes: 0 done; 1 refused, failed, or an audit that refutes; 2 bad usage or a plan that cannot be; 130 Ctrl-C.
"""

from __future__ import annotations

import sys

import click
import typer

from nbafl.cli import audit as audit_verb
from nbafl.cli import bench as bench_verb
from nbafl.cli import join as join_verb
from nbafl.cli import plan as plan_verb
from nbafl.cli import reproduce as reproduce_verb
from nbafl.cli import run as run_verb
from nbafl.cli import serve as serve_verb
from nbafl.cli import studio as studio_verb
from nbafl.cli.keys import keys_app
from nbafl.cli.ledger import ledger_app
from nbafl.errors import NbaflError

app = typer.Typer(
    name="nbafl",
    help="Train one model over data that never leaves its owners, and say what an eavesdropper could learn.",
    epilog="Start with: nbafl run        What would it promise? nbafl plan --epsilon 8 --delta 1e-5",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.command("plan", help=plan_verb.HELP)(plan_verb.plan)
app.command("run", help=run_verb.HELP)(run_verb.run)
app.command("reproduce", help=reproduce_verb.HELP)(reproduce_verb.reproduce)
app.command("audit", help=audit_verb.HELP)(audit_verb.audit)
app.command("bench", help=bench_verb.HELP)(bench_verb.bench)
app.command("studio", help=studio_verb.HELP)(studio_verb.studio)
app.command("serve", help=serve_verb.HELP)(serve_verb.serve)
app.command("join", help=join_verb.HELP)(join_verb.join)
app.add_typer(ledger_app, name="ledger")
app.add_typer(keys_app, name="keys")


def main() -> None:
    """Run a verb; every failure a user can cause ends in one sentence and the exit code of its kind."""
    sys.exit(run_command(sys.argv[1:]))


def run_command(arguments: list[str]) -> int:
    """Run `nbafl ARGUMENTS` and return the exit code."""
    try:
        outcome = typer.main.get_command(app).main(arguments, prog_name="nbafl", standalone_mode=False)
        return outcome if isinstance(outcome, int) else 0
    except NbaflError as error:
        return _say(str(error), error.exit_code)
    except click.UsageError as error:
        hint = f" Try 'nbafl {error.ctx.info_name} --help'." if error.ctx and error.ctx.parent else ""
        return _say(error.format_message() + hint, 2)
    except click.exceptions.Exit as error:
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return _say("Stopped.", 130)
    except BrokenPipeError:
        return 1
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        return _say(f"The system refused: {error.strerror or error}{where}.", 1)
    except MemoryError:
        return _say("There is not enough memory for this; use fewer clients, records or a smaller model.", 1)


def _say(sentence: str, code: int) -> int:
    print(f"nbafl: {sentence}", file=sys.stderr)
    return code
