"""A verdict on every claim of the paper, computed from the runs.

A claim is tested on a figure's data under each calibration. It `holds` where the test supports it and `fails` where
not; where there are too few seeds to tell, it is `undecided`. It is an `artefact` where the paper's noise supports it,
that noise is too small for the epsilon it claims (against the paper's own eavesdropper), and with noise that keeps the
claimed epsilon the data speak against it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from nbafl.paper import fig02_03, fig06_07, fig09, fig10, fig11
from nbafl.paper.by_round import Line
from nbafl.paper.evidence import LEVEL, Test, improves, p_smaller, valley, vertices
from nbafl.paper.fig08 import Expressions
from nbafl.paper.over_rounds import Sweep
from nbafl.paper.runs import Runs
from nbafl.paper.settings import CALIBRATIONS, Settings
from nbafl.plan import Plan
from nbafl.privacy import accounting, adversary

TRADE_OFF = "privacy-convergence trade-off: a larger epsilon gives a better model"
MORE_CLIENTS = "more clients help at a fixed epsilon"
OPTIMAL_ROUNDS = "an optimal T exists and grows with epsilon"
DRAWING_HELPS = "K-random scheduling beats all clients at large T"
OPTIMAL_DRAWN = "an optimal K between 1 and N exists"


@dataclass(frozen=True)
class Claim:
    """A claim, the figure it is read off, its test, and the plan whose noise speaks for it."""

    figure: int
    text: str
    test: Callable[[str], Test]
    plan: Callable[[str], Plan]


def claims(runs: Runs, expressions: Expressions) -> list[Claim]:
    """Every claim, figure by figure."""
    s = runs.settings
    top = s.round_grid[-1]

    def plan(epsilon: float, **changes: Any) -> Callable[[str], Plan]:
        return lambda calibration: s.plan(calibration, epsilon, **changes)

    found = []
    levels = (
        (2, "train_loss", None),
        (3, "test_accuracy", None),
        (4, "train_loss", s.per_round),
        (5, "test_accuracy", s.per_round),
    )
    for figure, measure, drawn in levels:
        test = _by_level(runs, measure, drawn)
        found.append(Claim(figure, TRADE_OFF, test, plan(s.epsilons[0], per_round=drawn)))
    for figure, measure in ((6, "train_loss"), (7, "test_accuracy")):
        found.append(Claim(figure, MORE_CLIENTS, _by_clients(runs, measure), plan(s.epsilon_clients)))
    found += [
        Claim(8, OPTIMAL_ROUNDS, lambda c: _bound_valley(expressions, c), plan(s.epsilons[0], mu=s.mu_bound)),
        Claim(
            9,
            OPTIMAL_ROUNDS,
            lambda c: _beside_the_bound(runs, expressions, c),
            plan(s.epsilons_bound[0], mu=s.mu_bound),
        ),
        Claim(
            10,
            OPTIMAL_ROUNDS,
            lambda c: _best_rounds_grow(runs, fig10.sweeps(s, c, s.clients)),
            plan(s.epsilons_rounds[0]),
        ),
        Claim(
            10,
            DRAWING_HELPS,
            lambda c: _drawing_helps(runs, c),
            plan(s.epsilons_rounds[0], per_round=s.per_round, rounds=top),
        ),
        Claim(
            11,
            OPTIMAL_DRAWN,
            lambda c: _best_drawn(runs, c),
            plan(s.epsilons_drawn[0], per_round=s.per_round),
        ),
    ]
    return found


def verdicts(runs: Runs, expressions: Expressions, figures: tuple[int, ...]) -> list[dict[str, Any]]:
    """The verdict on every claim of these figures under both calibrations, as `reproduce --json` prints it."""
    entries = []
    for claim in claims(runs, expressions):
        if claim.figure not in figures:
            continue
        tests = {calibration: claim.test(calibration) for calibration in CALIBRATIONS}
        for calibration in CALIBRATIONS:
            worth = privacy_worth(claim.plan(calibration))
            entries.append(
                {
                    "figure": claim.figure,
                    "claim": claim.text,
                    "calibration": calibration,
                    "verdict": judge(calibration, tests, worth["real_epsilon"] > worth["claimed_epsilon"]),
                    "evidence": {
                        **_told(tests[calibration]),
                        "seeds": runs.seeds,
                        "supported": {name: test.supported for name, test in tests.items()},
                        "refuted": {name: test.refuted for name, test in tests.items()},
                        "privacy": worth,
                    },
                }
            )
    return entries


def _told(test: Test) -> dict[str, Any]:
    """A test's details; an undecided one says with how many seeds."""
    if not test.undecided:
        return test.details
    count = f"{test.seeds} seed{'s' if test.seeds != 1 else ''}"
    return {**test.details, "sentence": f"{test.details['sentence']}; {count} cannot decide"}


