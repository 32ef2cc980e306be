"""A ledger keeps one sum for each unit: mixing is converted by what is proved, or refused."""

from __future__ import annotations

import dataclasses
import itertools
import math
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from tests.paper_setting import Plan

from nbafl.errors import DataError, Refused, UsageError
from nbafl.flower.first_release import supply
from nbafl.flower.release import Releaser
from nbafl.privacy.gaussian import gdp_epsilon
from nbafl.privacy.ledger import Charge, Ledger, Limits, NotPriced, Price, Request
from nbafl.privacy.ledger.chain import Charged
from nbafl.privacy.units import Account, in_account

DROP = Plan(clients=4, rounds=3, sensitivity="client", adjacency="drop", clip=1.0, epsilon=4.0, delta=1e-5)
GRADIENT = Plan(clients=4, rounds=3, sensitivity="gradient", lr=0.5, samples=200, epsilon=4.0, delta=1e-5)
OLD = Path(__file__).parent / "first_release"
WIDE = Limits(1e9, 1e-5)


def open_ledger(folder: Path, **options: bool) -> Ledger:
    return Ledger(folder / "ledger.sqlite", anchors=folder / "anchors", **options)


def answer_all(plan: Plan, ledger: Ledger) -> None:
    releaser = Releaser(plan, ledger)
    for round in range(1, plan.rounds + 1):
        request = Request(plan.digest(), round, "w")
        releaser.answer(request, 0, np.zeros(9), lambda: np.zeros(9))


def test_a_drop_plan_and_a_gradient_plan_together(tmp_path: Path) -> None:
    """The first release charged epsilon = 5.99 here; the record's bound is 10.42."""
    ledger = open_ledger(tmp_path)
    ledger.set_limits(WIDE)
    answer_all(DROP, ledger)
    answer_all(GRADIENT, ledger)
    spent = ledger.spent(1e-5)
    each = 4 * math.sqrt(
        2
    )  # both plans cost mu*(4, 1e-5)^2; a record in the dropped client moves it by 2C, not C
    assert each
    assert spent.of("record").epsilon == pytest.approx(10.42, abs=0.005)
    assert ledger.verify() == 8


def test_what_each_upload_costs_each_unit(tmp_path: Path) -> None:
    """(2C/sigma)^2 to a record whatever adjacency or K; (2 eta G/sigma)^2 to a client."""
    for number, (fields, adjacency) in enumerate(
        itertools.product(({}, {"per_round": 2}), ("replace", "drop"))
    ):
        plan = Plan(clients=4, rounds=3, sensitivity="client", adjacency=adjacency, clip=3.0, **fields)
        ledger = open_ledger(tmp_path / str(number))
        price, sigma = Releaser(plan, ledger).price(1), plan.noise_scales().sigma_uplink[1]
        assert price.charges[Account.RECORD].upload == pytest.approx((2 * 3.0 / sigma) ** 2)
        assert price.charges[Account.PERSON].upload == pytest.approx((2 * 3.0 / sigma) ** 2)
        assert price.charges[Account.CLIENT].upload == pytest.approx((2 * 3.0 / sigma) ** 2)
    price, sigma = Releaser(GRADIENT, ledger).price(0), GRADIENT.noise_scales().sigma_uplink[0]
    assert price.charges[Account.RECORD].upload == pytest.approx((2 * 0.5 * 1.0 / 200 / sigma) ** 2)
    for account in (Account.PERSON, Account.CLIENT):
        assert price.charges[account].upload == pytest.approx((2 * 0.5 * 1.0 / sigma) ** 2)
    assert price.charges[Account.CLIENT_DROP].upload == pytest.approx((0.5 * 1.0 / sigma) ** 2)


