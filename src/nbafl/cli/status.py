"""`nbafl status`: how a federation's server is, from the folder it keeps."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from nbafl.cli.lines import say

HELP = """Show the status of a federation: phase and round, who is connected, what is missing, epsilon so far.

Exit code 0 while the server works or has finished, 1 when it is not running though its run is not finished.

\b
Examples:
  nbafl status federation
  nbafl status federation --json
"""


def status(
    home: Annotated[Path, typer.Argument(help="Folder of the federation.", metavar="HOME")] = Path(
        "federation"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    from nbafl.flower.status import read

    found = read(home)
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        for line in lines(found):
            say(line)
    return 0 if found["state"] in ("running", "finished", "prepared") else 1


def lines(found: dict[str, Any]) -> list[str]:
    """A status for people."""
    said = [f"{found['home']}: {found['state']}" + (f", asked to {found['asked']}" if found["asked"] else "")]
    if "phase" in found:
        privacy = found["privacy"]
        missing = ", ".join(f"{count} {reason}" for reason, count in sorted(found["refusals"].items()))
        online = found["online"]
        said += [
            f"phase        {found['phase']}, {found['rounds_done']} of {found['rounds']} rounds done",
            f"clients      {len(online)} of {found['clients']} connected: {', '.join(online) or 'none'}",
            f"uploads      {found['answers']} usable; missing: {missing or 'none'}",
            f"traffic      {found['bytes_received']:,} bytes received, {found['bytes_sent']:,} sent, "
            f"{found['connections']} connections",
            f"privacy      {_spent(privacy)}, given:",
            *(f"             {sentence}" for sentence in privacy["assumptions"]),
            f"memory       {found['memory_bytes'] / 2**20:.0f} MB",
        ]
        if found["refusals_in_a_row"] >= 3:
            said.append(f"warning      uploads were missing in {found['refusals_in_a_row']} rounds in a row")
    if found["revoked"]:
        said.append(f"revoked      {', '.join(found['revoked'])}")
    if "certificate_expires" in found:
        when = datetime.fromtimestamp(found["certificate_expires"], UTC)
        days = (found["certificate_expires"] - time.time()) / 86400
        soon = "; renew it: nbafl keys renew" if days < 30 else ""
        said.append(f"certificate  until {when:%Y-%m-%d} ({days:.0f} days{soon})")
    return said


def _spent(privacy: dict[str, Any]) -> str:
    from nbafl.privacy.scope import Scope

    known = "not known yet" if privacy["epsilon"] is None else f"{privacy['epsilon']:.4g} so far"
    return f"epsilon {known} {Scope.from_dict(privacy).words}"