def judge(calibration: str, tests: dict[str, Test], too_little_noise: bool) -> str:
    """`holds`, `fails`, `artefact`, or `undecided` where there are too few seeds."""
    if tests[calibration].undecided:
        return "undecided"
    if not tests[calibration].supported:
        return "fails"
    if calibration == "paper" and too_little_noise and tests["exact"].refuted:
        return "artefact"
    return "holds"


def privacy_worth(plan: Plan) -> dict[str, Any]:
    """What the noise of a claim's plan is really worth against the paper's own adversary."""
    real = accounting.epsilon_spent(plan.release(), plan.noise_scales(), adversary.EAVESDROPPER, plan.delta)
    return {
        "claimed_epsilon": plan.epsilon,
        "real_epsilon": real,
        "delta": plan.delta,
        "adversary": adversary.EAVESDROPPER.name,
        "assumption": "one record replaced, sensitivity 2C/m granted",
        "clients": plan.clients,
        "per_round": plan.drawn,
        "rounds": plan.rounds,
        "sigma_aggregate": plan.noise_scales().aggregate(plan.release()),
    }


def _in_order(runs: Runs, lines: list[Line], measure: str) -> Test:
    """The last round of each line is better than that of the line before.

    Accuracies are judged on the test set, as the paper's text says: it is the same for every N, and the training
    records are not. What the training records say stands in the evidence.
    """
    labels = [label for label, _ in lines]

    def last(name: str) -> list[np.ndarray]:
        return [runs.values(wanted, name)[:, -1] for _, wanted in lines]

    test = improves(labels, last(measure), smaller_is_better="loss" in measure)
    test.details["measure"] = measure
    if measure == "test_accuracy":
        test.details["train_accuracy"] = improves(
            labels, last("train_accuracy"), smaller_is_better=False
        ).details
    return test


def _by_level(runs: Runs, measure: str, drawn: int | None) -> Callable[[str], Test]:
    def test(calibration: str) -> Test:
        return _in_order(runs, fig02_03.lines(runs.settings, calibration, drawn), measure)

    return test


def _by_clients(runs: Runs, measure: str) -> Callable[[str], Test]:
    def test(calibration: str) -> Test:
        return _in_order(runs, fig06_07.lines(runs.settings, calibration), measure)

    return test


def _bound_valley(expressions: Expressions, calibration: str) -> Test:
    """The formula that goes with the calibration: Theorem 2 as printed, or the repaired bound with exact noise."""
    settings = expressions.settings
    name = "printed" if calibration == "paper" else "repaired"
    optima = [
        expressions.best_printed(epsilon)
        if name == "printed"
        else expressions.best_repaired(calibration, epsilon)
        for epsilon in settings.epsilons
    ]
    best = [optimum.at for optimum in optima]
    known = [at for at in best if at is not None]
    grows = len(known) == len(best) and all(a < b for a, b in pairwise(known))
    places = ", ".join(f"{at} for ε = {e:g}" for e, at in zip(settings.epsilons, best, strict=True))
    details: dict[str, Any] = {
        "sentence": f"the {name} form is smallest at T = {places}",
        "form": name,
        "best_rounds": {f"{e:g}": at for e, at in zip(settings.epsilons, best, strict=True)},
        "interior": [optimum.interior for optimum in optima],
        "reasons": [optimum.reason for optimum in optima],
        "mu": settings.mu_bound,
        "caveat": "not a bound" if name == "printed" else expressions.caveat(),
        "best_rounds_of_the_repaired_form_with_this_noise": {
            f"{e:g}": expressions.best_repaired(calibration, e).at for e in settings.epsilons
        },
    }
    if name == "printed":  # E|n|^2 is d sigma_A^2, and sigma_A has 2C: the theorem has N and 1
        ratio = 4 * settings.clip**2 * expressions.knowledge.pilot.dimension / settings.clients
        details["second_order_noise_term_too_small_by"] = ratio
    interior = [optimum.interior for optimum in optima]
    return Test(grows and all(interior), not any(interior), details)


