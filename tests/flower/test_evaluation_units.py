"""Sums of scores for classes and numbers, and for records, persons and clients: nobody moves one by more than 1."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import dp_accounting
import numpy as np
import pytest

from nbafl.evaluation import Evaluation
from nbafl.plan import Plan
from nbafl.privacy.units import Account

COMMON = {"clients": 2, "rounds": 10, "samples": 30, "epsilon": 50.0, "delta": 1e-5, "model": "softmax"}
RECORD = Plan(**COMMON, sensitivity="gradient", features="raw", adversary="curious-server")
PERSON = Plan(
    **COMMON, sensitivity="gradient", features="raw", adversary="curious-server", person="who", dataset="tables",
    target="y",
)  # fmt: skip
CLIENT = Plan(**COMMON, sensitivity="client", clip=1.0, features="raw", adversary="curious-server")
PLANS = {"record": RECORD, "person": PERSON, "client": CLIENT}
CLASSES, NUMBERS = Evaluation(4, 2.0), Evaluation(4, 2.0, error_bound=4.0)


def made_up(source: np.random.Generator, evaluation: Evaluation, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """What a model answers and the truth, wild values among them."""
    if evaluation is CLASSES:
        return source.normal(size=(rows, 3)), source.integers(0, 3, rows)
    output, truth = 10 ** source.uniform(-3, 3) * source.normal(size=(rows, 1)), source.normal(size=rows)
    output[source.random(rows) < 0.1] = source.choice([np.nan, np.inf, -np.inf, 1e200])
    return output, truth


@pytest.mark.parametrize(("unit", "evaluation"), list(itertools.product(PLANS, (CLASSES, NUMBERS))))
def test_one_replaced_unit_moves_a_sum_by_at_most_one(unit: str, evaluation: Evaluation) -> None:
    source, most = np.random.default_rng(17), 0.0
    for _ in range(300):
        persons = source.integers(1, 6, 7)
        output, y = made_up(source, evaluation, int(persons.sum()))
        before, units = evaluation.total(output, y, unit, persons)
        first = int(persons[:3].sum())
        changed = {
            "record": slice(first, first + 1),
            "person": slice(first, first + int(persons[3])),
            "client": slice(None),
        }[unit]
        output[changed], y[changed] = made_up(source, evaluation, len(y[changed]))
        after, again = evaluation.total(output, y, unit, persons)
        assert units == again == {"record": persons.sum(), "person": 7, "client": 1}[unit]
        assert 0 <= after <= units
        most = max(most, abs(after - before))
    assert 0.2 < most <= 1 + 1e-9


def test_a_replaced_person_may_come_with_more_or_fewer_rows() -> None:
    source = np.random.default_rng(5)
    for _ in range(200):
        persons = source.integers(1, 6, 4)
        other = np.concatenate([persons[:3], source.integers(1, 30, 1)])
        output, y = made_up(source, NUMBERS, int(persons.sum()))
        kept = int(persons[:3].sum())
        more, truth = made_up(source, NUMBERS, int(other[3]))
        moved = NUMBERS.total(
            np.concatenate([output[:kept], more]), np.concatenate([y[:kept], truth]), "person", other
        )
        assert abs(moved[0] - NUMBERS.total(output, y, "person", persons)[0]) <= 1 + 1e-9


def test_scores_of_numbers_are_squared_errors_up_to_the_bound() -> None:
    total, units = NUMBERS.total(
        np.array([[1.0], [3.0], [9.0], [np.nan]]), np.array([0.0, 3.0, 0.0, 0.0]), "record"
    )
    assert (total, units) == (1 / 4 + 0 + 1 + 1, 4)
    assert NUMBERS.metrics(total / units) == {"test_loss": (1 + 0 + 4 + 4) / 4}
    assert CLASSES.metrics(0.75) == {"test_accuracy": 0.75}


def test_what_a_sum_costs_every_account() -> None:
    """The plan's own unit and what lies within it: 1; a larger one may hold any number of units."""
    one, many = 1 / 4, math.inf
    expected = {
        "record": {
            Account.RECORD: one,
            Account.PERSON: many,
            Account.CLIENT: many,
            Account.CLIENT_DROP: many,
        },
        "person": {Account.RECORD: one, Account.PERSON: one, Account.CLIENT: many, Account.CLIENT_DROP: many},
        "client": dict.fromkeys(Account, one),
    }
    for unit, plan in PLANS.items():
        price = CLASSES.price(plan)
        assert {account: charge.upload for account, charge in price.charges.items()} == expected[unit]
        assert price.account.unit == unit


@pytest.mark.parametrize("unit", PLANS)
def test_the_statement_names_the_unit_and_adds_the_training(unit: str) -> None:
    plan = PLANS[unit]
    stated = NUMBERS.statement(plan)
    alone = dp_accounting.get_epsilon_gaussian(2.0 / np.sqrt(NUMBERS.count(plan)), plan.delta)
    assert stated["unit"] == unit
    assert stated["epsilon_counts_alone"] == pytest.approx(alone, rel=1e-6)
    assert stated["epsilon_with_training"] > max(alone, plan.epsilon * 0.99)
    assert f"for a {unit}" in stated["sentence"]
    assert "clipped squared errors" in stated["sentence"]


def test_a_bound_travels_in_the_agreement_and_is_part_of_its_name(tmp_path: Path) -> None:
    NUMBERS.save(tmp_path / "e.toml")
    assert Evaluation.load(tmp_path / "e.toml") == NUMBERS
    names = {each.digest(RECORD) for each in (CLASSES, NUMBERS, Evaluation(4, 2.0, 5.0))}
    assert len(names) == 3
