"""Whether the planner is right on tables: the loss that `nbafl plan --bounds` promises, beside what trainings end at.

    python benchmarks/planner_tables.py [--epsilon 3] [--adversary eavesdropper] [--seeds 5] [--out planner.md]

The tables and their plans are those of newcomer.py: nothing given but data, target, epsilon and adversary. The planner sees
the training records of a seed; then the very plan is trained on them with other noise, once for every seed. Exits 1 where a
promise is off by more than a fifth, or fewer than five tables get one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

import nbafl
from nbafl.theory.planning import plan_bounds
from newcomer import cases, plan_of

NEAR, ENOUGH = 0.2, 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--adversary", default="eavesdropper")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    lines = [
        "| table | promised loss | measured loss | off by | promised / measured accuracy |",
        "| --- | --- | --- | --- | --- |",
    ]
    told, wrong = 0, 0
    for case in cases():
        federation = case.federation(0)
        plan = plan_of(case, int(federation.sizes.sum()), asked.epsilon, asked.adversary)
        found = plan_bounds(plan, federation=federation)
        lasts = [_trained(plan.with_fields(seed=seed), federation) for seed in range(100, 100 + asked.seeds)]
        loss = float(np.mean([last["train_loss"] for last in lasts]))
        promised = found["predicted_loss"]
        if promised is None:
            lines.append(
                f"| {case.name} | does not know | {loss:.4f} | – | {found['reasons']['empirical']} |"
            )
        else:
            told += 1
            wrong += abs(promised / loss - 1) > NEAR
            right = [last["train_accuracy"] for last in lasts]
            accuracy = "–" if None in right else f"{found['predicted_accuracy']:.1%} / {np.mean(right):.1%}"
            lines.append(
                f"| {case.name} | {promised:.4f} | {loss:.4f} | {promised / loss - 1:+.1%} | {accuracy} |"
            )
        print(lines[-1], flush=True)
    lines.append(f"\n{told} tables got a number; {wrong} of them off by more than {NEAR:.0%}.")
    print(lines[-1])
    if asked.out:
        asked.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return int(wrong > 0 or told < ENOUGH)


def _trained(plan: nbafl.Plan, federation: nbafl.Federation) -> dict[str, float]:
    quiet = plan.with_fields(eval_every=plan.rounds)
    with tempfile.TemporaryDirectory() as folder:
        return nbafl.simulate(quiet, federation, out=Path(folder) / "run", report=False).metrics[-1]


if __name__ == "__main__":
    sys.exit(main())
