"""`nbafl serve`: the server of a real federation, over TLS, with registered clients only."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nbafl.cli.lines import say
from nbafl.cli.options import TRACK, plan_fields, with_plan_options

if TYPE_CHECKING:
    from nbafl.flower.home import Home
    from nbafl.run import Run

HELP = """Run a federation of real parties: wait for the clients, make the rounds, leave a run folder.

Everything lies in one folder (--home). Start the same command again after a crash: the run goes on.

\b
Examples:
  nbafl serve --prepare --clients 2 --sensitivity client --clip 1
      # plan, certificates and a handout for clients
  nbafl serve   # with one public key per client in HOME/clients
  nbafl serve --host 0.0.0.0 --port 8443 --name fl.example.org
"""


@with_plan_options
def serve(
    given: dict[str, Any],
    home: Annotated[
        Path, typer.Option(help="Folder of the federation. [federation]", metavar="DIR", show_default=False)
    ] = Path("federation"),
    prepare: Annotated[
        bool, typer.Option("--prepare", help="Write plan, certificates and handout, and stop.")
    ] = False,
    keep_authority: Annotated[
        bool,
        typer.Option(
            "--keep-authority",
            help="With --prepare: keep the key that signs certificates, encrypted, to renew them later.",
        ),
    ] = False,
    evaluate_every: Annotated[
        int | None,
        typer.Option(help="Without a test set: clients measure the model every so many rounds.", min=1),
    ] = None,
    evaluate_noise: Annotated[
        float | None,
        typer.Option(
            help="Noise of each such sum, in records (persons, clients); one costs 1/noise² in mu². "
            "[what --reserve pays for; 10 without]"
        ),
    ] = None,
    evaluate_bound: Annotated[
        float | None, typer.Option(help="For numbers: the largest squared error that counts.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
    roster: Annotated[
        Path | None,
        typer.Option(
            help="Who takes part: a roster file or a folder of key files (NAME.pub).", metavar="PATH"
        ),
    ] = None,
    follows: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="With --prepare: the federation after this one, with the clients of --roster added and revoked ones left "
            "out.",
            metavar="HOME",
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8443,
    name: Annotated[
        list[str] | None, typer.Option(help="Name or IP address clients use, for the certificate (repeat).")
    ] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for clients to connect.")] = 600.0,
    timeout: Annotated[float, typer.Option(help="Seconds a round may take.")] = 600.0,
    monitor: Annotated[
        str | None,
        typer.Option(help="Answer /healthz, /readyz and /metrics there. [nowhere]", metavar="[HOST:]PORT"),
    ] = None,
    log: Annotated[str, typer.Option(help="Log lines for people (text) or machines (json).")] = "text",
    pause: Annotated[
        bool, typer.Option("--pause", help="Ask the running server to wait before its next round.")
    ] = False,
    go_on: Annotated[bool, typer.Option("--go-on", help="Ask a paused server to go on.")] = False,
    drain: Annotated[
        bool,
        typer.Option("--drain", help="Ask the running server to stop after its round; start it to go on."),
    ] = False,
    track: Annotated[list[str] | None, TRACK] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    from nbafl import tracking
    from nbafl.cli.keys import ask_passphrase
    from nbafl.errors import UsageError
    from nbafl.evaluation import Evaluation
    from nbafl.flower.console import configure_logging
    from nbafl.flower.home import planned
    from nbafl.flower.home import prepare as open_home
    from nbafl.flower.serving import plan_for, roster_from
    from nbafl.flower.succession import follow, scores_of

    configure_logging(quiet=as_json, log=log)
    callbacks = tracking.find(track or ())
    if pause or go_on or drain:
        _operate(home, pause=pause, drain=drain)
        return
    answers = given.get("min_answers")
    if set(given) == {"min_answers"}:  # says how to serve the plan that is there, not another plan
        given = {}
    fields = plan_fields(given) if given else {}
    members = roster_from(roster, fields) if roster is not None and follows is None else None
    if follows is not None:
        fields, members = follow(follows, home, roster, fields)
    passphrase = ask_passphrase(twice=True) if keep_authority else None
    if evaluate_bound is not None and evaluate_every is None:
        raise UsageError("evaluate-bound", evaluate_bound, "left out without --evaluate-every")
    plan, counted = plan_for(fields, members), None
    if evaluate_every is not None and evaluate_noise is not None:
        counted = Evaluation(evaluate_every, evaluate_noise, evaluate_bound)
    elif evaluate_every is not None:
        counted = Evaluation.paid_by(plan or planned(home), evaluate_every, evaluate_bound)
    elif follows is not None and plan is not None:
        counted = scores_of(follows, plan)
    found = open_home(home, plan, name or [], members, passphrase, counted)
    if prepare:
        _print_handout(found)
        return
    options = {"host": host, "port": port, "wait": wait, "timeout": timeout, "min_answers": answers}
    options |= {"monitor_at": None if monitor is None else _address(monitor), "callbacks": callbacks}
    run = _serve_with_table(found, as_json, log == "json", options)
    if as_json:
        print(json.dumps(run.summary(), indent=2, allow_nan=False))
    else:
        print(f"run folder {run.path}; report {run.path / 'report.html'}")


def _operate(home: Path, pause: bool, drain: bool) -> None:
    """Leave a word for the running server."""
    from nbafl.errors import UsageError
    from nbafl.flower import operations
    from nbafl.folders.homes import HomeFolder

    if not HomeFolder(home).plan_file.is_file():
        raise UsageError("home", str(home), "the folder of a federation")
    asked = operations.change(home, paused=pause, drain=drain)
    print(f"asked of the server: {'stop after this round' if asked.drain else 'wait' if pause else 'go on'}")


def _serve_with_table(home: Home, quiet: bool, json_lines: bool, options: dict[str, Any]) -> Run:
    from nbafl.flower.console import RoundTable
    from nbafl.flower.monitor import Progress
    from nbafl.flower.serving import serve as run_server

    def say_listening(home: Home) -> None:
        if not quiet:
            where = f"{options['host']}:{options['port']}"
            print(f"listening on {where} for {home.plan.clients} clients", flush=True)

    progress = Progress()
    with RoundTable(home.plan, progress, quiet, json_lines) as table:
        return run_server(home, on_listening=say_listening, on_round=table.add, progress=progress, **options)


def _address(text: str) -> tuple[str, int]:
    """HOST:PORT, or a port on this machine alone."""
    from nbafl.errors import UsageError

    host, _, port = text.rpartition(":")
    if not (port.isdecimal() and 0 <= int(port) <= 65535):
        raise UsageError("monitor", text, "[HOST:]PORT with a port up to 65535")
    return host or "127.0.0.1", int(port)


def _print_handout(home: Home) -> None:
    from nbafl.privacy.scope import Scope

    noise = home.plan.noise_scales()
    say(f"plan {home.plan.digest()}")
    say(f"  {home.plan.clients} clients, {home.plan.drawn} a round, {home.plan.rounds} rounds")
    say(
        f"  claimed: epsilon {home.plan.epsilon:g} {Scope.of(home.plan).words}; "
        f"sigma uplink {float(noise.sigma_uplink.max()):.4g}, sigma downlink {noise.sigma_downlink:.4g}"
    )
    for sentence in (*_about_scores(home), *home.plan.assumptions(), *home.plan.warnings()):
        say(f"  {sentence}")
    files = ", ".join(sorted(file.name for file in home.handout.iterdir()))
    say(f"give every client the folder {home.handout} ({files})")
    say(_next_step(home))


def _about_scores(home: Home) -> Iterator[str]:
    """What the scores that were agreed on cost, and whether the claim has room for them."""
    from nbafl.evaluation import Evaluation
    from nbafl.privacy import badges
    from nbafl.privacy.scope import Scope

    plan = home.plan
    if not home.evaluation_file.is_file():
        return
    agreed = Evaluation.load(home.evaluation_file)
    count, whole = agreed.count(plan), plan.epsilon_after(plan.rounds, agreed)
    told = f"with {count} noisy score{'' if count == 1 else 's'} of each client (noise {agreed.sigma:.4g}): epsilon "
    told += f"{whole:.4g} {Scope.of(plan).words}, "
    if agreed.keeps(plan):
        yield f"{told}which keeps the claim"
    elif not badges.holds(plan.epsilon_after(plan.rounds), plan.epsilon):
        yield f"{told}above the claim, as it is without them"
    elif (share := agreed.reserve(plan)) is not None:
        yield f"{told}above the claim; a plan with --reserve {share:g} has room for them"
    else:
        yield f"{told}above the claim; more noise or fewer scores would help (--evaluate-noise, --evaluate-every)"


def _next_step(home: Home) -> str:
    """What is to be done before clients can join."""
    start = f"nbafl serve --home {shlex.quote(str(home.path))}"
    if home.roster_file.is_file():
        return f"the roster holds the keys of all {home.plan.clients} clients; next: {start}"
    return f"put every client's public key (nbafl keys make NAME) into {home.key_folder}, then: {start}"
