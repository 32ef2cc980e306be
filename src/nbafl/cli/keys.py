"""`nbafl keys`: the keys of clients and the certificates of a server."""

from __future__ import annotations

import json
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
    name: Annotated[str, typer.Argument(help="Name of this client; the files are called NAME and NAME.pub.")],
    out: Annotated[Path, typer.Option(help="Folder to write to.", metavar="DIR")] = Path(),
    as_json: Json = False,
) -> None:
    """Make a client's key pair. The private half never leaves the client; NAME.pub goes to the server.

    Example: nbafl keys make north-hospital
    """
    from nbafl.flower.keys import fingerprint, make_client_key, read_public_key

    private, public = make_client_key(name, out)
    if as_json:
        found = fingerprint(read_public_key(public))
        print(json.dumps({"private": str(private), "public": str(public), "fingerprint": found}))
        return
    print(f"private key  {private}  (keep it: whoever has it can answer as {name})")
    print(f"public key   {public}  (give it to the server)")
    print(f"fingerprint  {fingerprint(read_public_key(public))}")


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

    from nbafl.flower.keys import make_certificates

    made = make_certificates(host, out)
    if as_json:
        print(json.dumps({name: str(path) for name, path in asdict(made).items()}))
        return
    print(f"authority    {made.authority}  (give it to every client)")
    print(f"certificate  {made.certificate}")
    print(f"private key  {made.key}  (keep it on the server)")
