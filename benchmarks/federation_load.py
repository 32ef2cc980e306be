"""Many real clients on one machine: seconds a round, the server's CPU per client and round, memory per client.

    .venv/bin/python benchmarks/federation_load.py [--clients 100] [--rounds 20] [--apart] [--json]

One `nbafl serve` and N `nbafl join`, each a process of its own, over TLS on loopback, softmax regression, 50 records a
client. The processes are forked from one that has loaded the libraries, so that a hundred fit on a small machine; with
`--apart` each is started by itself, as on machines of their own, and its private memory is what a client needs.

0.1.0 (Flower's Fleet API) spent 0.12 s of the server's CPU per client and round, and 7.5 s a round with 50 clients.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "e2e"))
from federation_processes import Apart, Federation, Nursery, wait_for


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(folder: Path, clients: int, rounds: int, apart: bool) -> dict[str, object]:
    os.environ["NBAFL_ANCHORS"] = str(folder / "anchors")
    nursery = Apart(folder) if apart else Nursery(folder)
    try:
        rule = ("--sensitivity", "gradient", "--features", "raw", "--epsilon", 50, "--delta", 1e-5)
        shape = ("--rounds", rounds, "--samples", 50, "--model", "softmax")
        federation = Federation(folder, clients, *shape, *rule)
        server = nursery.start("serve", *federation.serve("--wait", 1800, "--timeout", 1800))
        parties = [
            nursery.start(
                f"join-{client}", *federation.join(client, "--outputs", 10, data="hostile.data:fifty")
            )
            for client in range(clients)
        ]
        wait_for(lambda: federation.metrics or server.code is not None, "the first round", 3000)
        began, before = time.monotonic(), cpu_seconds(server.pid)
        first = len(federation.metrics)
        wait_for(lambda: len(federation.metrics) >= rounds - 1 or server.code is not None, "the rounds", 3000)
        counted = len(federation.metrics) - first
        wall, spent = time.monotonic() - began, cpu_seconds(server.pid) - before
        memory = [party.own_mb for party in parties if party.alive]
        server_memory = server.own_mb[1]
        codes = [process.finish(600) for process in (server, *parties)]
    finally:
        nursery.close()
    seconds = [float(line["seconds"]) for line in federation.metrics]  # type: ignore[arg-type]
    return {
        "clients": clients,
        "rounds": len(seconds),
        "exit_codes": sorted(set(codes)),
        "answers": sum(len(line["answered"]) for line in federation.answers),  # type: ignore[arg-type]
        "seconds_per_round": statistics.median(seconds),
        "slowest_round": max(seconds),
        "server_cpu_per_client_and_round": spent / (clients * max(1, counted)),
        "server_share_of_a_core": spent / wall,
        "client_share_mb": statistics.mean(share for share, _ in memory) if memory else None,
        "client_private_mb": statistics.mean(own for _, own in memory) if memory else None,
        "server_private_mb": server_memory,
        "load": os.getloadavg()[0],
        "cores": len(os.sched_getaffinity(0)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nbafl-load-") as folder:
        measured = measure(Path(folder), options.clients, options.rounds, options.apart)
    if options.json:
        print(json.dumps(measured, indent=2))
        return
    for name, value in measured.items():
        print(f"{name:32} {value:.4g}" if isinstance(value, float) else f"{name:32} {value}")


if __name__ == "__main__":
    main()
