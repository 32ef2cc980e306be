"""`nbafl join`: take part in a federation with one's own data, code, key and limits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nbafl.cli.lines import say

if TYPE_CHECKING:
    from nbafl.flower.joining import Check, Outcome
    from nbafl.flower.limits import Wanted
    from nbafl.flower.release import Releaser

HELP = """Take part in a federation: train on your own data, send only clipped and noised updates, keep the ledger.

The server's messages are data: the code that runs is the one installed here. The plan you agreed to, the certificate
of the federation and (for CSV data) the schema come from the handout of the server, by a way you trust.

\b
Examples:
  nbafl join fl.example.org:8443 --handout handout --key north-hospital \\
      --data records.csv --epsilon 8 --epsilon-uploads 50
  nbafl join fl.example.org:8443 --handout handout --key north-hospital \\
      --data records.csv --begin --records 1200
      # makes the keys, waits for the handout, asks for limits, takes part
  nbafl join 127.0.0.1:8443 --handout federation/handout --key a \\
      --data mnist:0/4 --epsilon 8 --delta 1e-5
"""


HANDOUT_PATIENCE = 7 * 86400.0
"""Seconds until a handout that does not come is given up on: people answer letters."""


def join(
    address: Annotated[
        str, typer.Argument(help="Where the server listens, as HOST:PORT.", metavar="HOST:PORT")
    ],
    key: Annotated[Path, typer.Option(help="This client's private key (nbafl keys make).", metavar="FILE")],
    data: Annotated[
        str,
        typer.Option(
            help="mnist:INDEX/N, a CSV file, a folder of CSV files, or package.module:function.",
            metavar="DATA",
        ),
    ],
    handout: Annotated[Path | None, typer.Option(help="The server's handout folder.", metavar="DIR")] = None,
    plan: Annotated[Path | None, typer.Option(help="The plan agreed to.", metavar="FILE")] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="Certificate of the federation (ca.crt).", metavar="FILE")
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(help="Schema of CSV data (schema.toml).", metavar="FILE")
    ] = None,
    outputs: Annotated[
        int | None, typer.Option(help="Classes of the task, for data from a function.")
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="Folder of the ledger. [~/.nbafl/KEY]", metavar="DIR")
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="This client's own limit over all plans. [its ledger's; else you are asked]"),
    ] = None,
    epsilon_uploads: Annotated[
        float | None,
        typer.Option(
            help="The same for the server itself: every upload, or sums where they are masked. [its ledger's, or any]"
        ),
    ] = None,
    delta: Annotated[float | None, typer.Option(help="At this delta. [its ledger's, or the plan's]")] = None,
    exposures: Annotated[
        int,
        typer.Option(
            help="L: count on an outsider seeing this many of the uploads, if more than the plan.", min=1
        ),
    ] = 1,
    max_releases: Annotated[int | None, typer.Option(help="Uploads allowed in all. [any]")] = None,
    held_out: Annotated[
        str | None,
        typer.Option(
            help="Records of your own on which the model is measured, where the handout agrees on that.",
            metavar="DATA",
        ),
    ] = None,
    proxy: Annotated[
        str | None,
        typer.Option(
            help="HTTPS proxy on the way to the server. [HTTPS_PROXY of the environment]", metavar="URL"
        ),
    ] = None,
    begin: Annotated[
        bool, typer.Option("--begin", help="Make the keys if they are not there, and wait for the handout.")
    ] = False,
    records: Annotated[
        int | None,
        typer.Option(
            help="With --begin: records this client holds (persons, where the data has a person column); the server is "
            "told.",
            min=1,
        ),
    ] = None,
    log: Annotated[str, typer.Option(help="Log lines for people (text) or machines (json).")] = "text",
    patience: Annotated[float, typer.Option(help="Seconds to go on trying when the server is away.")] = 600.0,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Compare everything with the server's, release and write nothing, and stop."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    from nbafl.errors import Refused, UsageError
    from nbafl.flower.beginning import begin as start
    from nbafl.flower.console import configure_logging
    from nbafl.flower.joining import Agreement, Asked
    from nbafl.flower.joining import check as try_out
    from nbafl.flower.joining import join as take_part

    configure_logging(quiet=as_json, log=log)
    if records is not None and not begin:
        raise UsageError("records", records, "left out without --begin: the key file says it")
    if begin:
        start(key, handout, records, HANDOUT_PATIENCE, lambda line: typer.echo(line, err=as_json))
    agreement = Agreement.of(handout, plan, certificate, schema)
    ask = _ask if sys.stdin.isatty() and not as_json else None
    if check:
        asked = Asked(
            outputs, state, epsilon, delta, exposures, epsilon_uploads, max_releases, proxy, ask, held_out
        )
        found = try_out(address, key, data, agreement, asked)
        _print_check(found, as_json)
        if found.problems:
            raise Refused(f"This client would refuse: {' '.join(found.problems)}")
        return
    outcome = take_part(
        address,
        key,
        data,
        agreement,
        outputs=outputs,
        state=state,
        epsilon=epsilon,
        delta=delta,
        exposures=exposures,
        epsilon_uploads=epsilon_uploads,
        max_releases=max_releases,
        proxy=proxy,
        held_out=held_out,
        ask=ask,
        patience=patience,
        on_agreed=None if as_json else _print_agreement,
        on_answer=_say_round,
    )
    _print_outcome(outcome, as_json)
    if outcome.problem:
        raise Refused(outcome.problem)


def _print_check(found: Check, as_json: bool) -> None:
    import json
    from dataclasses import asdict
    from datetime import UTC, datetime

    if as_json:
        print(json.dumps(asdict(found), indent=2), flush=True)
        return
    until = datetime.fromtimestamp(found.facts.expires, UTC)
    say(
        f"server       {found.facts.rounds_done} rounds done; takes this client for number {found.number + 1}"
    )
    say(f"round trip   {1000 * found.round_trip:.0f} ms")
    say(f"certificate  until {until:%Y-%m-%d}")
    say(f"plan         {found.facts.plan}")
    for sentence in found.promise:
        say(f"price        {sentence}")
    say(f"ledger       room for {found.possible} answers to this plan")
    for remark in found.remarks:
        say(f"remark       {remark}")
    for problem in found.problems:
        say(f"problem      {problem}")
    if not found.problems:
        say("ready        size, schema, roster, model, plan and limits fit; nothing was released or written")


def _print_outcome(outcome: Outcome, as_json: bool) -> None:
    import json
    from dataclasses import asdict

    if as_json:
        print(json.dumps(asdict(outcome), indent=2, default=str), flush=True)
    else:
        print(f"{outcome.spent.releases} releases are on the ledger {outcome.ledger}", flush=True)


def _say_round(round: int) -> None:
    import logging

    logging.getLogger("nbafl").info("round %d: recorded; sending.", round)


def _print_promise(releaser: Releaser) -> None:
    """What the plan promises, and what its uploads are worth to the server that wrote it."""
    from nbafl.flower.limits import sentences

    plan = releaser.plan
    say(
        f"plan {plan.digest()}: {plan.rounds} rounds, sensitivity {plan.sensitivity}, adversary {plan.adversary}"
    )
    for sentence in (*sentences(releaser), *plan.assumptions(), *plan.warnings()):
        say(f"  {sentence}")


def _ask(releaser: Releaser) -> Wanted:
    """Limits from whoever sits at the terminal; nothing is suggested, because the plan is the server's word."""
    from nbafl.flower.limits import Wanted

    _print_promise(releaser)
    unit = f"a {releaser.account.unit} ({releaser.account.change})"
    asked = f"This client's own limit for {unit}, epsilon over all plans, each against the adversary it names"
    epsilon = typer.prompt(asked, type=float)
    delta = typer.prompt("At which delta", type=float)
    uploads = typer.prompt("And to the server itself (empty: no limit)", default="", show_default=False)
    return Wanted(epsilon, delta, None, _number(uploads) if uploads.strip() else None)


