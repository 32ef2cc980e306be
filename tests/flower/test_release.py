"""From a trained vector to an upload: bounded, noised, charged first, and the same bytes for a retry."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.paper_setting import Plan

from nbafl.errors import Refused, UsageError
from nbafl.flower.release import Releaser, check_client, check_instruction, precision_of
from nbafl.flower.wire import Instruction
from nbafl.privacy.ledger import Declined, Ledger, Limits, Request
from nbafl.privacy.noise import grid_step

SIZE = 40_000
START = np.full(SIZE, 0.5)


def releaser(tmp_path: Path, limits: Limits | None = None, exposures: int = 1, **fields: object) -> Releaser:
    plan = Plan(**{"clients": 4, "rounds": 3, "sensitivity": "client", "clip": 1.0, **fields})
    ledger = Ledger(tmp_path / "ledger.sqlite", anchors=tmp_path / "anchors")
    ledger.set_limits(limits or Limits(plan.epsilon, plan.delta))
    return Releaser(plan, ledger, exposures)


def ask(round: int = 1, broadcast: str = "w") -> Request:
    return Request("plan", round, broadcast)


def far(size: float) -> Callable[[], np.ndarray]:
    """Training that ends `size` away from the start, along the first coordinate."""
    return lambda: START + np.eye(1, SIZE, 0).ravel() * size


@pytest.mark.parametrize(
    ("fields", "around_broadcast", "radius"),
    [
        ({"sensitivity": "client", "clip": 3.0}, True, 3.0),
        ({"sensitivity": "paper", "clip": 7.0}, False, 7.0),
        ({"sensitivity": "gradient", "record_clip": 2.0, "lr": 0.5}, True, 1.0),
    ],
)
def test_what_is_clipped_follows_the_rule(
    fields: dict[str, object], around_broadcast: bool, radius: float
) -> None:
    found = Plan(**fields).rule.reach(Plan(**fields).training())
    assert (found.around_broadcast, found.radius) == (around_broadcast, radius)
    vector = np.arange(9.0)
    bounded = found.bound(vector, np.ones(9))
    target = vector - 1 if around_broadcast else vector
    assert np.linalg.norm(bounded) <= radius
    np.testing.assert_allclose(bounded / np.linalg.norm(bounded), target / np.linalg.norm(target))


def test_an_upload_is_the_clipped_update_plus_the_plans_noise(tmp_path: Path) -> None:
    out = releaser(tmp_path)
    upload = out.answer(ask(), 2, START, far(1000.0)).astype(np.float64)
    sigma = float(out.plan.noise_scales().sigma_uplink[2])
    rest = upload[1:]
    assert upload.dtype == np.float64
    assert abs(rest.std() / sigma - 1) < 6 / math.sqrt(2 * SIZE)
    assert abs(rest.mean()) < 6 * sigma / math.sqrt(SIZE)
    assert abs(upload[0] - 1.0) < 6.5 * sigma  # clipped from 1000 to C = 1
    (row,) = [row for row in out.ledger.rows() if row.kind == "release"]
    assert row.cost_upload == pytest.approx((2 * 1.0 / sigma) ** 2)  # (2C/sigma)^2, math.md (2.4)


def test_a_retry_trains_nothing_and_returns_the_same_bytes(tmp_path: Path) -> None:
    out = releaser(tmp_path)
    first = out.answer(ask(), 0, START, far(0.1))

    def never() -> np.ndarray:
        raise AssertionError("trained again")

    np.testing.assert_array_equal(out.answer(ask(), 0, START, never), first)
    assert out.ledger.spent().releases == 1
    other = out.answer(ask(broadcast="v"), 0, START, far(0.1))
    assert not np.array_equal(other, first)
    assert out.ledger.spent().releases == 2


def test_a_plan_spends_exactly_its_epsilon_and_no_round_more(tmp_path: Path) -> None:
    out = releaser(tmp_path, epsilon=8.0, delta=1e-5)
    for round in (1, 2, 3):
        out.answer(ask(round), 0, START, far(0.1))
    assert out.ledger.spent().of("client").epsilon == pytest.approx(8.0, rel=1e-6)
    assert out.ledger.spent().of("client").epsilon_uploads > 8.0
    with pytest.raises(Refused, match="the plan has 3 rounds"):
        out.answer(ask(4), 0, START, far(0.1))


def test_a_stricter_owner_stops_earlier_before_any_training(tmp_path: Path) -> None:
    out = releaser(tmp_path, limits=Limits(5.0, 1e-5), epsilon=8.0, delta=1e-5, adversary="curious-server")
    possible = out.ledger.affordable("plan", out.price(0))
    assert possible == 1
    out.answer(ask(1), 0, START, far(0.1))

    def never() -> np.ndarray:
        raise AssertionError("trained in vain")

    with pytest.raises(Refused, match="above this client's limit 5"):
        out.answer(ask(2), 0, START, never)


def test_counting_on_more_exposures_costs_more(tmp_path: Path) -> None:
    plain = releaser(tmp_path / "a").price(0)
    wary = releaser(tmp_path / "b", exposures=3).price(0)
    assert wary.after(1) == pytest.approx(plain.after(1))
    assert wary.after(3) > plain.after(3) * 1.2


def test_exposures_are_refused_where_they_would_cost_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"exposures must be 1 \(broadcast sees no uploads; .*got 5"):
        releaser(tmp_path, exposures=5, adversary="broadcast")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_training_that_broke_down_is_sent_as_noise_around_the_broadcast(tmp_path: Path, value: float) -> None:
    out = releaser(tmp_path)
    upload = out.answer(ask(), 0, START, lambda: np.full(SIZE, value))
    sigma = float(out.plan.noise_scales().sigma_uplink[0])
    assert abs(upload.mean()) < 6 * sigma / math.sqrt(SIZE)
    assert out.ledger.spent().releases == 1


def test_a_plan_made_against_colluders_can_be_run(tmp_path: Path) -> None:
    """The first release put all noise at the server, and every client declined."""
    out = releaser(tmp_path, epsilon=8.0, delta=1e-5, adversary="colluders:1")
    for round in (1, 2, 3):
        out.answer(ask(round), 0, START, far(0.1))
    assert out.ledger.spent().of("client").epsilon == pytest.approx(8.0, rel=1e-6)


def test_without_noise_nothing_is_uploaded(tmp_path: Path) -> None:
    out = releaser(tmp_path, noise=False)
    with pytest.raises(Refused, match="adds no noise"):
        out.answer(ask(), 0, START, far(0.1))


def test_a_client_with_fewer_records_than_the_plan_counts_on_is_refused() -> None:
    plan = Plan(sizes=(100, 50), sensitivity="paper")
    check_client(plan, 1, 50)
    check_client(Plan(clients=2, sensitivity="client"), 0, 1)
    with pytest.raises(Declined, match="fewer than the 100 records that the plan counts on") as refusal:
        check_client(plan, 0, 61)
    assert "61" not in str(refusal.value), "the server hears this: the exact count stays at home"
    with pytest.raises(Declined, match="number 3 is not one of the plan's 2 clients"):
        check_client(plan, 2, 100)


def test_where_persons_are_counted_a_refusal_says_persons() -> None:
    fields = {"sizes": (368, 50), "features": "raw", "dataset": "tables", "target": "sick", "person": "who"}
    plan = Plan(sensitivity="gradient", delta=0.5, **fields)
    told = "fewer than the 368 persons that the plan counts on from client number 1:"
    with pytest.raises(Declined, match=told):
        check_client(plan, 0, 61)
    said = " ".join((*plan.assumptions(), *plan.warnings()))
    assert "The number of persons of each client is public." in said
    assert "publishing all records of one of its persons would satisfy it" in said
    by_record = plan.with_fields(person=None)
    assert "The number of records of each client is public." in by_record.assumptions()


@pytest.mark.parametrize("round", [0, -1, 4, 2**40])
def test_rounds_the_plan_does_not_have_are_refused(round: int) -> None:
    plan = Plan(clients=2, rounds=3, sensitivity="client")
    check_instruction(plan, Instruction(plan.digest(), 3, "ticket", 0), None)
    with pytest.raises(Declined, match=f"round {round} is not one of the plan's 3 rounds"):
        check_instruction(plan, Instruction(plan.digest(), round, "ticket", 0), None)


def test_noise_too_small_for_the_grid_is_refused_before_there_is_any_data(tmp_path: Path) -> None:
    out = releaser(tmp_path, sensitivity="paper", samples=10**6, epsilon=1e9, delta=0.5)

    def never() -> np.ndarray:
        raise AssertionError("trained: a refusal would now depend on the data")

    with pytest.raises(Declined, match="too small for its clipping norm 1"):
        out.price(0)
    with pytest.raises(Declined, match="epsilon 1e"):
        out.answer(ask(), 0, START, never)


def test_an_epsilon_beyond_the_noises_precision_is_refused_before_training(tmp_path: Path) -> None:
    """At epsilon = 65 the far tail of the noise would add 4e-5 to delta (d = 203,530), above 1 at epsilon = 100."""
    out = releaser(tmp_path, epsilon=65.0, delta=1e-5)

    def never() -> np.ndarray:
        raise AssertionError("trained in vain")

    with pytest.raises(Declined, match=r"epsilon 65 is too large for noise of finite precision"):
        out.answer(ask(), 0, np.zeros(203_530), never)
    assert out.ledger.spent().releases == 0


def test_what_finite_precision_adds_is_in_the_price_and_the_claim_still_holds(tmp_path: Path) -> None:
    out = releaser(tmp_path, epsilon=0.01, delta=1e-5, clients=40)
    price = out.price(0, 203_530)
    assert price.rounding == pytest.approx(2 * 203_530 * 41 * 2.0**-44)
    assert 3 * price.rounding > 1e-4 * 0.01, "far above the accuracy of the accounting"
    for round in (1, 2, 3):
        out.answer(ask(round), 0, np.zeros(203_530), lambda: np.zeros(203_530))
    spent = out.ledger.spent().of("client").epsilon
    assert spent is not None
    assert 0.01 * (1 - 1e-3) < spent <= 0.01


def test_training_that_broke_down_is_sent_as_noise_around_zero_where_weights_are_clipped(
    tmp_path: Path,
) -> None:
    out = releaser(tmp_path, sensitivity="paper", samples=50, epsilon=8.0)
    start = np.full(SIZE, 1e4)
    upload = out.answer(ask(), 0, start, lambda: np.full(SIZE, np.nan))
    assert np.abs(upload).max() < 10 * float(out.plan.noise_scales().sigma_uplink[0])


TINY = {"sensitivity": "gradient", "record_clip": 1e-7, "lr": 1.0, "samples": 1000, "local_steps": 1}
"""2 eta G/m = 2e-10."""


def test_rounding_at_the_weights_a_server_chose_is_paid_for(tmp_path: Path) -> None:
    """At weights of 2e3 two neighbours may differ by sqrt(d) spacings of float64 more, nearly half of 2e-10."""
    out = releaser(tmp_path, epsilon=1e-6, delta=1e-9, adversary="curious-server", **TINY)
    start, sensitivity = np.full(SIZE, 2e3), 2 * 1e-7 / 1000
    noise = out.answer(ask(), 0, start, lambda: start.copy()).astype(np.float64)
    sigma = float(out.noise.sigma_uplink[0])
    extra = (grid_step(sigma) + 2 * np.spacing(2e3)) * math.sqrt(SIZE) / sensitivity
    assert extra > 0.4
    widening = precision_of(out.plan, SIZE).widening
    assert abs(noise.std() / (sigma * (1 + extra) * widening) - 1) < 6 / math.sqrt(2 * SIZE)


def test_weights_so_large_that_the_noise_would_leave_the_common_grid_are_declined(tmp_path: Path) -> None:
    out = releaser(tmp_path, epsilon=1e-6, delta=1e-9, adversary="curious-server", **TINY)
    start = np.full(SIZE, 9e5)
    with pytest.raises(Declined, match="the broadcast's weights are too large for this plan's noise"):
        out.answer(ask(), 0, start, lambda: start.copy())
    assert out.ledger.spent().releases == 0


def test_a_ledger_that_was_tampered_with_releases_nothing(tmp_path: Path) -> None:
    out = releaser(tmp_path)
    out.answer(ask(), 0, START, far(0.1))
    with sqlite3.connect(out.ledger.path) as connection:
        connection.execute("UPDATE rows SET cost = 0 WHERE kind = 'release'")
    connection.close()
    with pytest.raises(Refused, match="was tampered with"):
        Releaser(out.plan, out.ledger)


def test_a_full_disk_means_no_upload(tmp_path: Path) -> None:
    out = releaser(tmp_path)
    (pages,) = out.ledger._connection.execute("PRAGMA page_count").fetchone()
    out.ledger._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(Refused, match="disk is full"):
        out.answer(ask(), 0, START, far(0.1))
    assert out.ledger.spent().releases == 0
