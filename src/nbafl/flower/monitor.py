"""What a running server tells of its state: a status file for `nbafl status`, and an HTTP endpoint for machines.

/healthz   200 while the server's parts are alive         /readyz   200 while it makes rounds or waits for clients
/metrics   Prometheus, see docs/howto-operate.md

Numbers only, and the names of clients that are online: never who was drawn, answered or refused in a round. Where fewer
than all are drawn that is a secret which the guarantee may rest on; totals do not tell it.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from nbafl.durable import write_text
from nbafl.errors import NbaflError
from nbafl.flower import processes
from nbafl.privacy.scope import Scope

if TYPE_CHECKING:
    from nbafl.flower.hub import Hub
    from nbafl.flower.roster import Roster
    from nbafl.plan import Plan

EVERY = 2.0
"""Seconds between two status files."""
SCOPE = ("adversary", "delta", "unit", "adjacency", "premise")
"""Labels of the epsilon in /metrics."""
PHASES = ("waiting", "checking", "paused", "training", "aggregating", "evaluating", "finished", "stopped")


@dataclass
class Progress:
    """What the rounds report of themselves."""

    phase: str = "waiting"
    rounds_done: int = 0
    epsilon: float | None = None
    """Of the rounds done, as they were; None before it is known."""
    answers: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    """Missing uploads by reason: refused, lost, late, absent, rejected."""
    refusals_in_a_row: int = 0
    """Rounds in a row with at least one missing upload."""
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Time spent in a phase."""
        before, self.phase, started = self.phase, phase, time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - started
            self.phase = before

    def count(self, answered: int, missing: Iterable[str]) -> None:
        """A round's uploads, and the reasons of those that are missing."""
        reasons = Counter(missing)
        self.answers += answered
        self.refusals += reasons
        self.refusals_in_a_row = self.refusals_in_a_row + 1 if reasons else 0


@dataclass(frozen=True)
class Status:
    """One look at the server."""

    time: float
    pid: int
    process: str
    """Tells this process from any other that has its number, here or elsewhere (`nbafl.flower.processes`)."""
    phase: str
    rounds_done: int
    rounds: int
    clients: int
    online: list[str]
    answers: int
    refusals: dict[str, int]
    refusals_in_a_row: int
    seconds: dict[str, float]
    bytes_received: int
    bytes_sent: int
    rejected_requests: int
    connections: int
    turned_away: int
    memory_bytes: int
    certificate_expires: float
    privacy: dict[str, Any]
    """epsilon of the rounds done (None before it is known), with everything that belongs to it, and what it rests on."""


class Monitor:
    """Looks at hub and rounds; writes the status file until it is left."""

    def __init__(
        self, plan: Plan, roster: Roster, hub: Hub, progress: Progress, expires: float, place: Path
    ) -> None:
        self.plan, self.roster, self.hub, self.progress = plan, roster, hub, progress
        self.expires, self.place = expires, place
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, name="monitor", daemon=True)
        self._belongs = {**Scope.of(plan).to_dict(), "assumptions": list(plan.assumptions())}

    def __enter__(self) -> Monitor:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.progress.phase = "finished" if self.progress.rounds_done == self.plan.rounds else "stopped"
        write_text(self.place, json.dumps(asdict(self.status())))

    def status(self) -> Status:
        progress, hub = self.progress, self.hub
        rounds_done, epsilon = progress.rounds_done, progress.epsilon
        online = hub.postbox.online()
        return Status(
            time.time(),
            os.getpid(),
            processes.identity(),
            progress.phase,
            rounds_done,
            self.plan.rounds,
            self.plan.clients,
            [member.name for member in self.roster.members if member.number in online],
            progress.answers,
            dict(progress.refusals),
            progress.refusals_in_a_row,
            {phase: round(spent, 3) for phase, spent in progress.seconds.items()},
            hub.bytes["received"],
            hub.bytes["sent"],
            sum(hub.refused.values()),
            len(hub.doorkeeper),
            sum(hub.doorkeeper.refused.values()),
            memory(),
            self.expires,
            {"epsilon": epsilon, **self._belongs},
        )

    def _write(self) -> None:
        while True:
            write_text(self.place, json.dumps(asdict(self.status())))
            if self._stop.wait(EVERY):
                return