def _number(text: str) -> float:
    from nbafl.errors import UsageError

    try:
        return float(text)
    except ValueError:
        raise UsageError("epsilon_uploads", text, "a number, or empty for no limit") from None


def _print_agreement(releaser: Releaser) -> None:
    """What this client is about to do, before anything is sent."""
    from nbafl.privacy.ledger import sums, wording

    plan, ledger = releaser.plan, releaser.ledger
    made, _ = sums.of_plan(ledger.execute, plan.digest())
    limits, spent = ledger.limits_of(releaser.account), ledger.spent()
    assert limits is not None
    possible = ledger.affordable(plan.digest(), releaser.price(0))
    against = ledger.against(plan.digest(), releaser.adversary.name)
    _print_promise(releaser)
    roster = getattr(releaser, "roster", "")
    if roster:
        say(
            f"roster {roster}: compare it with the other clients', over a channel that does not pass the server"
        )
    uploads = "" if limits.epsilon_uploads is None else f", {limits.epsilon_uploads:g} to the server itself,"
    say(
        f"ledger {ledger.path}: {spent.releases} releases so far; limit for a {releaser.account.unit} "
        f"({releaser.account.change}): epsilon {limits.epsilon:g} against {against}{uploads} at delta "
        f"{limits.delta:g}, over all plans: {possible} more for this plan",
    )
    expected = plan.rounds * plan.drawn / plan.clients
    if made + possible < expected:
        binding = [each for each in ledger.limits() if each.account in (releaser.account, None)]
        loosening = "; ".join(wording.loosening(ledger.path.parent, each) for each in binding)
        say(
            f"  The limit ends before the plan does: {expected:g} rounds are expected of this client. The ledger counts "
            f"every participation as known to the adversary. To loosen it, with larger numbers: {loosening}",
        )
