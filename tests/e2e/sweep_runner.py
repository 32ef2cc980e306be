"""A sweep of small trainings as a process that a test can kill: python sweep_runner.py OUT RUNS workers=N | ray=ADDRESS."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from ranks_cases import federation

import nbafl

FIELDS = {
    "clients": 4,
    "samples": 40,
    "rounds": 40,
    "sensitivity": "gradient",
    "model": "softmax",
    "features": "raw",
    "delta": 1e-5,
    "lr": 0.3,
    "record_clip": 1.0,
    "server_momentum": 0.0,
    "eval_every": 40,
}


def main() -> None:
    out, runs, how = sys.argv[1:]
    where = {"workers": int(how[8:])} if how.startswith("workers=") else {"ray": how[4:]}
    nbafl.sweep(
        nbafl.Plan(**FIELDS),
        {"epsilon": [1.0, 3.0], "adversary": ["broadcast", "curious-server"]},
        federation([40] * 4),
        seeds=int(runs) // 4,
        out=out,
        on_done=lambda *told: print(*told, flush=True),
        **where,  # type: ignore[arg-type]
    )


if __name__ == "__main__":
    main()
