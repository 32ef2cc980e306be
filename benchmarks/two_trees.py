"""Seconds a round of two versions of the sources, in one sitting and by turns: is the newer one as fast?

    git worktree add /tmp/before 4d2aa0c
    python benchmarks/two_trees.py /tmp/before/src src                    # W1 to W4, five turns, an idle machine

Each measurement is one `nbafl bench W --json` in a process of its own, nothing else beside it. The order changes from
turn to turn (before, after, after, before), so that a machine that warms up favours neither. Printed are the medians, their
ratio, and how far the ratios of single turns lie apart: a ratio within 5% of 1 counts as unchanged.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ALLOWED = 0.05


def seconds(sources: Path, workload: str) -> float:
    """One measurement with these sources."""
    words = [sys.executable, "-m", "nbafl.cli", "bench", workload, "--json"]
    environment = {**os.environ, "PYTHONPATH": str(sources.resolve())}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["seconds_per_round"])


def compared(before: Path, after: Path, workload: str, times: int) -> bool:
    """Measure by turns and print a line; whether the newer sources are within what is allowed."""
    found: dict[Path, list[float]] = {before: [], after: []}
    for turn in range(times):
        for sources in (before, after) if turn % 2 == 0 else (after, before):
            found[sources].append(seconds(sources, workload))
    ratios = [new / old for old, new in zip(found[before], found[after], strict=True)]
    old, new = (statistics.median(found[each]) for each in (before, after))
    print(
        f"{workload}: before {old:.4f} s, after {new:.4f} s, ratio {new / old:.3f} "
        f"(turns {min(ratios):.3f} to {max(ratios):.3f})",
        flush=True,
    )
    return new / old <= 1 + ALLOWED


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--workloads", nargs="+", default=["W1", "W2", "W3", "W4"])
    parser.add_argument("--times", type=int, default=5)
    given = parser.parse_args()
    kept = [compared(given.before, given.after, each, given.times) for each in given.workloads]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
