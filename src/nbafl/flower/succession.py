"""The federation after another: the same agreement, with clients added and revoked ones left out.

Noise is computed for a plan's clients, so another client means another plan, another roster and another run, in a folder
of its own. Everything else is taken over: the plan's other fields, how the model is measured, and the certificates, so
that the server is the one that clients know. Their ledgers go on counting over both.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from nbafl.errors import DataError, UsageError
from nbafl.evaluation import Evaluation
from nbafl.flower.keys import PublicIdentity
from nbafl.flower.operations import Operations
from nbafl.flower.roster import Roster
from nbafl.folders.homes import HomeFolder
from nbafl.plan import Plan

OF_THE_ROSTER = {"clients", "samples", "sizes"}


def follow(
    before: Path, home: Path, added: Path | None, given: dict[str, Any]
) -> tuple[dict[str, Any], Roster]:
    """(fields, roster) of the federation after the one in `before`; its certificates are copied to `home`.

    `added`: a roster file or a folder of key files; whom the old roster holds already may be among them. `given`: fields
    of the plan that change.
    """
    old, new = HomeFolder(before), HomeFolder(home)
    if not (old.plan_file.is_file() and old.roster_file.is_file()):
        raise UsageError("from", str(before), "the folder of a federation that has been served")
    if new.path.resolve() == old.path.resolve() or new.plan_file.exists():
        raise UsageError("home", str(home), "a folder of its own: what was agreed before stays as it is")
    plan = Plan.from_toml(old.plan_file)
    kept = {name: value for name, value in plan.model_dump().items() if value is not None}
    kept["seed"] = (
        plan.seed + 1
    )  # a ledger tells runs apart by their plans, which may be alike in everything else
    fields = {name: value for name, value in kept.items() if name not in OF_THE_ROSTER} | given
    roster = successors(Roster.load(old.roster_file), Operations.read(before).revoked, added, plan)
    if old.certificate_folder.is_dir():
        shutil.copytree(old.certificate_folder, new.certificate_folder, dirs_exist_ok=True)
    return fields, roster


def scores_of(before: Path, plan: Plan) -> Evaluation | None:
    """What was agreed on about scores in the federation before; a plan with a reserve pays for as many as then."""
    file = HomeFolder(before).evaluation_file
    if not file.is_file():
        return None
    known = Evaluation.load(file)
    return Evaluation.paid_by(plan, known.every, known.error_bound) if plan.reserve else known


def successors(old: Roster, revoked: tuple[str, ...], added: Path | None, plan: Plan) -> Roster:
    """Those of the old roster who were not revoked, in their order, and then the new ones."""
    more = Roster.found(added, int(plan.samples)).members if added is not None else ()
    again = {member.key: member for member in more}
    stay = [again.get(member.key, member) for member in old.members if member.name not in revoked]
    known = {member.key for member in stay}
    returning = [
        member for member in more if member.name in revoked and old.named(member.name).key == member.key
    ]
    if returning:
        raise UsageError("roster", returning[0].name, "new keys for a client that was revoked")
    fresh = [member for member in more if member.key not in known]
    if taken := {member.name for member in stay} & {member.name for member in fresh}:
        raise UsageError(
            "roster", min(taken), "another name: a client of the old roster has it, with other keys"
        )
    if not stay and not fresh:
        raise DataError("no client is left: every client of the old roster was revoked, and none was added.")
    everybody = [
        PublicIdentity(each.name, each.key, each.signing_key, each.records) for each in (*stay, *fresh)
    ]
    return Roster.of(everybody)
