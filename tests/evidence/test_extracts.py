"""Extracts of ledgers: what is shown, what stays a hash, and what does not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.paper_setting import Plan

from nbafl.errors import DataError, Refused
from nbafl.evaluation import Evaluation
from nbafl.evidence import extracts, rounds
from nbafl.flower.keys import make_client_key, read_signing_key
from nbafl.flower.release import Releaser
from nbafl.privacy.dropouts import AnsweredRound
from nbafl.privacy.gaussian import gdp_epsilon
from nbafl.privacy.ledger import Ledger, Limits, Request

PLAN = Plan(
    clients=4,
    samples=30,
    rounds=3,
    sensitivity="gradient",
    model="softmax",
    epsilon=5,
    delta=1e-5,
    exposures=2,
)
COUNTED = Evaluation(1, 0.5)
OTHER = PLAN.with_fields(epsilon=7.0)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "ledger.sqlite", anchors=tmp_path / "anchors")
    made.set_limits(Limits(1e9, 1e-5))
    start = np.zeros(3, dtype=np.float32)
    for number, plan in ((1, PLAN), (1, OTHER), (2, PLAN), (2, OTHER), (3, OTHER), (3, PLAN)):
        Releaser(plan, made).answer(Request(plan.digest(), number, f"w{number}"), 1, start, lambda: start)
    return made


@pytest.fixture
def extract(ledger: Ledger, tmp_path: Path) -> dict:
    make_client_key("south", tmp_path)
    return extracts.make(ledger, PLAN, "south", read_signing_key(tmp_path / "south"), None)


def problems(extract: dict, heard: set[int] | None = None) -> list[str]:
    return list(extracts.problems(extract, PLAN, 2, heard, 3))


def test_rows_of_other_federations_are_hashes_only(extract, ledger):
    assert [set(row) == {"number", "hash"} for row in extract["rows"]] == [
        True, False, False, True, False, True, True, False,
    ]  # fmt: skip
    assert OTHER.digest() not in str(extract)
    assert [row["hash"] for row in extract["rows"]] == [row.hash for row in ledger.rows()]
    assert problems(extract, {1, 2, 3}) == []
    # By hand: three uploads, each Delta/sigma, and the whole plan against its own adversary.
    release, noise = PLAN.release(), PLAN.noise_scales()
    mu = float(release.uplink[1] / noise.sigma_uplink[1])
    assert extract["spent"]["epsilon_uploads"] == pytest.approx(gdp_epsilon(mu * 3**0.5, 1e-5))
    assert extract["spent"]["epsilon"] == pytest.approx(5.0, rel=1e-5)


@pytest.mark.parametrize(
    "name", ["cost", "cost_upload", "round", "time", "upload", "note", "previous", "hash"]
)
def test_one_changed_row_is_named(extract, name):
    old = extract["rows"][4][name]
    extract["rows"][4][name] = old + 1 if isinstance(old, int | float) else "0" * 64
    found = problems(extract)
    assert "the client's signature does not fit" in found
    assert "row 4 does not fit the chain" in found


def test_a_dropped_hash_breaks_the_chain(extract):
    del extract["rows"][3]
    assert "row 3 does not fit the chain" in problems(extract)


@pytest.mark.usefixtures("extract")
def test_a_client_that_signs_a_cheaper_chain_is_found_out(ledger, tmp_path):
    """Every hash is right and the signature fits, yet the plan's accounting asks for more."""
    rows, previous = [], ""
    for row in ledger.rows():
        changed = {**row.__dict__, "previous": previous}
        if row.plan == PLAN.digest():
            changed |= {"cost": row.cost / 2, "cost_upload": row.cost_upload / 2}
        rows.append(type(row)(**changed).sealed())
        previous = rows[-1].hash

    class Cheap:
        path = ledger.path
        verify = staticmethod(lambda: len(rows))

    Cheap.rows = staticmethod(lambda: rows)
    forged = extracts.make(Cheap(), PLAN, "south", read_signing_key(tmp_path / "south"), None)
    found = problems(forged)
    assert "its 3 releases were charged less than the plan's accounting asks" in found
    assert any(each.startswith("row 2 charges an upload") for each in found)


