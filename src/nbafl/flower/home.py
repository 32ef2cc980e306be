"""The folder a server keeps its federation in.

HOME/plan.toml      what was agreed
     tls/           ca.crt, server.crt, server.key: made on first use, or put there by you
     clients/       one public key per client, NAME.pub; sorted by name they are clients 0, 1, … of the plan
     handout/       what every client needs: plan.toml, ca.crt, and schema.json for CSV data
     run/           the run folder, as `nbafl run` leaves one
"""

from __future__ import annotations

import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from nbafl.durable import write_text
from nbafl.errors import DataError, UsageError
from nbafl.flower import keys, local_data
from nbafl.flower.keys import Certificates
from nbafl.plan import Plan


@dataclass(frozen=True)
class Home:
    """A prepared federation."""

    path: Path
    plan: Plan
    certificates: Certificates

    @property
    def run(self) -> Path:
        return self.path / "run"

    @property
    def handout(self) -> Path:
        return self.path / "handout"

    @property
    def key_folder(self) -> Path:
        return self.path / "clients"

    @property
    def client_names(self) -> list[str]:
        """Names of the registered clients, in the plan's order."""
        return [file.stem for file in sorted(self.key_folder.glob("*.pub"))]

    def client_keys(self) -> list[ec.EllipticCurvePublicKey]:
        """The registered clients in the plan's order; their number must be the plan's."""
        files = sorted(self.key_folder.glob("*.pub"))
        if len(files) != self.plan.clients:
            raise DataError(
                f"{str(self.key_folder)!r} holds {len(files)} public keys (NAME.pub), but the plan has "
                f"{self.plan.clients} clients; each makes one with: nbafl keys make NAME"
            )
        found = [keys.read_public_key(file) for file in files]
        if len({keys.fingerprint(key) for key in found}) != len(found):
            raise DataError(f"{str(self.key_folder)!r} holds the same public key twice.")
        return found


def prepare(path: Path, plan: Plan | None, hosts: list[str]) -> Home:
    """Open HOME, or make it: plan, certificates and the handout. An agreed plan is never replaced."""
    plan = _agreed(path / "plan.toml", plan)
    for folder in (path / "clients", path / "handout"):
        folder.mkdir(exist_ok=True)
    certificates = keys.find_certificates(path / "tls")
    if certificates is None:
        names = [*hosts, socket.gethostname(), "localhost", "127.0.0.1"]
        certificates = keys.make_certificates(list(dict.fromkeys(names)), path / "tls")
    home = Home(path, plan, certificates)
    write_text(home.handout / "plan.toml", plan.to_toml())
    shutil.copyfile(certificates.authority, home.handout / "ca.crt")
    if plan.dataset != "mnist" and plan.test is not None and Path(plan.test).is_file():
        local_data.write_schema(local_data.make_schema(plan), home.handout / "schema.json")
    return home


def _agreed(file: Path, plan: Plan | None) -> Plan:
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
    local_data.check_test(plan)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, plan.to_toml())
    return plan
