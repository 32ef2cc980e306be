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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from free_ports import free_port

from nbafl.cli import run_command
from nbafl.flower.keys import make_client_key
from nbafl.privacy.ledger import Ledger

sys.path.append(str(Path(__file__).parents[2]))  # soaks and benchmarks come here without pytest
from tests.paper_setting import OPTIONS

NURSERY = """
import json, os, resource, signal, sys
from hostile import clock
clock.install()
import torch
torch.set_num_threads(1)
import nbafl.cli, nbafl.flower.client, nbafl.flower.console, nbafl.flower.home, nbafl.flower.hub
import nbafl.flower.node, nbafl.flower.joining, nbafl.flower.serving, nbafl.report.html, nbafl.run
import nbafl.data.mnist
nbafl.data.mnist.train(), nbafl.data.mnist.test()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    log, arguments, descriptors, environment = json.loads(line)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        target = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(target, 1), os.dup2(target, 2)
        os.environ.update(environment)
        if descriptors:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
        code = nbafl.cli.run_command(arguments)
        sys.stdout.flush(), sys.stderr.flush()
        with open(log + ".code", "w") as file:
            file.write(str(code))
        os._exit(code)
    print(child, flush=True)
"""


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

    @property
    def memory_mb(self) -> float:
        """Resident memory now."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024

    @property
    def own_mb(self) -> tuple[float, float]:
        """(its share of the memory in use, memory that no other process maps) in MB."""
        lines = Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines()
        sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:]}
        return sizes["Pss"] / 1024, (sizes["Private_Clean"] + sizes["Private_Dirty"]) / 1024

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        with suppress(ProcessLookupError):  # it may have ended by itself a moment ago
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
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
        }
        self._mother = subprocess.Popen(
            [sys.executable, "-c", NURSERY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.born: list[Process] = []

    def start(self, name: str, *arguments: object, descriptors: int = 0, **environment: object) -> Process:
        """A verb as a process; `descriptors`: its limit of open files; the rest goes into its environment."""
        self.count += 1
        log = self.folder / f"{name}-{self.count}.log"
        assert self._mother.stdin is not None
        assert self._mother.stdout is not None
        command = [str(argument) for argument in arguments]
        named = {"NBAFL_ANCHORS": str(self.folder / "anchors")}
        named |= {key: str(value) for key, value in environment.items()}
        self._mother.stdin.write(json.dumps([str(log), command, descriptors, named]) + "\n")
        self._mother.stdin.flush()
        self.born.append(Process(int(self._mother.stdout.readline()), log))
        return self.born[-1]

    def end_all(self) -> None:
        """Kill what still runs."""
        for process in self.born:
            if process.alive:
                process.kill()
        self.born = []

    def close(self) -> None:
        self.end_all()
        self._mother.kill()
        self._mother.wait()


class Apart:
    """Starts every verb by itself, as on machines of their own: slower, and its memory is what it needs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.born: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *arguments: object) -> Process:
        log = self.folder / f"{name}.log"
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "NBAFL_ANCHORS": str(self.folder / "anchors"), "PYTHONPATH": path}
        wrapper = "import sys, nbafl.cli as c; code = c.run_command(sys.argv[2:]); open(sys.argv[1], 'w').write(str(code))"
        command = [sys.executable, "-c", wrapper, f"{log}.code", *map(str, arguments)]
        with log.open("wb") as target:
            child = subprocess.Popen(command, stdout=target, stderr=subprocess.STDOUT, env=environment)
        self.born.append(child)
        return Process(child.pid, log)

    def close(self) -> None:
        for child in self.born:
            child.kill()
            child.wait()


class Federation:
    """A prepared home with keys for all clients."""

    def __init__(self, folder: Path, clients: int, *plan: object) -> None:
        self.folder, self.home, self.clients, self.port = folder, folder / "home", clients, free_port()
        steps = ("--local-steps", 1) if "gradient" in plan else ()
        options = [*OPTIONS, *steps, "--clients", clients, *plan]
        assert run_command(["serve", "--prepare", "--home", str(self.home), *map(str, options)]) == 0
        for client in range(clients):
            _, public = make_client_key(f"client-{client}", folder / "keys")
            (self.home / "clients" / public.name).write_bytes(public.read_bytes())

    @classmethod
    def at(cls, folder: Path, home: Path, clients: int) -> Federation:
        """One whose home was prepared by hand."""
        found = cls.__new__(cls)
        found.folder, found.home, found.clients, found.port = folder, home, clients, free_port()
        return found

    def key(self, client: int) -> Path:
        return self.folder / "keys" / f"client-{client}"

    def serve(self, *options: object) -> list[object]:
        return ["serve", "--home", self.home, "--host", "127.0.0.1", "--port", self.port, *options]

    def join(self, client: int, *options: object, data: object = None) -> list[object]:
        return [
            "join",
            f"127.0.0.1:{self.port}",
            "--handout",
            self.home / "handout",
            "--key",
            self.key(client),
            "--data",
            data or f"mnist:{client}/{self.clients}",
            "--state",
            self.folder / f"state-{client}",
            *(
                () if "--epsilon" in options else ("--epsilon", 1e9)
            ),  # an owner who wants no limit has to say so
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


SMALL = ("--samples", 50, "--model", "softmax")
"""A plan that trains in a moment."""


def releases(federation: Federation, client: int) -> int:
    place = federation.folder / f"state-{client}" / "ledger.sqlite"
    return federation.ledger(client).spent().releases if place.exists() else 0


def serving(nursery: Nursery, federation: Federation, *options: object, **more: object) -> Process:
    server = nursery.start("serve", *federation.serve(*options), **more)  # type: ignore[arg-type]
    wait_for(lambda: is_listening(federation.port) or server.code is not None, "the server")
    return server


def finish_all(*processes: Process, code: int = 0) -> None:
    for process in processes:
        assert process.finish() == code, process.output
