"""`nbafl serve`: the server of a real federation, over TLS, with registered clients only."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nbafl.cli.options import plan_fields, with_plan_options

if TYPE_CHECKING:
    from nbafl.flower.home import Home
    from nbafl.flower.server import Server
    from nbafl.run import Run
    from nbafl.simulation.metrics import RoundMetrics

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
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8443,
    name: Annotated[
        list[str] | None, typer.Option(help="Name or IP address clients use, for the certificate (repeat).")
    ] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for clients to connect.")] = 600.0,
    timeout: Annotated[float, typer.Option(help="Seconds a round may take.")] = 600.0,
    min_answers: Annotated[
        int | None, typer.Option(help="Stop when fewer clients answer a round. [half of those drawn]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    from nbafl.flower.console import configure_logging
    from nbafl.flower.home import prepare as open_home
    from nbafl.plan import Plan

    configure_logging(quiet=as_json)
    plan = Plan(**plan_fields(given)) if given else None
    found = open_home(home, plan, name or [])
    if prepare:
        _print_handout(found)
        return
    run = _serve(found, host, port, wait, timeout, min_answers, quiet=as_json)
    if as_json:
        print(json.dumps(run.summary(), indent=2, allow_nan=False))
    else:
        print(f"run folder {run.path}; report {run.path / 'report.html'}")


def _serve(
    home: Home, host: str, port: int, wait: float, timeout: float, min_answers: int | None, quiet: bool
) -> Run:
    from nbafl.errors import NbaflError, UsageError
    from nbafl.flower.console import RoundTable
    from nbafl.flower.link import Link
    from nbafl.flower.local_data import server_data
    from nbafl.flower.server import Server
    from nbafl.flower.strategy import TooFew
    from nbafl.run import Run, folder_of, locked, train
    from nbafl.simulation.models import build

    test = server_data(home.plan)
    model = build(home.plan.model, test.shape, test.outputs, home.plan.seed)
    resume = (home.run / "plan.toml").is_file()
    run = Run(folder_of(home.plan, home.run, resume), home.plan)
    if run.finished:
        raise UsageError("home", str(home.path), "a folder whose run is not finished yet; start a new one")
    largest = 2 * sum(p.numel() * p.element_size() for p in model.parameters()) + 2**20
    with (
        locked(run.path),
        RoundTable(home.plan, quiet) as table,
        Link(host, port, home.certificates, home.client_keys(), largest) as link,
    ):
        server = Server(
            home.plan,
            model,
            link,
            test=(test.x, test.y),
            task=test.task,
            timeout=timeout,
            wait=wait,
            min_answers=min_answers,
            answers=run.path / "answers.jsonl",
        )
        names = home.client_names

        def show(metrics: RoundMetrics) -> None:
            last = server.strategy.last
            table.add(metrics, [names[client] for client in sorted(last.missing)] if last else [])

        if not quiet:
            print(f"listening on {host}:{port} for {home.plan.clients} clients", flush=True)
        try:
            train(run, server, _fingerprint(server, home), resume, show)
            server.say_goodbye("finished")
        except NbaflError as error:
            told = error.told if isinstance(error, TooFew) else "the server's own log says why"
            server.say_goodbye(f"stopped: {told}")
            raise
    return run


def _fingerprint(server: Server, home: Home) -> str:
    """Plan and shape of the model: what a checkpoint must fit."""
    shapes = [[name, list(value.shape)] for name, value in server.module().named_parameters()]
    return hashlib.sha256((home.plan.digest() + json.dumps(shapes)).encode()).hexdigest()


def _print_handout(home: Home) -> None:
    noise = home.plan.noise_scales()
    print(f"plan {home.plan.digest()}")
    print(f"  {home.plan.clients} clients, {home.plan.drawn} a round, {home.plan.rounds} rounds")
    print(
        f"  epsilon {home.plan.epsilon:g} at delta {home.plan.delta:g} against {home.plan.adversary}, "
        f"sigma uplink {float(noise.sigma_uplink.max()):.4g}, sigma downlink {noise.sigma_downlink:.4g}"
    )
    for sentence in (*home.plan.assumptions(), *home.plan.warnings()):
        print(f"  {sentence}")
    files = ", ".join(sorted(file.name for file in home.handout.iterdir()))
    print(f"give every client the folder {home.handout} ({files})")
    print(
        f"put every client's public key (nbafl keys make NAME) into {home.key_folder}, then: "
        f"nbafl serve --home {home.path}"
    )
