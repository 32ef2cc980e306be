"""`nbafl evidence`: one signed file that proves what a run promised, and the check of such a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nbafl import __version__
from nbafl.cli.lines import say
from nbafl.errors import UsageError

if TYPE_CHECKING:
    from nbafl.evidence import Verdict

HELP = """Write one signed file that proves what a run promised, or check such a file.

Exit code of a check: 0 when everything fits, 1 when anything does not; each thing is named. 2: there is no such file, or
it is not evidence.

\b
Examples:
  nbafl evidence runs/NAME
  nbafl evidence federation --ledger north.json --key operator
  nbafl evidence --verify evidence.html --key operator.pub
"""
FILE = "evidence.html"


def evidence(
    run: Annotated[
        Path | None,
        typer.Argument(
            help="A finished run's folder, or a federation's. [none when checking]", metavar="RUN"
        ),
    ] = None,
    verify: Annotated[
        Path | None, typer.Option("--verify", help="Check this file instead of writing one.", metavar="FILE")
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            help="To write: your private key (nbafl keys make). To check: the signer's NAME.pub. [~/.nbafl/operator]",
            metavar="KEY",
        ),
    ] = None,
    ledger: Annotated[
        list[Path] | None,
        typer.Option(
            help="An extract that a client supplied: nbafl ledger extract (repeat).", metavar="FILE"
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write. [RUN/evidence.html]", metavar="FILE")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    if verify is not None:
        if ledger or out is not None:
            raise UsageError("verify", str(verify), "given without --ledger and --out")
        _check(verify, key, run, as_json)
    elif run is None:
        raise UsageError("run", None, "the folder of a finished run, or --verify FILE")
    else:
        _write(run, key, ledger or [], out, as_json)


def _write(path: Path, key: Path | None, ledgers: list[Path], out: Path | None, as_json: bool) -> None:
    from nbafl.durable import check_file, write_text
    from nbafl.errors import DataError, Refused
    from nbafl.evidence import gather, seal, signatures
    from nbafl.evidence.checks import verify_text
    from nbafl.evidence.content import run_of
    from nbafl.folders.files import read_object

    check_file("out", out)
    run = run_of(path)
    supplied = []
    for file in ledgers:
        extract = read_object(file)
        if extract is None:
            raise DataError(f"ledger extract {str(file)!r} does not exist.")
        supplied.append(extract)
    content = gather(run, supplied)
    private, place = signatures.operators_key(key)
    text = seal(content, private)
    wrong = verify_text(text)
    if wrong:
        raise Refused(f"nothing was written, because the evidence would not hold: {wrong[0]}")
    target = out if out is not None else run.path / FILE
    write_text(target, text)
    said = {"evidence": str(target), "key": str(place), "public_key": signatures.public_half(private)}
    if as_json:
        print(json.dumps(said))
        return
    for label, line in content["summary"]:
        say(f"{label}: {line}")
    say(f"\nEvidence: {target}")
    say(f"Signed with {place}; public key {said['public_key']}")


def _check(file: Path, key: Path | None, run: Path | None, as_json: bool) -> None:
    from nbafl.evidence import verify
    from nbafl.flower.keys import read_identity

    found = verify(file, None if key is None else read_identity(key).signing_key, run)
    if as_json:
        print(json.dumps(_as_dict(found, file)))
    else:
        _print(found, key is not None)
    if not found.holds:
        raise typer.Exit(1)


def _as_dict(found: Verdict, file: Path) -> dict[str, object]:
    return {
        "file": str(file),
        "verified": found.holds,
        "key": found.key,
        "findings": [{"place": each.place, "what": each.what} for each in found.findings],
        "summary": dict(found.summary),
        "on_trust": found.on_trust,
        "other_version": found.other_version,
        "wording_checked": found.other_version is None,
        "run": None if found.beside is None else str(found.beside),
    }


def _print(found: Verdict, pinned: bool) -> None:
    if not found.holds:
        count = len(found.findings)
        say(
            f"REFUSED: {count} thing{'s' if count != 1 else ''} in this file {'do' if count != 1 else 'does'} not fit."
        )
        for each in found.findings:
            say(f"  {_on_one_line(str(each))}")
        return
    for label, line in found.summary:
        say(f"{label}: {_on_one_line(line)}")
    say("\nVerified: signature, digests and chains fit, and every epsilon was computed again.")
    for sentence in _not_checked(found, pinned):
        say(sentence)


def _not_checked(found: Verdict, pinned: bool) -> Iterator[str]:
    """What the check could not show."""
    if found.on_trust is not None:
        yield f"Not computed again: {found.on_trust}"
    if found.other_version is not None:
        yield (
            f"Made by nbafl {found.other_version}, checked by {__version__}: the wording of the page was NOT checked. "
            "Do not go by the page; go by the lines above, which were made again from plan and rounds."
        )
    if not pinned:
        yield f"Signed with the key {_on_one_line(found.key)}: compare it with the operator's, or give --key NAME.pub."
    if found.beside is None:
        yield "The model itself was not at hand: give its run folder to check that as well."


def _on_one_line(text: str) -> str:
    """Names in the file cannot pretend to be a line of their own, or move the cursor."""
    return "".join(each if each.isprintable() else " " for each in text)
