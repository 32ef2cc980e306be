"""`nbafl join`: take part in a federation with one's own data, code, key and limits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from nbafl.flower.client import Client
    from nbafl.flower.release import Releaser
    from nbafl.plan import Plan
    from nbafl.privacy.ledger import Ledger

HELP = """Take part in a federation: train on your own data, send only clipped and noised updates, keep the ledger.

The server's messages are data: the code that runs is the one installed here. The plan you agreed to, the certificate
of the federation and (for CSV data) the schema come from the handout of the server, by a way you trust.

\b
Examples:
  nbafl join fl.example.org:8443 --handout handout/ --key north-hospital --data records.csv
  nbafl join 127.0.0.1:8443 --handout federation/handout --key a --data mnist:0/4 --epsilon 8 --delta 1e-5
"""


@dataclass(frozen=True)
class Agreement:
    """What the client got beforehand, by a way it trusts."""

    plan: Path
    certificate: Path
    schema: Path | None

    @classmethod
    def of(
        cls, handout: Path | None, plan: Path | None, certificate: Path | None, schema: Path | None
    ) -> Agreement:
        from nbafl.errors import UsageError

        if handout is not None:
            found = handout / "schema.json"
            plan, certificate = plan or handout / "plan.toml", certificate or handout / "ca.crt"
            schema = schema or (found if found.is_file() else None)
        if plan is None or certificate is None:
            raise UsageError("handout", None, "the server's handout folder, or --plan and --certificate")
        if not certificate.is_file():
            raise UsageError("certificate", str(certificate), "a file: the certificate of the federation")
        return cls(plan, certificate, schema)


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
        Path | None, typer.Option(help="Schema of CSV data (schema.json).", metavar="FILE")
    ] = None,
    outputs: Annotated[
        int | None, typer.Option(help="Classes of the task, for data from a function.")
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="Folder of the ledger. [~/.nbafl/KEY]", metavar="DIR")
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="This client's own limit over all plans. [its ledger's, or the plan's]"),
    ] = None,
    delta: Annotated[float | None, typer.Option(help="At this delta. [its ledger's, or the plan's]")] = None,
    exposures: Annotated[
        int,
        typer.Option(
            help="L: count on an outsider seeing this many of the uploads, if more than the plan.", min=1
        ),
    ] = 1,
    max_releases: Annotated[int | None, typer.Option(help="Uploads allowed in all. [any]")] = None,
    patience: Annotated[float, typer.Option(help="Seconds to go on trying when the server is away.")] = 600.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    from nbafl.errors import Refused
    from nbafl.flower.console import configure_logging
    from nbafl.flower.keys import read_private_key
    from nbafl.flower.node import Connection, alone, stay
    from nbafl.flower.quiet import check_flower
    from nbafl.flower.release import Releaser
    from nbafl.plan import Plan
    from nbafl.privacy.ledger import Ledger, Limits

    configure_logging(quiet=as_json)
    check_flower()
    _check_address(address)
    agreement = Agreement.of(handout, plan, certificate, schema)
    agreed, private = Plan.from_toml(agreement.plan), read_private_key(key)
    folder = state or Path.home() / ".nbafl" / key.name
    with alone(folder):
        ledger = Ledger(folder / "ledger.sqlite")
        ledger.agree(epsilon, delta, max_releases, Limits(agreed.epsilon, agreed.delta))
        releaser = Releaser(agreed, ledger, exposures)
        client = _client(releaser, data, agreement.schema, outputs)
        if not as_json:
            _print_agreement(agreed, ledger, releaser)
        connection = Connection(address, agreement.certificate, private, folder / "node")
        stay(connection, client.handle, lambda: client.spent is not None, patience)
        _print_outcome(ledger, client, as_json)
    if client.spent:
        raise Refused(f"This client left the federation: {client.spent}")
    if client.ended != "finished":
        raise Refused(f"The federation did not finish: {client.ended}")


def _check_address(address: str) -> None:
    from nbafl.errors import UsageError

    host, _, port = address.rpartition(":")
    named = bool(host) and not any(letter.isspace() or letter in "/@?#" for letter in host)
    if not (named and port.isdecimal() and 1 <= int(port) <= 65535):
        raise UsageError("address", address, "HOST:PORT with a port between 1 and 65535")


def _client(releaser: Releaser, data: str, schema: Path | None, outputs: int | None) -> Client:
    from nbafl.flower.client import Client
    from nbafl.flower.local_data import client_data, read_schema
    from nbafl.flower.release import check_client
    from nbafl.simulation.models import build

    plan = releaser.plan
    local = client_data(data, plan, read_schema(schema) if schema else None, outputs)
    check_client(plan, int(plan.client_sizes.argmin()), len(local.y))
    model = build(plan.model, local.shape, local.outputs, plan.seed)
    return Client(releaser, model, local.x, local.y, local.task, on_answer=_say_round)


def _print_outcome(ledger: Ledger, client: Client, as_json: bool) -> None:
    import json
    from dataclasses import asdict

    if as_json:
        outcome = {"ended": client.ended, "refused": client.spent, "ledger": str(ledger.path)}
        print(json.dumps({**outcome, "spent": asdict(ledger.spent())}, indent=2), flush=True)
    else:
        print(f"{ledger.spent().releases} releases are on the ledger {ledger.path}", flush=True)


def _say_round(round: int) -> None:
    import logging

    logging.getLogger("nbafl").info("round %d: recorded; sending.", round)


def _print_agreement(plan: Plan, ledger: Ledger, releaser: Releaser) -> None:
    """What this client is about to do, before anything is sent."""
    limits, spent = ledger.limits, ledger.spent()
    assert limits is not None
    possible = ledger.affordable(plan.digest(), releaser.price(0))
    print(
        f"plan {plan.digest()}: {plan.rounds} rounds, sensitivity {plan.sensitivity}, adversary {plan.adversary}"
    )
    for sentence in (*plan.assumptions(), *plan.warnings()):
        print(f"  {sentence}")
    print(
        f"ledger {ledger.path}: {spent.releases} releases so far; limit epsilon {limits.epsilon:g} at delta "
        f"{limits.delta:g} against {releaser.adversary.name}: {possible} more for this plan",
        flush=True,
    )
    expected = plan.rounds * plan.drawn / plan.clients
    if possible < expected:
        print(
            f"  The limit ends before the plan does: {expected:g} rounds are expected of this client. The ledger counts "
            "every participation as known to the adversary; loosen it with `nbafl ledger limit` if you mean to.",
            flush=True,
        )
