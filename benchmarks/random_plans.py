"""Random plans against an accountant that shares no line with nbafl's (`independent_accountant`).

    python benchmarks/random_plans.py --plans 10000 --seed 1

For every plan (all rules, units, adversaries, calibrations, unequal clients, K < N, dropouts) the noise is taken as the
plan gives it and everything else is worked out anew, the sensitivity from its formula included.

Two things are counted. Where nbafl's number is meant to be exact, the largest deviation: 1e-6 is allowed, 1e-4 for the
secret draw. Where it is a bound (unequal clients with K < N, taps and colluders in rounds of unequal cost) the enumeration
is a floor: nbafl must never be below it, and the largest excess is printed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import mpmath as mp
import numpy as np

from independent_accountant import (
    World,
    allowed,
    best_choice,
    coalitions,
    kinds_of,
    mixture_epsilon,
    public_epsilon,
    secret_epsilon,
    views,
    worst_rounds,
)
from nbafl.errors import UsageError
from nbafl.plan import Plan
from nbafl.privacy import accounting, adversary, dropouts
from nbafl.privacy.adversary import Adversary
from nbafl.privacy.dropouts import AnsweredRound
from nbafl.privacy.units import Account, in_account

EXACT, SECRET, BELOW = 1e-6, 1e-4, 1e-9
ADVERSARIES = ("broadcast", "targeted", "eavesdropper", "eavesdropper-spread", "curious-server", "colluders")


# --- sensitivity, from its formulas -------------------------------------------------------------------------


def shifts(plan: Plan) -> list[float]:
    """Delta_U of each client, as docs/guarantees.md states it."""
    sizes = plan.sizes or (plan.samples,) * plan.clients
    if plan.sensitivity == "client":
        left_out = plan.adjacency == "drop" and plan.drawn == plan.clients
        return [plan.clip * (1 if left_out else 2)] * plan.clients
    if plan.sensitivity == "paper":
        return [2 * plan.clip / m for m in sizes]
    if plan.sensitivity == "gradient":
        return [2 * plan.lr * plan.record_clip / m for m in sizes]
    assert plan.feature_norm is not None
    slope = math.sqrt(2) * plan.feature_norm
    if plan.tolerance is not None:
        return [min(2 * plan.clip, 2 * slope / (m * plan.mu) + 2 * plan.tolerance / plan.mu) for m in sizes]
    growth = sum((1 - plan.lr * plan.mu) ** s for s in range(plan.local_steps))
    return [min(2 * plan.clip, 2 * plan.lr * slope * growth / m) for m in sizes]


def world_of(plan: Plan) -> World:
    sizes = (1,) * plan.clients if plan.sensitivity == "client" else (plan.sizes or (1,) * plan.clients)
    noise = plan.noise_scales()
    return World(
        tuple(shifts(plan)),
        tuple(m / sum(sizes) for m in sizes),
        tuple(float(s) for s in noise.sigma_uplink),
        float(noise.sigma_downlink),
        plan.drawn,
        plan.rounds,
        plan.exposures,
    )


# --- random plans -------------------------------------------------------------------------------------------


def random_plan(chance: np.random.Generator) -> Plan:
    clients = int(chance.integers(1, 7))
    rounds = int(chance.integers(1, 7))
    rule = str(chance.choice(["paper", "proximal", "gradient", "client"]))
    fields: dict[str, Any] = {
        "clients": clients,
        "rounds": rounds,
        "exposures": int(chance.integers(1, rounds + 1)),
        "sensitivity": rule,
        "epsilon": float(np.exp(chance.uniform(math.log(0.1), math.log(60)))),
        "delta": float(10 ** chance.uniform(-8, -2)),
        "calibration": str(chance.choice(["paper", "separate", "exact", "exact", "exact"])),
        "clip": float(np.exp(chance.uniform(-2, 3))),
        "model": "softmax",
    }
    if chance.random() < 0.5:
        fields["sizes"] = tuple(int(m) for m in chance.integers(5, 300, clients))
    else:
        fields["samples"] = int(chance.integers(5, 300))
    if clients > 1 and chance.random() < 0.5:
        fields["per_round"] = int(chance.integers(1, clients))
    fields["adversary"] = _named(str(chance.choice(ADVERSARIES)), clients, chance)
    if rule == "client":
        fields["adjacency"] = str(chance.choice(["replace", "drop"]))
    if rule == "gradient":
        fields["record_clip"] = float(np.exp(chance.uniform(-2, 2)))
        fields["lr"] = float(np.exp(chance.uniform(-3, 1)))
        if chance.random() < 0.4:
            fields |= {"person": "patient", "dataset": "hospitals", "target": "outcome"}
    if rule == "proximal":
        fields |= {
            "feature_norm": float(np.exp(chance.uniform(0.1, 2))),
            "mu": float(np.exp(chance.uniform(-3, 1))),
        }
        if chance.random() < 0.6:
            fields["tolerance"] = float(np.exp(chance.uniform(-9, -2)))
        else:
            fields |= {"local_steps": int(chance.integers(1, 9)), "lr": 1e-2}
    return Plan(**fields)


def _named(kind: str, clients: int, chance: np.random.Generator) -> str:
    if kind != "colluders":
        return kind
    return f"colluders:{int(chance.integers(1, clients))}" if clients > 1 else "broadcast"


# --- comparing ----------------------------------------------------------------------------------------------


@dataclass
class Tally:
    compared: Counter[str] = field(default_factory=Counter)
    deviation: dict[str, float] = field(default_factory=dict)
    excess: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, kind: str, ours: float, truth: float, exact: bool, what: str) -> None:
        """`exact`: the two must agree; else `truth` is a floor."""
        self.compared[kind] += 1
        if math.isinf(ours) or math.isinf(truth):
            if (math.isinf(truth) and not math.isinf(ours)) or (exact and ours != truth):
                self.failures.append(f"{what}: {ours} where {truth}")
            return
        off = (ours - truth) / max(truth, 1e-6)
        within = SECRET if kind.startswith("secret") else EXACT
        if exact:
            self.deviation[kind] = max(self.deviation.get(kind, 0.0), abs(off))
        else:
            self.excess[kind] = max(self.excess.get(kind, 0.0), off)
        # The composed truth of a secret draw has errors of its own, both ways.
        below = SECRET / 10 if kind.startswith("secret") else BELOW
        if off < -below or (exact and off > within):
            self.failures.append(f"{what}: {ours!r} where {truth!r} ({off:.2e})")


@dataclass(frozen=True)
class Case:
    """One plan against one adversary."""

    plan: Plan
    world: World
    kind: str
    size: int
    """Colluders, if that is the kind."""

    @property
    def named(self) -> Adversary:
        return adversary.colluders(self.size) if self.size else adversary.parse(self.kind)

    @property
    def everyone(self) -> bool:
        return self.plan.drawn == self.plan.clients

    @property
    def same(self) -> bool:
        return len(kinds_of(self.world)) == 1

    @property
    def secret(self) -> bool:
        """Whether the draw is a secret that counts: whole clients, all alike, nobody who sees uploads."""
        competing = self.plan.clients - self.size
        return (
            self.plan.sensitivity == "client"
            and self.plan.drawn < competing
            and self.kind in ("broadcast", "colluders")
            and self.same
        )

    def __str__(self) -> str:
        return f"{self.plan.model_dump(exclude_defaults=True)} against {self.named.name}"


def compare(plan: Plan, chance: np.random.Generator, tally: Tally) -> None:
    world = world_of(plan)
    for kind in ADVERSARIES:
        size = int(chance.integers(1, plan.clients)) if kind == "colluders" and plan.clients > 1 else 0
        if kind == "colluders" and not size:
            continue
        case = Case(plan, world, kind, size)
        compare_plan(case, tally)
        if case.everyone and chance.random() < 0.3:
            compare_units(case, tally)
        compare_rounds(case, chance, tally)


def compare_plan(case: Case, tally: Tally) -> None:
    plan, world, kind, size = case.plan, case.world, case.kind, case.size
    ours = accounting.epsilon_spent(plan.release(), plan.noise_scales(), case.named, plan.delta)
    if case.secret:
        mu = math.sqrt(max(each[2] for each in worst_rounds(world, 0, kind, size)))
        if 0 < mu < 30 and ours < 50:
            told = [(mu, plan.drawn / (plan.clients - size), plan.rounds, True)]
            known = public_epsilon(world, kind, size, plan.delta, ours)
            tally.add("secret draw", ours, min(known, secret_epsilon(told, plan.delta)), True, str(case))
        return
    truth = public_epsilon(world, kind, size, plan.delta, ours)
    exact = case.everyone or (case.same and kind != "eavesdropper-spread")
    drawn = "public draw, spread taps" if kind == "eavesdropper-spread" else "public draw"
    tally.add("everyone" if case.everyone else drawn, ours, truth, exact, str(case))


def compare_units(case: Case, tally: Tally) -> None:
    """What the same run costs the ledger's other accounts: the last clip keeps an upload within R of a public centre."""
    plan = case.plan
    radius = plan.lr * plan.record_clip if plan.sensitivity == "gradient" else plan.clip
    for account in Account:
        if account == Account.of(plan.release().sensitivity.unit, plan.adjacency):
            continue
        moved = (radius if account is Account.CLIENT_DROP else 2 * radius,) * plan.clients
        if plan.person is not None and account is Account.RECORD:
            # One person loses a row, another gains it: two averages move, and the upload stays in its ball.
            moved = tuple(min(2 * each, 2 * radius) for each in case.world.shift)
        other = replace(case.world, shift=moved)
        release = in_account(plan.release(), account, radius)
        ours = accounting.epsilon_spent(release, plan.noise_scales(), case.named, plan.delta)
        truth = public_epsilon(other, case.kind, case.size, plan.delta, ours)
        tally.add("other units", ours, truth, True, f"{case} for a {account}")