def _best_rounds_grow(runs: Runs, sweeps: list[Sweep]) -> Test:
    """A valley over T for every epsilon, and its bottom further right for the larger epsilon."""
    grid = runs.settings.round_grid
    losses = [sweep.losses(runs) for sweep in sweeps]
    valleys = [valley(grid, each, len(sweeps)) for each in losses]
    bottoms = [vertices(grid, each) for each in losses]
    growth = [p_smaller(a, b) for a, b in pairwise(bottoms)]
    places = ", ".join(f"{b.mean():.0f} for ε = {s.epsilon:g}" for s, b in zip(sweeps, bottoms, strict=True))
    details = {
        "sentence": f"smallest loss at T = {places} (growth p = {max(growth, default=1.0):.1g})",
        "valleys": {f"{s.epsilon:g}": v.details for s, v in zip(sweeps, valleys, strict=True)},
        "best_rounds": {f"{s.epsilon:g}": float(b.mean()) for s, b in zip(sweeps, bottoms, strict=True)},
        "p_best_rounds_grow": growth,
        "level": LEVEL,
    }
    return Test(
        all(each.supported for each in valleys) and max(growth, default=1.0) < LEVEL,
        all(each.refuted for each in valleys),
        details,
        all(each.shown for each in valleys) and all(a.mean() < b.mean() for a, b in pairwise(bottoms)),
        runs.seeds,
    )


def _beside_the_bound(runs: Runs, expressions: Expressions, calibration: str) -> Test:
    """Figure 9: the experiment's valley; what Theorem 2 says of it stands beside it."""
    settings = runs.settings
    test = _best_rounds_grow(runs, fig09.sweeps(settings, calibration))
    if calibration == "paper":
        best = {f"{e:g}": expressions.best_printed(e).at for e in settings.epsilons_bound}
        test.details["best_rounds_of_theorem_2"] = best
        test.details["theorem_2_below_the_measured_loss_at"] = {
            f"{sweep.epsilon:g}": [
                rounds
                for rounds, loss in zip(settings.round_grid, sweep.losses(runs).mean(axis=0), strict=True)
                if (value := expressions.printed(sweep.epsilon, rounds).value) is not None and value < loss
            ]
            for sweep in fig09.sweeps(settings, calibration)
        }
    return test


def _drawing_helps(runs: Runs, calibration: str) -> Test:
    """At the two largest T, K drawn at random has the smaller loss, for every epsilon."""
    settings = runs.settings
    large = settings.round_grid[-2:]
    level = LEVEL / (len(large) * len(settings.epsilons_rounds))
    p_values, p_against, means = {}, {}, {}
    everyone = fig10.sweeps(settings, calibration, settings.clients)
    drawn = fig10.sweeps(settings, calibration, settings.per_round)
    for all_clients, random in zip(everyone, drawn, strict=True):
        for place, rounds in enumerate(large, start=len(settings.round_grid) - 2):
            name = f"epsilon {random.epsilon:g}, T = {rounds}"
            first, second = random.losses(runs)[:, place], all_clients.losses(runs)[:, place]
            p_values[name] = p_smaller(first, second)
            p_against[name] = p_smaller(second, first)
            means[name] = {f"K = {settings.per_round}": float(first.mean()), "all": float(second.mean())}
    sentence = "; ".join(
        f"{name}: " + ", ".join(f"{who} {v:.3f}" for who, v in m.items()) for name, m in means.items()
    )
    details = {
        "sentence": sentence,
        "p_drawn_smaller": p_values,
        "p_drawn_larger": p_against,
        "means": means,
        "level": level,
    }
    shown = all(each[f"K = {settings.per_round}"] < each["all"] for each in means.values())
    return Test(max(p_values.values()) < level, max(p_against.values()) < level, details, shown, runs.seeds)


def _best_drawn(runs: Runs, calibration: str) -> Test:
    """A valley over K for every epsilon."""
    settings: Settings = runs.settings
    tests = {
        f"{epsilon:g}": valley(
            settings.drawn_grid, fig11.losses(runs, calibration, epsilon), len(settings.epsilons_drawn)
        )
        for epsilon in settings.epsilons_drawn
    }
    places = ", ".join(f"{test.details['best']} for ε = {name}" for name, test in tests.items())
    details = {
        "sentence": f"smallest loss at K = {places}",
        "valleys": {name: test.details for name, test in tests.items()},
    }
    supported = all(test.supported for test in tests.values())
    refuted, shown = (
        all(test.refuted for test in tests.values()),
        all(test.shown for test in tests.values()),
    )
    return Test(supported, refuted, details, shown, runs.seeds)