def test_a_round_that_the_server_counted_must_be_on_the_ledger(extract):
    assert problems(extract, {3, 4}) == ["round 4 was answered by this client and is not on its ledger"]


def test_another_plan_has_no_extract(ledger, tmp_path):
    make_client_key("south", tmp_path)
    key = read_signing_key(tmp_path / "south")
    with pytest.raises(DataError, match="holds no releases of plan"):
        extracts.make(ledger, PLAN.with_fields(epsilon=9.0), "south", key, None)
    secret = Plan(clients=10, per_round=3, rounds=4, sensitivity="client", epsilon=5, delta=1e-5)
    with pytest.raises(Refused, match="the draw stays secret"):
        extracts.make(ledger, secret, "south", key, None)


def test_a_secret_draw_shows_how_many_answered_and_not_who():
    secret = Plan(clients=10, per_round=3, rounds=2, sensitivity="client", epsilon=5, delta=1e-5)
    happened = [
        AnsweredRound(np.array([1, 4, 7])),
        AnsweredRound(np.array([1, 2]), 0.5, everyone_online=False),
    ]
    shown = rounds.shown(secret, happened)
    assert [each["answered"] for each in shown] == [3, 2]
    # Any client may have been among them, so epsilon is never less than with the names.
    told, real = secret.guarantees(rounds.read(shown)), secret.guarantees(happened)
    assert all(told[name] >= value * (1 - 1e-9) for name, value in real.items())
    public = rounds.shown(PLAN, [AnsweredRound(np.array([0, 2]))])
    assert public[0]["answered"] == [0, 2]


@pytest.fixture
def scored(ledger: Ledger) -> Ledger:
    """The same ledger after two noisy counts of this federation and one of another."""
    for plan, number in ((PLAN, 2), (OTHER, 2), (PLAN, 3)):
        ledger.record(Request(COUNTED.digest(plan), number, f"w{number}"), b"8 bytes.", COUNTED.price(plan))
    return ledger


def test_scores_of_the_federation_are_shown_and_counted(scored, tmp_path):
    """They were hashes "of other federations": an extract said epsilon 1 to the server where the ledger had 1.911."""
    make_client_key("south", tmp_path)
    made = extracts.make(scored, PLAN, "south", read_signing_key(tmp_path / "south"), COUNTED)
    assert [set(row) == {"number", "hash"} for row in made["rows"][-3:]] == [False, True, False]
    assert made["spent"]["releases"] == 3 + 2
    release, noise = PLAN.release(), PLAN.noise_scales()
    mu = float(release.uplink[1] / noise.sigma_uplink[1])
    assert made["spent"]["epsilon_uploads"] == pytest.approx(gdp_epsilon((3 * mu**2 + 2 / 0.25) ** 0.5, 1e-5))
    assert list(extracts.problems(made, PLAN, 2, {1, 2, 3}, 3, COUNTED)) == []


def test_an_extract_without_the_agreed_scores_is_found_out(scored, tmp_path):
    make_client_key("south", tmp_path)
    key = read_signing_key(tmp_path / "south")
    (problem,) = extracts.problems(extracts.make(scored, PLAN, "south", key, None), PLAN, 2, None, 3, COUNTED)
    assert "does not show the scores that the federation agreed on" in problem
    made = extracts.make(scored, PLAN, "south", key, COUNTED)
    assert any("or others" in each for each in extracts.problems(made, PLAN, 2, None, 3))
    cheaper = Evaluation(1, 0.9)
    named = {"evaluation": cheaper.digest(PLAN)}
    assert any("another plan" in each for each in extracts.problems(made | named, PLAN, 2, None, 3, cheaper))


def test_scores_that_were_charged_too_little_are_named(ledger, tmp_path):
    make_client_key("south", tmp_path)
    cheap = Evaluation(1, 50.0).price(PLAN)
    ledger.record(Request(COUNTED.digest(PLAN), 3, "w3"), b"8 bytes.", cheap)
    made = extracts.make(ledger, PLAN, "south", read_signing_key(tmp_path / "south"), COUNTED)
    found = list(extracts.problems(made, PLAN, 2, None, 3, COUNTED))
    assert "its 1 noisy scores were charged less than the evaluation costs" in found
    assert any("charges a score 0.0004, by the evaluation it costs 4" in each for each in found)