@dataclass(frozen=True)
class Happened:
    """A round with dropouts, topped up to as much noise as if all drawn had answered."""

    answered: tuple[int, ...]
    extra: float
    online: bool


def compare_rounds(case: Case, chance: np.random.Generator, tally: Tally) -> None:
    plan, world = case.plan, case.world
    rounds = [_random_round(case, chance) for _ in range(plan.rounds)]
    told = [AnsweredRound(np.array(each.answered), each.extra, each.online) for each in rounds]
    ours = dropouts.epsilon_of_rounds(plan.release(), plan.noise_scales(), case.named, told, plan.delta)
    what = f"{case}, as it happened {rounds}"
    if case.everyone:
        worst = max(_cost(case, rounds, j, coalition) for j, coalition in _attacks(case))
        truth = mixture_epsilon([mp.mpf(1)], [mp.sqrt(worst)], plan.delta, ours)
        exact = case.kind in ("broadcast", "targeted", "curious-server")
        tally.add("dropouts", ours, truth if math.isfinite(worst) else math.inf, exact, what)
    elif case.secret:
        kinds: Counter[tuple[float, float, bool]] = Counter()
        for each in rounds:
            first = each.answered[0]
            cost = max(
                views(world, first, each.answered, c, each.extra)[2] for j, c in _attacks(case) if j == first
            )
            q = plan.drawn / (plan.clients - case.size if each.online else plan.clients)
            kinds[(round(math.sqrt(cost), 10), q, each.online)] += 1
        if ours < 50 and all(mu <= 30 for mu, _, _ in kinds):
            known = max(_cost(case, rounds, j, coalition) for j, coalition in _attacks(case))
            truth = min(
                secret_epsilon(
                    [(mu, q, count, online) for (mu, q, online), count in kinds.items()], plan.delta
                ),
                mixture_epsilon([mp.mpf(1)], [mp.sqrt(known)], plan.delta, ours),
            )
            tally.add("secret draw with dropouts", ours, truth, case.size == 0, what)


