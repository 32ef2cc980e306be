"""An owner's limits in words, and the commands that change them."""

from __future__ import annotations

import shlex
from pathlib import Path

from nbafl.privacy.ledger.budget import Limits

ANY = "any"
"""`--unit` of a limit that binds in the unit of whichever plan asks."""


def unit_of(limit: Limits) -> str:
    """The options that name a limit."""
    if limit.account is None:
        return f"--unit {ANY}"
    drop = f" --adjacency {limit.account.adjacency}" if limit.account.adjacency != "replace" else ""
    return f"--unit {limit.account.unit}{drop}"


def sentence(limit: Limits) -> str:
    """What a limit allows, each epsilon with its unit, adversary and delta."""
    who = (
        f"a {limit.account.unit} ({limit.account.change})"
        if limit.account
        else "whatever unit a plan protects"
    )
    count = "any number of releases" if limit.releases is None else f"at most {limit.releases} releases"
    uploads = (
        "" if limit.epsilon_uploads is None else f", epsilon {limit.epsilon_uploads:g} to the server itself"
    )
    return (
        f"limit for {who}: epsilon {limit.epsilon:g}{uploads} at delta {limit.delta:g} for all plans together, "
        f"against the adversary that each plan names, {count}."
    )


def loosening(place: Path, limit: Limits) -> str:
    """The command that sets a limit where the ledger in `place` has a stricter one for the same unit."""
    numbers = [f"{option} {value:.12g}" for option, value in _numbers(limit).items() if value is not None]
    return " ".join(["nbafl ledger limit", shlex.quote(str(place)), unit_of(limit), *numbers, "--loosen"])


def not_applied(place: Path, limit: Limits, wanted: Limits) -> str:
    """That what was wanted is looser than the limit in force, which therefore stays."""
    most = _numbers(limit)
    looser = [
        f"{option} {value:g}"
        for option, value in _numbers(wanted).items()
        if value is not None and (allowed := most[option]) is not None and value > allowed
    ]
    return (
        f"{' and '.join(looser)} was not applied, being looser than what is in force: {sentence(limit)} "
        f"To loosen it: {loosening(place, wanted)}"
    )


def _numbers(limit: Limits) -> dict[str, float | None]:
    return {
        "--epsilon": limit.epsilon,
        "--delta": limit.delta,
        "--epsilon-uploads": limit.epsilon_uploads,
        "--max-releases": limit.releases,
    }