RULES = (
    {"sensitivity": "client", "clip": 0.7},
    {"sensitivity": "client", "clip": 0.7, "adjacency": "drop"},
    {"sensitivity": "client", "clip": 0.7, "adjacency": "drop", "per_round": 2},
    {"sensitivity": "gradient", "lr": 0.3, "record_clip": 2.0, "samples": 5},
    {"sensitivity": "paper", "clip": 0.7, "samples": 5},
    {
        "sensitivity": "proximal",
        "clip": 0.7,
        "samples": 5,
        "model": "softmax",
        "feature_norm": 1.5,
        "mu": 0.5,
        "lr": 0.1,
    },
)


@pytest.mark.parametrize("fields", RULES)
def test_no_two_uploads_are_further_apart_than_a_whole_client_is_charged_for(
    fields: dict[str, object],
) -> None:
    """Random search over what training may return: after the last clip nothing escapes 2R, nor R from the centre."""
    plan = Plan(clients=3, rounds=2, **fields)
    limit, chance = plan.rule.reach(plan.training()), np.random.default_rng(3)
    whole = in_account(plan.release(), Account.CLIENT, limit.radius).uplink[0]
    without = in_account(plan.release(), Account.CLIENT_DROP, limit.radius).sensitivity.uplink[0]
    start, farthest = chance.normal(size=4), 0.0
    for scale in (1e-3, 1.0, 1e6) * 100:
        one, other = (limit.bound(chance.normal(size=4) * scale, start) for _ in range(2))
        farthest = max(farthest, float(np.linalg.norm(one - other)), float(np.linalg.norm(one + one)))
        assert np.linalg.norm(one) <= without
    assert 0.99 * whole < farthest <= whole


def test_twice_a_persons_bound_covers_a_record_and_a_records_bound_no_person() -> None:
    release = GRADIENT.release()
    radius = GRADIENT.rule.reach(GRADIENT.training()).radius
    assert in_account(release, Account.PERSON, radius).uplink[0] == pytest.approx(2 * radius)
    person = dataclasses.replace(
        release, sensitivity=dataclasses.replace(release.sensitivity, unit="person", uplink=np.full(4, 0.02))
    )
    assert in_account(person, Account.RECORD, radius).uplink[0] == 0.04
    assert in_account(person, Account.RECORD, 0.015).uplink[0] == 0.03  # within the last clip all the same
    assert in_account(person, Account.PERSON, radius).uplink[0] == 0.02
    assert in_account(person, Account.CLIENT, radius).uplink[0] == pytest.approx(2 * radius)


def test_units_that_are_none_are_refused() -> None:
    for unit, adjacency in (("patient", "replace"), ("record", "drop"), ("client", "add")):
        with pytest.raises(UsageError):
            Account.of(unit, adjacency)


def charged(record: float, client: float) -> Price:
    charges = dict.fromkeys(Account, Charge(client, lambda answers: answers * client))
    charges[Account.RECORD] = Charge(record, lambda answers: answers * record)
    return Price(Account.RECORD, charges, 1000, "curious-server")


