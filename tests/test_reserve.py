"""A reserve keeps part of the claim for noisy scores: training and scores together are worth the claim."""

from __future__ import annotations

import math
import random
import re
from pathlib import Path

import dp_accounting
import pytest
from tests.paper_setting import Plan

import nbafl
from nbafl import cli as nbafl_cli
from nbafl.errors import UsageError
from nbafl.evaluation import Evaluation
from nbafl.flower.release import Releaser, precision_of
from nbafl.privacy import adversary
from nbafl.privacy.ledger import Ledger, Limits, Request
from nbafl.theory.planning import setting_of


def test_a_reserve_keeps_the_claim_of_any_plan_whatever_is_scored() -> None:
    """Training and scores together are worth the claim, hardly less, and without scores it is kept with room to spare."""
    random_plan = random.Random(5)
    for _ in range(40):
        clients, rounds = random_plan.randint(2, 9), random_plan.randint(1, 40)
        fields: dict[str, object] = {
            "clients": clients,
            "rounds": rounds,
            "samples": random_plan.choice((1, 30, 500)),
            "sensitivity": random_plan.choice(("gradient", "client")),
            "adversary": random_plan.choice(("eavesdropper", "curious-server", "broadcast", "targeted")),
            "epsilon": 10 ** random_plan.uniform(-1, 1),
            "delta": 10 ** random_plan.uniform(-7, -4),
            "local_steps": 1,
            "model": "softmax",
            "reserve": random_plan.uniform(0.01, 0.9),
        }
        if random_plan.random() < 0.3 and clients >= 4:
            fields |= {"aggregation": "secure", "adversary": "curious-server:1", "dimension": 50}
        elif random_plan.random() < 0.3:
            fields |= {"per_round": random_plan.randint(1, clients)}
        plan = Plan(**fields)
        named = adversary.parse(plan.adversary).key
        agreed = Evaluation.paid_by(plan, random_plan.randint(1, rounds))
        whole = plan.guarantees(evaluation=agreed)[named]
        assert plan.guarantees()[named] < plan.epsilon
        assert whole <= plan.epsilon * (1 + 1e-9), fields
        assert plan.statement("0" * 64, 5, evaluation=agreed).delivers
        assert agreed.sigma == 0.5 or whole > 0.9 * plan.epsilon, fields


def test_a_reserve_is_split_as_another_accountant_splits_it() -> None:
    plan = nbafl.Plan(clients=4, samples=50, rounds=8, epsilon=2.0, reserve=0.25, adversary="curious-server")
    agreed = Evaluation.paid_by(plan, 2)
    assert agreed.count(plan) == 4
    noise, release = plan.noise_scales(), plan.release()
    event = dp_accounting.ComposedDpEvent(
        [
            dp_accounting.SelfComposedDpEvent(
                dp_accounting.GaussianDpEvent(noise.sigma_uplink[0] / release.uplink[0]), 8
            ),
            dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(agreed.sigma), 4),
        ]
    )
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(event)
    assert accountant.get_epsilon(plan.delta) == pytest.approx(2.0, abs=2e-3)


def test_without_a_reserve_scores_have_the_usual_noise_and_say_what_they_take() -> None:
    plan = nbafl.Plan(clients=4, samples=50, rounds=8, epsilon=2.0)
    assert Evaluation.paid_by(plan, 2) == Evaluation(2, 10.0)
    share = Evaluation(2, 10.0).reserve(plan)
    assert share is not None
    assert 9.8 < Evaluation.paid_by(plan.with_fields(reserve=share), 2).sigma <= 10.0
    with pytest.raises(UsageError, match="calibration exact"):
        nbafl.Plan(reserve=0.1, calibration="separate")


def test_serve_says_whether_the_claim_has_room_for_the_scores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare = [
        "serve",
        "--prepare",
        "--clients",
        "4",
        "--features",
        "raw",
        "--model",
        "softmax",
        "--epsilon",
        "3",
    ]
    about = r" at delta 1e-05 against eavesdropper, per record \(replace\), "
    cases = [
        (["50"], rf"noise 10\): epsilon 3\.0\d+{about}above the claim; a plan with --reserve 0\.0\d+ has"),
        (["50", "--reserve", "0.1"], rf"epsilon 3{about}which keeps the claim"),
        (["1", "--evaluate-noise", "1"], rf"{about}above the claim; more noise or fewer scores would help"),
    ]
    for number, (options, said) in enumerate(cases):
        home = tmp_path / str(number)
        assert nbafl_cli.run_command([*prepare, "--home", str(home), "--evaluate-every", *options]) == 0
        assert re.search(said, capsys.readouterr().out)
    share = re.search(
        r"--reserve (0\.\d+)", _prepared(prepare, tmp_path / "once", ["--evaluate-every", "50"], capsys)
    )
    assert share
    told = _prepared(prepare, tmp_path / "room", ["--evaluate-every", "50", "--reserve", share[1]], capsys)
    assert "which keeps the claim" in told


