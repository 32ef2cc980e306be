"""How often does an audit refute a mechanism that is sound?

Plays many audits of sound mechanisms, every rule and adversary, all clients or some, equal or not, each with another seed.
An audit is designed to refute one in a hundred of them at most; the promise is one in twenty.

    python benchmarks/audit_false_alarms.py --audits 500 --trials 2000

Outside CI: 500 audits of this size take half an hour on one core.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from typing import Any

from nbafl.audit import path
from nbafl.audit.auditor import audit
from nbafl.plan import Plan

ALLOWED = 0.05
SOLVED = {"model": "softmax", "feature_norm": 3.0, "mu": 0.5, "lr": 0.3, "clip": 30.0, "tolerance": 1e-2}
ADVERSARIES = ("eavesdropper", "targeted", "broadcast", "curious-server", "colluders:2")
PROXIMAL_EVERY = 10
"""Local problems that are really solved take ten times as long, so they are every tenth audit."""


def plans() -> Any:
    """Sound plans without end, each with a seed of its own."""
    rules = ("paper", "gradient", "client")
    who = ({}, {"per_round": 3}, {"sizes": (5, 30, 30, 60, 7, 9)})
    settings = itertools.cycle(itertools.product(rules, ADVERSARIES, who, (1.0, 8.0)))
    for seed in itertools.count(1):
        rule, adversary, federation, epsilon = next(settings)
        fields: dict[str, Any] = {"clients": 6, "samples": 20, **federation}
        if "sizes" in federation:
            fields = dict(federation)
        if seed % PROXIMAL_EVERY == 0:
            rule, fields = "proximal", {"clients": 4, "samples": 10, **SOLVED}
        fields |= {"sensitivity": rule, "adversary": adversary, "epsilon": epsilon, "rounds": 4, "seed": seed}
        yield Plan(**{"features": "raw", "delta": 0.01, "model": "mlp", **fields})


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--audits", type=int, default=500)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--first", type=int, default=1, help="seed of the first audit, to share the work")
    parser.add_argument(
        "--probes", type=int, default=path.PROBES, help="real uploads; their bounds have no error"
    )
    given = parser.parse_args()
    path.PROBES = given.probes
    started, alarms = time.perf_counter(), []
    for number, plan in enumerate(
        itertools.islice(plans(), given.first - 1, given.first - 1 + given.audits), start=1
    ):
        found = audit(plan, given.trials)
        if found.refuted:
            alarms.append({"seed": plan.seed, "sensitivity": plan.sensitivity, "by": found.refuted_by})
            print(json.dumps(alarms[-1]), flush=True)
        if number % 25 == 0:
            print(
                f"{number} audits, {len(alarms)} refuted, {time.perf_counter() - started:.0f} s", flush=True
            )
    allowed = ALLOWED * given.audits
    print(
        json.dumps(
            {"audits": given.audits, "trials": given.trials, "refuted": len(alarms), "allowed": allowed}
        )
    )
    return 0 if len(alarms) <= allowed else 1


if __name__ == "__main__":
    sys.exit(main())
