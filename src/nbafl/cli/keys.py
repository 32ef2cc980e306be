"""`nbafl keys`: the keys of clients and the certificates of a server."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

keys_app = typer.Typer(
    help="Make the keys of clients and the certificates of a server.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@keys_app.command("make")
def make(
    names: Annotated[
        list[str], typer.Argument(help="Name of this client (or several); the files are NAME and NAME.pub.")
    ],
    out: Annotated[Path, typer.Option(help="Folder to write to.", metavar="DIR")] = Path(),
    records: Annotated[
        int | None,
        typer.Option(
            help="Records this client holds (persons, where the data has a person column); the server is told.",
            min=1,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a client's keys. The private half never leaves the client; NAME.pub goes to the server.

    Example: nbafl keys make north-hospital --records 1200
    """
    from nbafl.durable import check_folder
    from nbafl.flower.keys import fingerprint, make_client_key, read_public_key

    check_folder("out", out)
    made = [make_client_key(name, out, records) for name in names]
    found = [fingerprint(read_public_key(public)) for _, public in made]
    if as_json:
        rows = [
            {"private": str(private), "public": str(public), "fingerprint": known}
            for (private, public), known in zip(made, found, strict=True)
        ]
        print(json.dumps(rows[0] if len(rows) == 1 else rows))
        return
    for name, (private, public), known in zip(names, made, found, strict=True):
        print(f"private keys {private}  (keep them secret: anyone who has them can answer as {name})")
        print(f"public keys  {public}  (give them to the server)")
        print(f"fingerprint  {known}")


@keys_app.command("roster")
def roster(
    keys: Annotated[list[Path], typer.Argument(help="Key files (NAME.pub), in the order of their numbers.")],
    out: Annotated[Path, typer.Option(help="File to write.", metavar="FILE")] = Path("roster.toml"),
    records: Annotated[
        int | None,
        typer.Option(help="Records (or persons) of each client whose key file does not say.", min=1),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the roster: who takes part, under which number, with which keys and how many records.

    Example: nbafl keys roster north.pub south.pub --out roster.toml
    """
    from nbafl.durable import check_file
    from nbafl.errors import UsageError
    from nbafl.flower.keys import read_identity
    from nbafl.flower.roster import Roster

    if out.exists():
        raise UsageError("out", str(out), "a file that does not exist yet (rosters are never overwritten)")
    check_file("out", out)
    made = Roster.of([read_identity(key) for key in keys], records)
    made.save(out)
    if as_json:
        print(json.dumps({"roster": str(out), "sha256": made.digest(), "clients": len(made.members)}))
        return
    for member in made.members:
        print(f"{member.number:>4}  {member.name}  {member.records} records (or persons)")
    print(f"roster {out}, sha256 {made.digest()}")


def ask_passphrase(twice: bool = False) -> str:
    """The passphrase of the authority's key: NBAFL_PASSPHRASE, or asked for."""
    from nbafl.errors import UsageError

    given = os.environ.get("NBAFL_PASSPHRASE")
    if given is None and not sys.stdin.isatty():
        asked = "the passphrase of the authority's key, where nobody can be asked"
        raise UsageError("NBAFL_PASSPHRASE", None, asked)
    if given is None:
        given = str(
            typer.prompt("Passphrase of the authority's key", hide_input=True, confirmation_prompt=twice)
        )
    return given


@keys_app.command("renew")
def renew(
    home: Annotated[Path, typer.Argument(help="Folder of the federation.", metavar="HOME")],
    name: Annotated[
        list[str] | None, typer.Option(help="Name or IP address clients use (repeat). [as before]")
    ] = None,
) -> None:
    """Make a new server certificate by the same authority: clients need nothing new, a running server takes it up.

    Needs the authority's key (nbafl serve --prepare --keep-authority) and its passphrase (asked for, or NBAFL_PASSPHRASE).

    Example: nbafl keys renew federation
    """
    from nbafl.flower.certificates import check_hosts, expiry
    from nbafl.flower.certificates import renew as make_new
    from nbafl.folders.homes import HomeFolder

    check_hosts("name", name or [])
    made = make_new(HomeFolder(home).certificate_folder, ask_passphrase(), name or [])
    print(f"certificate  {made.certificate}, until {expiry(made.certificate):%Y-%m-%d}")


@keys_app.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(help="Name of the client, as in the roster.")],
    home: Annotated[Path, typer.Option(help="Folder of the federation.", metavar="DIR")] = Path("federation"),
) -> None:
    """Shut a client out from the next round on, without a restart. A replacement means a new roster and a new run.

    Example: nbafl keys revoke north-hospital --home federation
    """
    from nbafl.flower import operations

    asked = operations.revoke(home, name)
    print(f"revoked: {', '.join(asked.revoked)}")


@keys_app.command("show")
def show(key: Annotated[Path, typer.Argument(help="A public key file.")], as_json: Json = False) -> None:
    """Print the fingerprint of a public key, to compare by telephone.

    Example: nbafl keys show north-hospital.pub
    """
    from nbafl.flower.keys import fingerprint, read_public_key

    found = fingerprint(read_public_key(key))
    print(json.dumps({"fingerprint": found}) if as_json else found)


@keys_app.command("certificate")
def certificate(
    host: Annotated[
        list[str], typer.Argument(help="Names and IP addresses by which clients reach the server.")
    ],
    out: Annotated[Path, typer.Option(help="Folder to write to.", metavar="DIR")] = Path("tls"),
    as_json: Json = False,
) -> None:
    """Make a server's certificate and the authority that signs it. `nbafl serve` does this by itself.

    Example: nbafl keys certificate fl.example.org 192.0.2.7 --out federation/tls
    """
    from dataclasses import asdict

    from nbafl.durable import check_folder
    from nbafl.flower.certificates import check_hosts, make_certificates

    check_hosts("host", host)
    check_folder("out", out)
    made = make_certificates(host, out)
    if as_json:
        print(json.dumps({name: str(path) for name, path in asdict(made).items()}))
        return
    print(f"authority    {made.authority}  (give it to every client)")
    print(f"certificate  {made.certificate}")
    print(f"private key  {made.key}  (keep it on the server)")
