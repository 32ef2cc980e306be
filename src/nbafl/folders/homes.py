"""The folder a server keeps its federation in, and the handout that every client gets.

    HOME/plan.toml      what was agreed
         tls/           ca.crt, server.crt, server.key: made on first use, or put there by you
         roster.toml    who takes part: number, name, keys and records of each client (`nbafl.flower.roster`)
         evaluation.toml  how clients measure the model on records of their own (`nbafl.flower.evaluation`)
         clients/       key files NAME.pub; where no roster was given, they become one when the server starts
         handout/       what every client needs: plan.toml, ca.crt, roster.toml, and schema.toml for CSV data
         operations.json  what an operator asked of the server: clients revoked, pause, drain (`nbafl.flower.operations`)
         status.json    how the server is, every few seconds (`nbafl status`)
         run/           the run folder, as `nbafl run` leaves one

The coordinator keeps all of it; what every client gets is the handout alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PLAN = "plan.toml"
AUTHORITY = "ca.crt"
ROSTER = "roster.toml"
SCHEMA = "schema.toml"
OLD_SCHEMA = "schema.json"
"""Of the first release."""


def is_home(path: Path) -> bool:
    """Whether a folder is a federation's and not a run's."""
    home = HomeFolder(path)
    return home.plan_file.is_file() and (home.handout.is_dir() or home.status_file.is_file())


@dataclass(frozen=True)
class HomeFolder:
    """What lies where in the folder of a federation."""

    path: Path

    @property
    def plan_file(self) -> Path:
        return self.path / PLAN

    @property
    def roster_file(self) -> Path:
        return self.path / ROSTER

    @property
    def certificate_folder(self) -> Path:
        return self.path / "tls"

    @property
    def key_folder(self) -> Path:
        return self.path / "clients"

    @property
    def handout(self) -> Path:
        return self.path / "handout"

    @property
    def evaluation_file(self) -> Path:
        return self.path / "evaluation.toml"

    @property
    def status_file(self) -> Path:
        return self.path / "status.json"

    @property
    def run(self) -> Path:
        return self.path / "run"
