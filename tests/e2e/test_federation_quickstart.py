"""Flower's quickstart app becomes private by two lines, in Flower's simulation and on Flower's own SuperNodes.

Three clients do it under secure aggregation: other arguments in the same two lines.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from federation_processes import is_listening, wait_for
from free_ports import free_port
from tests.paper_setting import Plan

from nbafl.cli import run_command
from nbafl.flower.keys import make_client_key, read_identity
from nbafl.flower.roster import Roster
from nbafl.privacy.ledger import Ledger

pytestmark = pytest.mark.e2e

APP = Path(__file__).parents[1] / "flower" / "quickstart_app"
PLAN = 'Path(__file__).with_name("plan.toml")'
FOUND = {
    "client_app.py": "app = ClientApp()",
    "server_app.py": 'strategy = FedAvg(fraction_train=context.run_config["fraction-train"])',
}
IMPORTS = "from pathlib import Path\nfrom nbafl.flower import NbAFL, SecureNbAFL, private\n"
ROUNDS = 2
PROMISED = {"rounds": ROUNDS, "sensitivity": "client", "clip": 2, "epsilon": 50, "delta": 0.01}
SECURE = {
    "aggregation": "secure", "adversary": "curious-server", "calibration": "exact",
    "dimension": 784 * 32 + 32 + 32 * 10 + 10,
}  # fmt: skip


class Background:
    """A copy of the app with the two lines in it, an environment of its own, and processes that end with the test."""

    def __init__(self, folder: Path, clients: int, secure: bool = False) -> None:
        self.folder = folder
        self.app = Path(shutil.copytree(APP, folder / "app"))
        for name, after in (self._secure_lines(clients) if secure else _plain_lines()).items():
            source = self.app / "quickstart" / name
            text = source.read_text()
            assert text.count(FOUND[name]) == 1
            docstring, _, rest = text.partition("\n\n")
            source.write_text(f"{docstring}\n\n{IMPORTS}{rest.replace(FOUND[name], after)}")
        plan = Plan(clients=clients, **PROMISED, **(SECURE if secure else {}))
        (self.app / "quickstart" / "plan.toml").write_text(plan.to_toml())
        settings = self.app / "pyproject.toml"
        settings.write_text(
            settings.read_text().replace("num-server-rounds = 3", f"num-server-rounds = {ROUNDS}")
        )
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(folder / "flwr"),
            "NBAFL_STATE": str(folder / "state"),
            "NBAFL_KEY": str(folder / "keys"),
            "NBAFL_ANCHORS": str(folder / "anchors"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ADDRESS": "local",  # not the cluster of another test, nor one whose end nobody noted
            "OMP_NUM_THREADS": "1",
            "FLWR_LOG_LEVEL": "INFO",
        }

    def _secure_lines(self, clients: int) -> dict[str, str]:
        """The two lines, with a roster and a key for each partition beside the app."""
        public = [make_client_key(str(number), self.folder / "keys")[1] for number in range(clients)]
        Roster.of([read_identity(file) for file in public], 100).save(self.folder / "roster.toml")
        roster, server = f'"{self.folder}/roster.toml"', f'"{self.folder}/server"'
        return {
            "client_app.py": f"app = ClientApp(mods=[private({PLAN}, roster={roster})])",
            "server_app.py": f"strategy = SecureNbAFL({PLAN}, {roster}, {server})",
        }

    def start(self, *command: object) -> Path:
        log = self.folder / f"{command[0]}-{len(list(self.folder.glob('*.log')))}.log"
        with log.open("w") as output:
            subprocess.Popen(
                list(map(str, command)), stdout=output, stderr=subprocess.STDOUT, env=self.environment
            )
        return log

    def run(self, *command: object) -> str:
        done = subprocess.run(
            list(map(str, command)), env=self.environment, capture_output=True, text=True, timeout=1800
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def superlink(self, trusted: str, *options: object) -> int:
        """A SuperLink of this test's own, which `flwr run APP here` finds by its port; `trusted`: how it is believed."""
        port = free_port()
        (self.folder / "flwr").mkdir()
        (self.folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\n{trusted}\n'
        )
        link = self.start("flower-superlink", "--host", "127.0.0.1", "--port", port, *options)
        wait_for(lambda: is_listening(port), f"the SuperLink, see {link}")
        return port

    def simulate(self, clients: int) -> str:
        """As `flwr run` does by itself, but not at a port that anybody may have, nor given up after 15 seconds."""
        self.superlink("insecure = true", "--insecure", "--simulation", "--isolation", "subprocess")
        federation = f"num-supernodes={clients} client-resources-num-cpus=1"
        return self.run("flwr", "run", self.app, "here", "--stream", "--federation-config", federation)

    def close(self) -> None:
        """End every process that was started with this background's environment, whoever started it."""
        mark = f"FLWR_HOME={self.folder / 'flwr'}".encode()
        for process in Path("/proc").iterdir():
            try:
                ours = process.name.isdigit() and mark in (process / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if ours:
                os.kill(int(process.name), signal.SIGKILL)

    def check(self, output: str, clients: int) -> None:
        """All rounds were made, and every client's ledger shows them; two clients hidden by noise learn nothing."""
        found = re.findall(r"central round (\d) loss ([\d.]+) accuracy ([\d.]+)", output)
        assert [int(number) for number, _, _ in found] == [0, 1, 2], output
        assert found[-1][1] != found[0][1], output
        assert "finished 2" in output
        for client in range(clients):
            ledger = Ledger(
                self.folder / "state" / f"ledger-{client}.sqlite",
                anchors=self.folder / "anchors",
                must_exist=True,
            )
            assert ledger.spent().releases == ROUNDS
            ledger.verify()


def _plain_lines() -> dict[str, str]:
    return {
        "client_app.py": f"app = ClientApp(mods=[private({PLAN})])",
        "server_app.py": f"strategy = NbAFL({PLAN})",
    }


@pytest.fixture
def clients() -> int:
    return 2


@pytest.fixture
def background(tmp_path: Path, clients: int) -> Iterator[Background]:
    made = Background(tmp_path, clients)
    yield made
    made.close()


def test_in_flowers_simulation(background: Background, clients: int) -> None:
    background.check(background.simulate(clients), clients)


def test_in_flowers_simulation_under_secure_aggregation(tmp_path: Path) -> None:
    made = Background(tmp_path, 3, secure=True)
    try:
        made.check(made.simulate(3), 3)
    finally:
        made.close()


def test_on_flowers_own_superlink_and_supernodes(background: Background, clients: int) -> None:
    folder = background.folder
    assert run_command(["keys", "certificate", "127.0.0.1", "--out", str(folder / "tls")]) == 0
    certificates = [
        f"--ssl-{kind}={folder}/tls/{name}"
        for kind, name in (("ca-certfile", "ca.crt"), ("certfile", "server.crt"), ("keyfile", "server.key"))
    ]
    trusted = f'root-certificates = "{folder}/tls/ca.crt"'
    port = background.superlink(trusted, *certificates, "--enable-supernode-auth")
    for client in range(clients):
        assert run_command(["keys", "make", f"c{client}", "--out", str(folder)]) == 0
        background.run("flwr", "supernode", "register", folder / f"c{client}.pub", "here")
        background.start(
            "flower-supernode",
            "--superlink",
            f"127.0.0.1:{port}",
            "--root-certificates",
            folder / "tls" / "ca.crt",
            "--auth-supernode-private-key",
            folder / f"c{client}",
            "--port",
            free_port(),
            "--node-config",
            f"partition-id={client} num-partitions={clients}",
        )
    background.check(background.run("flwr", "run", background.app, "here", "--stream"), clients)
