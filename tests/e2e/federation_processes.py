"""Real processes for the federation tests: a prepared home, `nbafl serve` and `nbafl join` on loopback."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nbafl.cli import run_command
from nbafl.flower.keys import make_client_key
from nbafl.privacy.ledger import Ledger

NURSERY = """
import json, os, signal, sys
import torch
torch.set_num_threads(1)
import nbafl.cli, nbafl.flower.client, nbafl.flower.console, nbafl.flower.home, nbafl.flower.link
import nbafl.flower.node, nbafl.flower.server, nbafl.report.html, nbafl.run
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    log, arguments = json.loads(line)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        target = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(target, 1), os.dup2(target, 2)
        code = nbafl.cli.run_command(arguments)
        sys.stdout.flush(), sys.stderr.flush()
        with open(log + ".code", "w") as file:
            file.write(str(code))
        os._exit(code)
    print(child, flush=True)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_for(condition: Callable[[], object], what: str, seconds: float = 600) -> None:
    """Until it is so; a test that waits in vain says for what."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.01)


@dataclass
class Process:
    """A running verb: its output, its end, and how to end it."""

    pid: int
    log: Path

    @property
    def output(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    @property
    def code(self) -> int | None:
        place = Path(f"{self.log}.code")
        return int(place.read_text()) if place.exists() and place.read_text() else None

    @property
    def alive(self) -> bool:
        return Path(f"/proc/{self.pid}").exists()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        wait_for(lambda: not self.alive, f"end of {self.log.name}")

    def finish(self, seconds: float = 600) -> int:
        wait_for(lambda: self.code is not None, f"exit code of {self.log.name}:\n{self.output}", seconds)
        assert self.code is not None
        return self.code


class Nursery:
    """Starts verbs as processes of their own, quickly: each is forked from one that has imported everything."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0
        environment = {**os.environ, "NBAFL_ANCHORS": str(folder / "anchors"), "OMP_NUM_THREADS": "1"}
        self._mother = subprocess.Popen(
            [sys.executable, "-c", NURSERY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.born: list[Process] = []

    def start(self, name: str, *arguments: object) -> Process:
        self.count += 1
        log = self.folder / f"{name}-{self.count}.log"
        assert self._mother.stdin is not None
        assert self._mother.stdout is not None
        self._mother.stdin.write(json.dumps([str(log), [str(argument) for argument in arguments]]) + "\n")
        self._mother.stdin.flush()
        self.born.append(Process(int(self._mother.stdout.readline()), log))
        return self.born[-1]

    def close(self) -> None:
        for process in self.born:
            if process.alive:
                process.kill()
        self._mother.kill()
        self._mother.wait()


class Federation:
    """A prepared home with keys for all clients."""

    def __init__(self, folder: Path, clients: int, *plan: object) -> None:
        self.folder, self.home, self.clients, self.port = folder, folder / "home", clients, free_port()
        options = ["--clients", clients, *plan]
        assert run_command(["serve", "--prepare", "--home", str(self.home), *map(str, options)]) == 0
        for client in range(clients):
            _, public = make_client_key(f"client-{client}", folder / "keys")
            (self.home / "clients" / public.name).write_bytes(public.read_bytes())

    def serve(self, *options: object) -> list[object]:
        return ["serve", "--home", self.home, "--host", "127.0.0.1", "--port", self.port, *options]

    def join(self, client: int, *options: object, data: object = None) -> list[object]:
        return [
            "join",
            f"127.0.0.1:{self.port}",
            "--handout",
            self.home / "handout",
            "--key",
            self.folder / "keys" / f"client-{client}",
            "--data",
            data or f"mnist:{client}/{self.clients}",
            "--state",
            self.folder / f"state-{client}",
            *options,
        ]

    def ledger(self, client: int) -> Ledger:
        return Ledger(
            self.folder / f"state-{client}" / "ledger.sqlite",
            anchors=self.folder / "anchors",
            must_exist=True,
        )

    @property
    def answers(self) -> list[dict[str, object]]:
        return self._lines("answers.jsonl")

    @property
    def metrics(self) -> list[dict[str, object]]:
        return self._lines("metrics.jsonl")

    def _lines(self, name: str) -> list[dict[str, object]]:
        place = self.home / "run" / name
        text = place.read_text() if place.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]