def _random_round(case: Case, chance: np.random.Generator) -> Happened:
    plan = case.plan
    drawn = sorted(chance.choice(plan.clients, plan.drawn, replace=False).tolist())
    answered = tuple(i for i in drawn if chance.random() < 0.7) or (drawn[0],)
    online = bool(len(answered) == plan.drawn and chance.random() < 0.5)
    return Happened(answered, _top_up(case.world, drawn, answered), online)


def _attacks(case: Case) -> list[tuple[int, tuple[int, ...]]]:
    """Every target with every coalition against it."""
    clients = range(case.plan.clients)
    return [(j, coalition) for j in clients for coalition in coalitions(case.world, j, case.size) or [()]]


def _cost(case: Case, rounds: list[Happened], target: int, coalition: tuple[int, ...]) -> float:
    """mu^2 of the rounds in which the target answered, the adversary choosing what to see in which of them."""
    seen = [
        views(case.world, target, each.answered, coalition, each.extra)
        for each in rounds
        if target in each.answered
    ]
    return best_choice(seen, *allowed(case.kind, case.plan.exposures)) if seen else 0.0


def _top_up(world: World, drawn: list[int], answered: tuple[int, ...]) -> float:
    """The variance that gives every client the hiding it would have had, found from the requirement itself."""
    whole = sum(world.weight[i] for i in drawn)
    kept = sum(world.weight[i] for i in answered) / whole
    needed = sum((world.weight[i] / whole * world.sigma[i]) ** 2 for i in drawn) + world.server**2
    there = sum((world.weight[i] / whole * world.sigma[i]) ** 2 for i in answered)
    return max(0.0, (needed - there) / kept**2 - world.server**2)


def run(plans: int, seed: int, progress: bool = False) -> tuple[Tally, int]:
    """(what was found, plans that could not be made)."""
    chance, tally, refused, made, started = np.random.default_rng(seed), Tally(), 0, 0, time.monotonic()
    while made < plans:
        try:
            plan = random_plan(chance)
            plan.noise_scales()
        except UsageError:
            refused += 1
            continue
        compare(plan, chance, tally)
        made += 1
        if progress and made % 100 == 0:
            print(
                f"{made} plans, {sum(tally.compared.values())} comparisons, {len(tally.failures)} failures, "
                f"{time.monotonic() - started:.0f} s",
                file=sys.stderr,
                flush=True,
            )
    return tally, refused


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plans", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    tally, refused = run(given.plans, given.seed, progress=True)
    print(
        json.dumps(
            {
                "plans": given.plans,
                "seed": given.seed,
                "refused": refused,
                "comparisons": dict(tally.compared),
                "largest_deviation": tally.deviation,
                "largest_excess_of_bounds": tally.excess,
                "failures": len(tally.failures),
            },
            indent=2,
        )
    )
    for failure in tally.failures[:20]:
        print(failure)
    sys.exit(bool(tally.failures))


if __name__ == "__main__":
    main()