def memory() -> int:
    """Resident bytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def families(status: Status) -> Iterator[Any]:
    """A status as Prometheus metrics."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    gauges = {
        "nbafl_round": ("rounds finished", status.rounds_done),
        "nbafl_rounds": ("rounds of the plan", status.rounds),
        "nbafl_clients": ("registered clients", status.clients),
        "nbafl_clients_online": ("clients connected", len(status.online)),
        "nbafl_refusals_in_a_row": ("rounds in a row with a missing upload", status.refusals_in_a_row),
        "nbafl_connections": ("open connections", status.connections),
        "nbafl_memory_bytes": ("resident memory", status.memory_bytes),
        "nbafl_certificate_expires_seconds": (
            "end of the certificate, Unix time",
            status.certificate_expires,
        ),
    }
    for name, (text, value) in gauges.items():
        yield GaugeMetricFamily(name, text, value=value)
    counters = {
        "nbafl_answers": ("usable uploads", status.answers),
        "nbafl_received_bytes": ("bytes received from clients", status.bytes_received),
        "nbafl_sent_bytes": ("bytes sent to clients", status.bytes_sent),
        "nbafl_rejected_requests": ("requests answered with an error", status.rejected_requests),
        "nbafl_turned_away": ("connections closed by the doorkeeper", status.turned_away),
    }
    for name, (text, value) in counters.items():
        yield CounterMetricFamily(name, text, value=value)
    refusals = CounterMetricFamily("nbafl_refusals", "missing uploads by reason", labels=["reason"])
    for reason, count in status.refusals.items():
        refusals.add_metric([reason], count)
    yield refusals
    seconds = CounterMetricFamily("nbafl_phase_seconds", "time by phase", labels=["phase"])
    for phase, spent in status.seconds.items():
        seconds.add_metric([phase], spent)
    yield seconds
    epsilon = GaugeMetricFamily("nbafl_epsilon", "epsilon of the rounds finished, as they were", labels=SCOPE)
    if status.privacy["epsilon"] is not None:
        epsilon.add_metric([str(status.privacy[name]) for name in SCOPE], status.privacy["epsilon"])
    yield epsilon
    current = GaugeMetricFamily("nbafl_phase", "1 for the phase the server is in", labels=["phase"])
    for name in PHASES:
        current.add_metric([name], float(name == status.phase))
    yield current


class _Collector:
    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status

    def collect(self) -> Iterator[Any]:
        return families(self._status())


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    timeout = 10

    def log_message(self, *_: object) -> None:
        """Nothing: scrapes are not news."""


@contextmanager
def endpoint(host: str, port: int, monitor: Monitor) -> Iterator[int]:
    """Serve the state over HTTP; the port it listens on."""
    from prometheus_client import CollectorRegistry, make_wsgi_app

    registry = CollectorRegistry()
    registry.register(_Collector(monitor.status))
    metrics = make_wsgi_app(registry)

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO")
        if path == "/metrics":
            return metrics(environ, start)
        alive = monitor.hub.alive
        good = {"/healthz": alive, "/readyz": alive and monitor.progress.phase not in ("finished", "stopped")}
        if path not in good:
            start("404 Not Found", [("content-type", "text/plain")])
            return [b"healthz, readyz, metrics\n"]
        start("200 OK" if good[path] else "503 Service Unavailable", [("content-type", "text/plain")])
        return [b"yes\n" if good[path] else b"no\n"]

    try:
        server = make_server(host, port, answer, _Server, _Quiet)
    except OSError as error:
        raise NbaflError(f"cannot listen on {host}:{port} for monitoring: {error.strerror}.") from None
    thread = threading.Thread(target=server.serve_forever, args=(0.2,), name="endpoint", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