@pytest.mark.parametrize(
    "options",
    [
        ["--preset", "paper", "--evaluate-every", "5"],
        ["--clients", "10", "--features", "raw", "--rounds", "20", "--lr", "0.1", "--epsilon", "0.1",
         "--aggregation", "secure", "--adversary", "curious-server:1", "--evaluate-every", "5", "--evaluate-noise", "100"],
        ["--clients", "30", "--per-round", "10", "--features", "raw", "--rounds", "20", "--lr", "0.1", "--epsilon", "3",
         "--evaluate-every", "5", "--evaluate-noise", "5"],
    ],
    ids=["paper", "secure", "drawn"],
)  # fmt: skip
def test_a_reserve_that_is_named_does(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No hint for a plan that cannot have a reserve; a secure sum of scores costs more than E/sigma^2, and is asked for."""
    prepare = ["serve", "--prepare", *options]
    told = _prepared(prepare, tmp_path / "first", [], capsys)
    assert "above the claim" in told
    share = re.search(r"--reserve (0\.\d+)", told)
    assert (share is None) == ("paper" in options) == ("as it is without them" in told)
    if share:
        assert "which keeps the claim" in _prepared(
            prepare, tmp_path / "room", ["--reserve", share[1]], capsys
        )


def test_the_federation_after_has_its_scores_paid_by_its_own_reserve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nbafl_cli.run_command(["keys", "make", "a", "b", "--out", str(tmp_path / "keys")]) == 0
    old = ["--features", "raw", "--model", "softmax", "--rounds", "20", "--lr", "0.1", "--reserve", "0.1"]
    roster = ["--roster", str(tmp_path / "keys"), "--evaluate-every", "5"]
    prepare, home = ["serve", "--prepare"], tmp_path / "old"
    assert "keeps the claim" in _prepared([*prepare, *old], home, roster, capsys)
    after = [*prepare, "--from", str(home), "--rounds", "100"]
    told = _prepared(after, tmp_path / "new", [], capsys)
    assert "with 20 noisy scores" in told
    assert "keeps the claim" in told
    assert "with 10 noisy scores" in _prepared(after, tmp_path / "newer", ["--evaluate-every", "10"], capsys)
    sums = Evaluation.load(tmp_path / "new" / "evaluation.toml")
    assert sums.sigma > Evaluation.load(home / "evaluation.toml").sigma


def test_a_client_with_the_claim_as_its_limit_stays_to_the_end_with_a_reserve(tmp_path: Path) -> None:
    """All noise of a plan is wider for finite precision, that of scores too: it ended at the last round."""
    dimension = 203_530
    plan = nbafl.Plan(
        clients=50, samples=1000, rounds=100, epsilon=1.0, adversary="broadcast", lr=0.1, record_clip=1.0,
        server_momentum=0.0, reserve=0.3,
    )  # fmt: skip
    agreed = Evaluation.paid_by(plan, 10)
    ledger = Ledger(tmp_path / "ledger.sqlite")
    releaser = Releaser(plan, ledger)
    ledger.set_limits(Limits(1.0, plan.delta, None, releaser.account, None))
    widening = precision_of(plan, dimension).widening
    prices = [releaser.price(0, dimension), agreed.price(plan, widening)]
    assert widening > 1 + 1e-6
    for number in range(1, plan.rounds + 1):
        due = [(plan.digest(), number, prices[0])]
        if agreed.due(number, plan):
            due.append((agreed.digest(plan), agreed.index(number), prices[1]))
        for digest, asked, price in due:
            request = Request(digest, asked, f"{number:064x}")
            ledger.check(request, price)
            ledger.record(request, b"x", price)
    spent = ledger.spent().of(releaser.account).epsilon
    assert 0.99 < spent <= 1 + 1e-6
    ledger.close()


def test_everything_that_follows_from_the_noise_knows_the_reserve() -> None:
    """Fitted settings and the planner's theorems are those of the plan that claims what is left for the training."""
    kept = nbafl.Plan(clients=9, samples=200, features="raw", reserve=0.5)
    less = nbafl.Plan(clients=9, samples=200, features="raw", epsilon=kept.training_epsilon)
    assert kept.fitted == less.fitted != nbafl.Plan(clients=9, samples=200, features="raw").fitted
    assert kept.noise_scales().sigma_downlink == less.noise_scales().sigma_downlink
    assert setting_of(kept).epsilon == less.epsilon < kept.epsilon


def test_a_reserve_touches_neither_the_papers_rule_nor_the_digest_of_plans_without_one() -> None:
    plain, kept = (
        nbafl.Plan(clients=4, samples=50, rounds=8, lr=0.1, record_clip=1.0, reserve=share)
        for share in (0, 0.5)
    )
    assert plain.paper_rule() == kept.paper_rule()
    assert plain.with_fields(reserve=-0.0).digest() == plain.digest() != kept.digest()
    for reserve, delta in ((1e-4, 1e-5), (0.9, 0.3), (-0.1, 1e-5), (1.0, 1e-5), (math.nan, 1e-5)):
        with pytest.raises(UsageError, match="reserve must be"):
            nbafl.Plan(clients=4, samples=50, rounds=8, delta=delta, reserve=reserve)


def _prepared(words: list[str], home: Path, options: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert nbafl_cli.run_command([*words, "--home", str(home), *options]) == 0
    return capsys.readouterr().out
