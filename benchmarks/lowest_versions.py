"""Resolve the lowest versions that pyproject.toml allows (torch aside), install them, and run the core of the fast tests.

    python benchmarks/lowest_versions.py [--python 3.11]

Outside CI: it installs an environment from pip through uv. The result stands in docs/release.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = (
    "tests/privacy", "tests/run", "tests/test_plan.py", "tests/test_rules.py", "tests/theory/test_optimum.py",
    "tests/cli/test_plan_verb.py", "tests/cli/test_bad_usage.py", "tests/data/test_partition.py",
)  # fmt: skip
"""The core: what a plan promises, its accounting, a small run and its predictions."""
TORCH = "torch==2.13.0"
EXTRAS = "flower,studio,tables"
TOOLS = ("pytest", "hypothesis", "mpmath", "scikit-learn")
"""What the tests themselves need, in whatever version goes with the rest."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default=f"{sys.version_info.major}.{sys.version_info.minor}")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nbafl-lowest-") as folder:
        place, pins = Path(folder) / "venv", Path(folder) / "torch.txt"
        pins.write_text(TORCH + "\n", encoding="utf-8")
        uv("venv", "-q", "--python", asked.python, place)
        into = ("--python", place / "bin" / "python", "--constraint", pins)
        uv("pip", "install", "-q", *into, "--resolution", "lowest-direct", TORCH, f"{ROOT}[{EXTRAS}]")
        uv("pip", "install", "-q", *into, *TOOLS)
        uv("pip", "list", "--python", place / "bin" / "python")
        here = [str(ROOT / test) for test in TESTS]
        command = [
            place / "bin" / "python",
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            "not e2e",
            *here,
        ]
        sys.exit(subprocess.run(command, cwd=ROOT).returncode)


def uv(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "uv", *map(str, words)], check=True)


if __name__ == "__main__":
    main()
