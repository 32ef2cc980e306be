"""Measure everything and write it into benchmarks/README.md: workloads, peers, scaling, profile.

Takes about half an hour with peers; the machine must have nothing else to do.

    .venv/bin/python benchmarks/table.py             workloads, scaling and profile
    .venv/bin/python benchmarks/table.py --peers     also pfl, FedJAX and Flower
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch

HERE = Path(__file__).parent
README = HERE / "README.md"
WORKLOADS = ("W1", "W2", "W3", "W4")
PEERS = ("pfl", "fedjax", "flower")


def main() -> None:
    peers = "--peers" in sys.argv
    measured = [bench(name, peers and name != "W4") for name in WORKLOADS]
    write("table", table(measured))
    run([sys.executable, str(HERE / "scaling.py")])
    write("profile", "\n\n".join(f"```\n{profile(name)}\n```" for name in WORKLOADS))


def bench(name: str, peers: bool) -> dict:
    command = [sys.executable, "-m", "nbafl.cli", "bench", name, "--json", "--device", "cpu"]
    found = json.loads(run(command + ["--peers"] * peers))
    print(name, found, flush=True)
    return found


def profile(name: str) -> str:
    return run([sys.executable, str(HERE / "profile_round.py"), name]).strip()


def run(command: list[str]) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def table(measured: list[dict]) -> str:
    """Seconds a round of everyone, and how often ours fits into each peer's."""
    lines = [
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores ({cpu()}), torch {torch.__version__}, "
        f"load {os.getloadavg()[2]:.1f} over the 15 minutes before the end.",
        "",
        "| | " + " | ".join(found["workload"] for found in measured) + " |",
        "| --- |" + " --- |" * len(measured),
    ]
    rows = {
        "**nbafl**, seconds a round": lambda f: f"**{f['seconds_per_round']:.4f}**",
        "engine": lambda f: f["engine"],
        "arithmetic floor (all products dense), seconds": lambda f: f"{f['floor_seconds']:.4f}",
        "ratio to it": lambda f: f"{f['ratio_to_floor']:.2f}",
        "GFLOP it counts, at GFLOP/s": lambda f: f"{f['floor_gflop']:.3g} at {f['gflops']:.0f}",
        "floor of the work done (zeros skipped), seconds": lambda f: f"{f['work_floor_seconds']:.4f}",
        "ratio to that": lambda f: f"{f['ratio_to_work_floor']:.2f}",
        "GFLOP that counts, dense and sparse": lambda f: (
            f"{f['work_dense_gflop']:.3g} and {f['work_sparse_gflop']:.3g}"
        ),
        "large sparse product, GFLOP/s": lambda f: (
            "–" if f["sparse_gflops"] is None else f"{f['sparse_gflops']:.0f}"
        ),
        "start-up, seconds": lambda f: f"{f['startup_seconds']:.1f}",
        "peak memory, MB": lambda f: f"{f['memory_mb']:.0f}",
        "test accuracy at the end": lambda f: (
            "–" if f["test_accuracy"] is None else f"{f['test_accuracy']:.3f}"
        ),
    }
    for peer in PEERS:
        if any(found["peers"] for found in measured):
            rows[f"{peer}, seconds a round (ratio)"] = lambda f, peer=peer: against(f, peer)
    lines += [
        f"| {name} | " + " | ".join(cell(found) for found in measured) + " |" for name, cell in rows.items()
    ]
    return "\n".join(lines)


def against(found: dict, peer: str) -> str:
    seconds = found["peers"].get(peer)
    return "–" if seconds is None else f"{seconds:.3f} ({seconds / found['seconds_per_round']:.1f} ×)"


def cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def write(section: str, text: str) -> None:
    """Replace what stands between the section's two marks."""
    begin, end = f"<!-- {section} -->", f"<!-- /{section} -->"
    before, _, rest = README.read_text(encoding="utf-8").partition(begin)
    after = rest.partition(end)[2]
    README.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