def test_every_limit_binds_in_its_own_unit_whoever_asks(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    with pytest.raises(Refused, match="no limit for a record"):
        ledger.record(Request("p", 1, "w"), b"", charged(0.01, 1.0))
    ledger.set_limits(Limits(5.0, 1e-5, account=Account.CLIENT))
    with pytest.raises(Refused, match="no limit for a record"):
        ledger.record(Request("p", 1, "w"), b"", charged(0.01, 1.0))
    ledger.set_limits(Limits(50.0, 1e-5, account=Account.RECORD))
    most = next(n for n in range(1, 99) if gdp_epsilon(math.sqrt(n), 1e-5) > 5.0) - 1
    assert ledger.affordable("p", charged(0.01, 1.0)) == most
    for round in range(most):
        ledger.record(Request("p", round, "w"), b"", charged(0.01, 1.0))
    with pytest.raises(Refused, match=r"for a client \(this client's data replaced\)") as refusal:
        ledger.record(Request("p", most, "w"), b"", charged(0.01, 1.0))
    assert "4" not in refusal.value.told, "what was spent elsewhere stays at home"
    assert ledger.limits_of(Account.PERSON) is None


def test_a_limit_on_what_uploads_are_worth_to_the_server(tmp_path: Path) -> None:
    """Issue: limit epsilon = 1, plan against broadcast with many clients: 25 releases, 37,068 to the server itself."""
    plan = Plan(
        clients=10**6,
        sensitivity="client",
        clip=1.0,
        rounds=25,
        epsilon=1.0,
        delta=1e-5,
        adversary="broadcast",
    )
    ledger = open_ledger(tmp_path)
    ledger.set_limits(Limits(1.0, 1e-5, account=Account.CLIENT, epsilon_uploads=100.0))
    price = Releaser(plan, ledger).price(0)
    assert gdp_epsilon(math.sqrt(25 * price.upload), 1e-5) > 30_000
    assert ledger.affordable(plan.digest(), price) == 0
    with pytest.raises(Refused, match="against the server itself, above this client's limit 100"):
        ledger.check(Request(plan.digest(), 1, "w"), price)


def test_resends_leave_no_rows_and_a_release_reads_none(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.set_limits(WIDE)
    ledger.record(Request("p", 1, "A"), b"a", charged(1, 1))
    ledger.record(Request("p", 1, "B"), b"b", charged(1, 1))
    rows = len(ledger.rows())
    for _ in range(50):
        assert ledger.stored(Request("p", 1, "A")) == b"a"
    assert len(ledger.rows()) == rows
    assert (ledger.spent().releases, ledger.spent().resends) == (2, 50)
    plan = ledger.execute("EXPLAIN QUERY PLAN SELECT number, hash FROM rows ORDER BY number DESC LIMIT 1")
    assert "USING TEMP" not in str(plan)
    ledger.rows = None  # type: ignore[assignment,method-assign]
    ledger.record(Request("p", 2, "C"), b"c", charged(1, 1))


def test_other_tables_are_written_with_a_row_or_not_at_all(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    ledger.set_limits(Limits(1e9, 1e-5, releases=1))
    ledger.execute("CREATE TABLE secure_rounds (number INTEGER PRIMARY KEY, content BLOB)")
    with ledger.transaction():
        ledger.record(Request("p", 1, "A"), b"a", charged(1, 1))
        ledger.execute("INSERT INTO secure_rounds VALUES (1, x'00')")

    def both() -> None:
        with ledger.transaction():
            ledger.execute("INSERT INTO secure_rounds VALUES (2, x'00')")
            ledger.record(Request("p", 2, "B"), b"b", charged(1, 1))

    with pytest.raises(Refused, match="1 releases of at most 1"):
        both()
    assert ledger.execute("SELECT number FROM secure_rounds") == [(1,)]
    ledger.close()
    again = open_ledger(tmp_path)
    assert again.verify() == 3


@pytest.mark.parametrize(
    ("tampering", "finding"),
    [
        ("UPDATE charged SET cost = 0 WHERE account = 'client'", "the table charged"),
        ("UPDATE plans SET answers = answers - 1", "the table plans"),
        ("DELETE FROM limits", "the table limits"),
        ("UPDATE rows SET charges = '' WHERE kind = 'release'", "row 2 does not fit the chain"),
        ("UPDATE rows SET unit = 'client' WHERE number = 0", "row 0 does not fit the chain"),
    ],
)
def test_sums_that_do_not_follow_from_the_rows_show(tmp_path: Path, tampering: str, finding: str) -> None:
    ledger = open_ledger(tmp_path)
    ledger.set_limits(WIDE)
    ledger.record(Request("p", 1, "A"), b"a", charged(1, 2))
    ledger.record(Request("p", 2, "B"), b"b", charged(1, 2))
    assert ledger.verify() == 4
    with sqlite3.connect(ledger.path) as connection:
        connection.execute(tampering)
    connection.close()
    with pytest.raises(Refused, match=f"tampered with: {finding}"):
        ledger.verify()


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A ledger that 0.1.0 wrote: a drop client plan and a gradient plan, three releases each, one resend each."""
    shutil.copy(OLD / "ledger.sqlite", tmp_path / "ledger.sqlite")
    return tmp_path


def test_a_ledger_of_the_first_release_is_migrated_with_its_chain(old: Path) -> None:
    with sqlite3.connect(old / "ledger.sqlite") as connection:
        before = connection.execute("SELECT * FROM rows ORDER BY number").fetchall()
    connection.close()
    ledger = open_ledger(old, adopt=True)
    rows = ledger.rows()
    assert [tuple(vars(row).values())[:12] for row in rows[: len(before)]] == before
    assert ledger.verify() == len(before) + 3  # two conversions, and the adoption of the copy
    assert (ledger.spent().releases, ledger.spent().resends) == (6, 2)
    assert ledger.limits_of(Account.RECORD) == Limits(8.0, 1e-5)
    ledger.close()
    assert open_ledger(old).verify() == len(before) + 3, "migrated once"


def test_old_rows_count_in_the_dearest_unit_until_their_plan_is_supplied(old: Path) -> None:
    ledger = open_ledger(old, adopt=True)
    recorded = sum(row.cost for row in ledger.rows() if row.kind == "release")
    spent = ledger.spent(1e-5)
    assert spent.of("record").epsilon == pytest.approx(gdp_epsilon(math.sqrt(4 * recorded), 1e-5))
    assert spent.of("record").conditional
    assert spent.of("client").epsilon is None
    ledger.set_limits(WIDE, loosen=True)
    with pytest.raises(NotPriced, match=r"price for a client is not known.*ledger migrate --plan"):
        ledger.check(Request("p", 1, "w"), Price(Account.CLIENT, charged(1, 1).charges, 10, "broadcast"))
    row = supply(ledger, OLD / "drop.toml")
    assert (row.unit, row.adjacency) == ("client", "drop")
    row = supply(ledger, OLD / "gradient.toml")
    assert (row.unit, row.adjacency) == ("record", "replace")
    ledger.verify()
    fresh = open_ledger(old / "fresh")
    fresh.set_limits(WIDE)
    answer_all(DROP, fresh)
    answer_all(GRADIENT, fresh)
    for account in Account:
        was, now = ledger.spent(1e-5).of(account), fresh.spent(1e-5).of(account)
        assert was.epsilon == pytest.approx(now.epsilon, rel=1e-9)
        assert was.epsilon_uploads == pytest.approx(now.epsilon_uploads, rel=1e-9)
        assert not was.conditional
    ledger.check(Request("p", 1, "w"), Price(Account.CLIENT, charged(1, 1).charges, 10, "broadcast"))


def test_another_plan_is_not_taken_for_the_one_of_the_rows(old: Path) -> None:
    ledger = open_ledger(old, adopt=True)
    other = old / "other.toml"
    other.write_text((OLD / "drop.toml").read_text().replace("seed = 0", "seed = 1"))
    with pytest.raises(DataError, match="has no old releases on this ledger"):
        supply(ledger, other)
    plan = next(iter(ledger.of_first_release()))
    with pytest.raises(DataError, match="does not give the costs on the ledger"):
        ledger.convert(plan, Account.CLIENT, {Account.CLIENT: Charged(0.0, 0.0, False)})


def test_an_old_ledger_that_was_tampered_with_is_left_as_it_is(old: Path) -> None:
    with sqlite3.connect(old / "ledger.sqlite") as connection:
        connection.execute("UPDATE rows SET cost = 0 WHERE number = 3")
    connection.close()
    with pytest.raises(Refused, match="row 3 does not fit the chain"):
        open_ledger(old, adopt=True)
    with sqlite3.connect(old / "ledger.sqlite") as connection:
        columns = [column[1] for column in connection.execute("PRAGMA table_info(rows)")]
    connection.close()
    assert "charges" not in columns
