"""Preparing the folder a server keeps its federation in; what lies where: `nbafl.folders.homes`."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from nbafl.durable import check_folder, write_bytes, write_text
from nbafl.errors import UsageError
from nbafl.evaluation import Evaluation
from nbafl.flower import local_data
from nbafl.flower.certificates import Certificates, check_hosts, find_certificates, make_certificates
from nbafl.flower.roster import Roster
from nbafl.folders import homes
from nbafl.folders.homes import HomeFolder
from nbafl.plan import Plan
from nbafl.privacy.common_grid import CommonGrid


@dataclass(frozen=True)
class Home(HomeFolder):
    """A prepared federation."""

    plan: Plan
    certificates: Certificates

    def roster(self) -> Roster:
        """Who takes part; without a roster file the key files become one, by name, and it stays."""
        place = self.roster_file
        if place.is_file():
            roster = Roster.load(place)
        else:
            roster = Roster.found(self.key_folder, None if self.plan.sizes else int(self.plan.samples))
        roster.check_plan(self.plan)
        for file in (place, self.handout / homes.ROSTER):
            roster.save(file)
        return roster


def prepare(
    path: Path,
    plan: Plan | None,
    hosts: list[str],
    roster: Roster | None = None,
    passphrase: str | None = None,
    evaluation: Evaluation | None = None,
) -> Home:
    """Open HOME, or make it: plan, roster, certificates and the handout. What was agreed is never replaced.

    `evaluation`: clients measure the model on records of their own. `passphrase`: keep the key of the certificates'
    authority, encrypted, so that they can be renewed.
    """
    check_folder("home", path)
    check_hosts("name", hosts)
    folder = HomeFolder(path)
    agreed = folder.evaluation_file
    if evaluation is None and agreed.is_file():
        evaluation = Evaluation.load(agreed)
    plan = _agreed(folder.plan_file, plan, evaluation is not None)
    if evaluation is not None:
        _check_evaluation(agreed, plan, evaluation)
    if not folder.plan_file.is_file():
        path.mkdir(parents=True, exist_ok=True)
        write_text(folder.plan_file, plan.to_toml())
    if evaluation is not None:
        evaluation.save(agreed)
    _agree_roster(folder.roster_file, plan, roster)
    for each in (folder.key_folder, folder.handout):
        each.mkdir(exist_ok=True)
    certificates = find_certificates(folder.certificate_folder)
    if certificates is None:
        names = [*hosts, socket.gethostname(), "localhost", "127.0.0.1"]
        certificates = make_certificates(list(dict.fromkeys(names)), folder.certificate_folder, passphrase)
    home = Home(path, plan, certificates)
    write_text(home.handout / homes.PLAN, plan.to_toml())
    write_bytes(
        home.handout / homes.AUTHORITY, Path(certificates.authority).read_bytes()
    )  # a client may be reading it
    if local_data.has_schema(plan):
        local_data.write_schema(local_data.make_schema(plan), home.handout / homes.SCHEMA)
    if evaluation is not None:
        evaluation.save(home.handout / agreed.name)
    if home.roster_file.is_file():
        home.roster()
    return home


def planned(path: Path) -> Plan:
    """The plan agreed on in HOME; where there is none yet, the usual one."""
    file = HomeFolder(path).plan_file
    return Plan.from_toml(file) if file.is_file() else Plan()


def _check_evaluation(file: Path, plan: Plan, evaluation: Evaluation) -> None:
    evaluation.check_task(local_data.server_data(plan, without_test=True).task)
    if file.is_file() and Evaluation.load(file) != evaluation:
        raise UsageError("home", str(file.parent), "a folder without another evaluation agreed on in it")


def _agree_roster(file: Path, plan: Plan, roster: Roster | None) -> None:
    if roster is None:
        return
    roster.check_plan(plan)
    if file.is_file() and Roster.load(file).digest() != roster.digest():
        raise UsageError("home", str(file.parent), "a folder without another roster in it; drop --roster")
    roster.save(file)


def _agreed(file: Path, plan: Plan | None, without_test: bool = False) -> Plan:
    if file.is_file():
        agreed = Plan.from_toml(file)
        if plan is not None and plan.digest() != agreed.digest():
            raise UsageError(
                "home", str(file.parent), "a folder without another plan in it; drop the plan's options"
            )
        return agreed
    plan = plan or Plan()
    if not plan.noise:
        raise UsageError("noise", plan.noise, "true in a federation of real parties")
    if plan.secure_sums() is None:  # which have a grid of their own
        CommonGrid.of(plan.release(), plan.noise_scales(), plan.rule.reach(plan).radius)
    local_data.check_test(plan, without_test)
    return plan
