"""Twenty clients in one real deployment on one machine: seconds a round, memory per client.

    .venv/bin/python benchmarks/flower_twenty.py [--clients 20] [--rounds 3] [--json]

Starts one `nbafl serve` and N `nbafl join` as processes of their own on loopback, with TLS and keys, on the paper's
network (203,530 parameters) and 100 digits a client. Memory is what each process held at most (VmHWM), and its share
of what all hold together (PSS; libraries that all map count once).

Measured on 2 busy cores: 5.3 to 7.4 s a round, 310 MB a client (PSS; 454 MB at most), 6.7 GB in all. Stock Flower
1.41 (SuperNodes, a new process per message) was seen to take about 70 s a round and 11 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NBAFL = [sys.executable, "-c", "from nbafl.cli import main; main()"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def memory_mb(pid: int) -> tuple[float, float]:
    """(most resident memory so far, share of the memory in use now) of a process, in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    shares = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return _kilobytes(status, "VmHWM:") / 1024, _kilobytes(shares, "Pss:") / 1024


def _kilobytes(text: str, name: str) -> int:
    return int(next(line for line in text.splitlines() if line.startswith(name)).split()[1])


def prepare(folder: Path, clients: int, rounds: int) -> None:
    """Home, certificates and one key pair per client."""
    plan = ["--clients", str(clients), "--rounds", str(rounds), "--samples", "100"]
    subprocess.run(
        [*NBAFL, "serve", "--prepare", "--home", str(folder), *plan], check=True, stdout=subprocess.DEVNULL
    )
    from nbafl.flower.keys import make_client_key

    for client in range(clients):
        _, public = make_client_key(f"client-{client:03}", folder / "keys")
        shutil.copy(public, folder / "clients")


def start(folder: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NBAFL_ANCHORS": str(folder / "anchors")}
    log = (folder / f"{name}.log").open("wb")
    return subprocess.Popen([*NBAFL, *arguments], stdout=log, stderr=subprocess.STDOUT, env=environment)


def run(folder: Path, clients: int, rounds: int) -> dict[str, object]:
    prepare(folder, clients, rounds)
    port, started = free_port(), time.monotonic()
    server = start(
        folder, "serve", "serve", "--home", str(folder), "--host", "127.0.0.1", "--port", str(port)
    )
    parties = [
        start(
            folder,
            f"join-{client}",
            *("join", f"127.0.0.1:{port}", "--handout", str(folder / "handout")),
            *("--key", str(folder / "keys" / f"client-{client:03}"), "--data", f"mnist:{client}/{clients}"),
            *("--state", str(folder / f"state-{client}")),
        )
        for client in range(clients)
    ]
    try:
        memory = watch(folder, server, parties, rounds)
        codes = [process.wait(timeout=300) for process in (server, *parties)]
    finally:
        for process in (server, *parties):
            process.kill()
            process.wait()
    if any(codes):
        sys.exit(f"exit codes {codes}; see the logs in {folder}")
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    seconds = [line["seconds"] for line in lines]
    return {
        "clients": clients,
        "rounds": rounds,
        "cores": len(os.sched_getaffinity(0)),
        "seconds_per_round": seconds,
        "whole_run_seconds": time.monotonic() - started,
        "test_accuracy": lines[-1]["test_accuracy"],
        **memory,
    }


def watch(
    folder: Path, server: subprocess.Popen[bytes], parties: list[subprocess.Popen[bytes]], rounds: int
) -> dict[str, float]:
    """Memory of all processes once the last round but one is over, when everybody is still there."""
    metrics = folder / "run" / "metrics.jsonl"
    while not metrics.exists() or len(metrics.read_text().splitlines()) < max(1, rounds - 1):
        if server.poll() is not None:
            sys.exit(f"the server ended with {server.returncode}; see {folder / 'serve.log'}")
        time.sleep(0.05)
    each = [memory_mb(party.pid) for party in parties]
    own = memory_mb(server.pid)
    return {
        "client_peak_mb": sum(peak for peak, _ in each) / len(each),
        "client_share_mb": sum(share for _, share in each) / len(each),
        "server_peak_mb": own[0],
        "all_share_mb": own[1] + sum(share for _, share in each),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="nbafl-twenty-"))
    measured = run(folder, options.clients, options.rounds)
    shutil.rmtree(folder)
    if options.json:
        print(json.dumps(measured, indent=2))
        return
    for name, value in measured.items():
        shown = ", ".join(f"{part:.2f}" for part in value) if isinstance(value, list) else value
        print(f"{name:20} {shown:.4g}" if isinstance(shown, float) else f"{name:20} {shown}")


if __name__ == "__main__":
    main()
