"""A record under a plan for persons may be replaced by one of another person, and then two averages move: math.md (10.5)."""

from __future__ import annotations

import math
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
import torch
from torch import nn

from nbafl.evaluation import Evaluation
from nbafl.flower.release import Releaser
from nbafl.plan import Plan
from nbafl.privacy.ledger import Ledger, Limits, Request
from nbafl.privacy.units import Account, in_account

Persons = list[list[tuple[float, float]]]
"""Of every person the rows, each a feature and a target."""


def plan_for(persons: int) -> Plan:
    return Plan(
        clients=1, samples=persons, rounds=3, sensitivity="gradient", lr=0.5, record_clip=2.0, epsilon=4.0, delta=1e-5,
        adversary="curious-server", features="raw", person="who", dataset="tables", target="y",
    )  # fmt: skip


def charged(plan: Plan) -> float:
    """Delta_U of the record account."""
    radius = plan.rule.reach(plan.training()).radius
    return float(in_account(plan.release(), Account.RECORD, radius).uplink[0])


def upload(plan: Plan, persons: Persons) -> torch.Tensor:
    """What a client with these persons uploads before its noise, by the code that really makes it."""
    rows = [row for person in persons for row in person]
    x, y = (torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True))
    counts = np.array([len(person) for person in persons])
    model = nn.Linear(1, 1).double()
    start = torch.zeros(2, dtype=torch.float64)
    return plan.rule.upload_persons(model, x[:, None], y, start, plan.training("regression"), counts)


def moved(plan: Plan, before: Persons, after: Persons) -> float:
    return float((upload(plan, before) - upload(plan, after)).norm())


def replaced(source: np.random.Generator, persons: Persons, row: tuple[float, float]) -> Persons:
    """One record taken from somebody, and `row` given to somebody: the same, another or a new person."""
    after = [list(person) for person in persons]
    loser, gainer = source.integers(len(after)), source.integers(len(after) + 1)
    after[loser].pop(source.integers(len(after[loser])))
    after.append([])
    after[gainer].append(row)
    return [person for person in after if person]


@pytest.mark.parametrize("fewest", [1, 2, 3])
def test_no_replaced_record_moves_an_upload_further_than_is_charged(fewest: int) -> None:
    """A search over data sets of at least P persons; the number of persons may change with the record."""
    source, plan, farthest, tried = np.random.default_rng(fewest), plan_for(fewest), 0.0, 0

    def row() -> tuple[float, float]:
        return float(source.normal()), float(source.choice([-1, 1]) * 10 ** source.uniform(-1, 5))

    while tried < 250:
        held = fewest + int(source.integers(2))
        before = [[row() for _ in range(source.integers(1, 4))] for _ in range(held)]
        after = replaced(source, before, row())
        if len(after) >= fewest:
            tried += 1
            farthest = max(farthest, moved(plan, before, after))
    assert 0.5 * charged(plan) < farthest <= charged(plan) * (1 + 1e-9)


@pytest.mark.parametrize("persons", [2, 3, 4])
def test_a_record_that_passes_to_another_person_attains_the_bound(persons: int) -> None:
    """A's other row and B's own pull one way, the record the other way, and it outweighs either."""
    plan, others = plan_for(persons), [[(0.0, 0.0)]] * (persons - 2)
    before: Persons = [[(0.0, 10.0), (0.0, -1e6)], [(0.0, -10.0)], *others]
    after: Persons = [[(0.0, 10.0)], [(0.0, -10.0), (0.0, 1e6)], *others]
    together = 4 * 0.5 * 2.0 / persons
    assert moved(plan, before, after) == pytest.approx(together, rel=1e-6)
    assert charged(plan) == pytest.approx(together, rel=1e-6)
    assert plan.release().uplink[0] == pytest.approx(together / 2)


def test_a_number_of_persons_that_changes_moves_an_upload_no_further() -> None:
    """P' persons before, one fewer after: 4 eta G/P' is attained, and P' is above the plan's P."""
    for held in (2, 3, 5):
        others: Persons = [[(0.0, 10.0)]] * (held - 2)
        before: Persons = [[(0.0, -10.0)], [(0.0, -10.0)], *others]
        after: Persons = [[(0.0, -10.0), (0.0, 1e6)], *others]
        distance = moved(plan_for(held - 1), before, after)
        assert distance == pytest.approx(4 * 0.5 * 2.0 / held, rel=1e-6)
        assert distance <= charged(plan_for(held - 1))


def test_where_there_is_one_person_only_that_one_moves() -> None:
    plan = plan_for(1)
    assert charged(plan) == plan.release().uplink[0] == 2 * 0.5 * 2.0
    assert moved(plan, [[(0.0, 10.0)]], [[(0.0, -10.0)]]) == pytest.approx(charged(plan))


def test_a_ledger_charges_a_record_for_two_persons(tmp_path: Path) -> None:
    plan, ledger = plan_for(4), Ledger(tmp_path / "ledger.sqlite", anchors=tmp_path / "anchors")
    ledger.set_limits(Limits(1e3, 1e-5, account=Account.PERSON))
    for number in range(1, plan.rounds + 1):
        request = Request(plan.digest(), number, "w")
        Releaser(plan, ledger).answer(request, 0, np.zeros(2), lambda: np.zeros(2))
    spent, noise = ledger.spent(1e-5), float(plan.noise_scales().sigma_uplink[0])
    distance = 4 * 0.5 * 2.0 / 4  # what the attained case moves
    expected = dp_accounting.get_epsilon_gaussian(noise / (distance * math.sqrt(plan.rounds)), 1e-5)
    assert spent.of("record").epsilon == pytest.approx(expected, rel=1e-4)
    assert spent.of("person").epsilon == pytest.approx(plan.epsilon, rel=1e-4)


def test_a_record_that_passes_to_another_person_moves_a_sum_of_scores_by_at_most_one() -> None:
    """With the number of held-out persons public: A's mean and B's move by at most a half each."""
    source, scores, most = np.random.default_rng(8), Evaluation(1, 1.0), 0.0
    for _ in range(2000):
        rows = source.integers(1, 4, 3)
        rows[0] += 1
        right = source.integers(0, 2, int(rows.sum()))
        taken, added = right[rows[0] :], source.integers(0, 2, 1)
        kept = np.delete(right[: rows[0]], source.integers(rows[0]))
        after = np.concatenate([kept, taken[: rows[1]], added, taken[rows[1] :]])
        sums = [
            scores.total(np.stack([1 - each, each], 1).astype(float), np.ones(len(each)), "person", counts)[0]
            for each, counts in ((right, rows), (after, rows + np.array([-1, 1, 0])))
        ]
        most = max(most, abs(sums[0] - sums[1]))
    assert most == pytest.approx(1.0)
