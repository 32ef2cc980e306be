"""Noisy scores at the clients are part of every epsilon: statement, run folder, report, evidence, and runs that go on."""

from __future__ import annotations

import math
import random
import re
from dataclasses import asdict, replace
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
from tests.paper_setting import Plan

import nbafl
from nbafl import continuing
from nbafl.errors import DataError, UsageError
from nbafl.evaluation import Evaluation
from nbafl.evidence.content import gather
from nbafl.evidence.page import render as page_of
from nbafl.flower.serving import keep_agreed
from nbafl.folders import answers, runs
from nbafl.folders.facts import Facts
from nbafl.privacy import accounting, adversary, dropouts, subsampling
from nbafl.privacy.dropouts import AnsweredRound
from nbafl.privacy.gaussian import gdp_delta, gdp_epsilon, gdp_mu
from nbafl.privacy.release import Earlier
from nbafl.report.html import render
from nbafl.run import Run

WHOLE = Plan(
    clients=5, rounds=10, sensitivity="client", clip=1.0, model="softmax", epsilon=1.0, delta=1e-5,
    adversary="curious-server",
)  # fmt: skip
COUNTS = Evaluation(1, 0.5)


def test_a_statement_counts_the_scores_in() -> None:
    """It said epsilon 1 against the server where ten counts with noise 0.5 make it 46.27."""
    both = gdp_epsilon(math.sqrt(gdp_mu(1.0, 1e-5) ** 2 + 10 / 0.25), 1e-5)
    made = WHOLE.statement("0" * 64, 5, simulated=False, evaluation=COUNTS)
    told = made.to_dict()
    assert told["epsilon"] == told["guarantee"]["curious_server"]["epsilon"] == pytest.approx(both, rel=1e-6)
    assert told["evaluation"]["epsilon_with_training"] == pytest.approx(both, rel=1e-6)
    assert not told["delivers_claim"]
    assert told["best_guess"] > 0.99
    assert all(each["epsilon"] > 46 for each in told["guarantee"].values()), "each adversary may see them"
    assert "epsilon = 46.27" in told["sentences"][2]
    assert "NOT met" in told["sentences"][2]
    assert told["evaluation"]["sentence"] in told["sentences"]
    assert (
        "Which clients hold records out for the evaluation is public; how many is not told."
        in told["assumptions"]
    )
    assert not any("local test records" in each for each in told["not_covered"])
    assert WHOLE.statement("0" * 64, 5).to_dict()["evaluation"] is None


def test_scores_add_to_every_adversary_whatever_the_draw() -> None:
    """Random plans: never below the training alone or the scores alone, never above a public draw in every round."""
    chance = random.Random(7)
    for _ in range(3):
        clients = chance.randrange(4, 9)
        plan = Plan(
            clients=clients, per_round=chance.randrange(2, clients), rounds=chance.randrange(2, 9), sensitivity="client",
            clip=1.0, model="softmax", epsilon=math.exp(chance.uniform(-1, 1)), delta=1e-5, adversary="broadcast",
        )  # fmt: skip
        agreed = Evaluation(chance.randrange(1, 4), math.exp(chance.uniform(0, 3)))
        made, scores = agreed.count(plan), agreed.count(plan) / agreed.sigma**2
        alone = dp_accounting.get_epsilon_gaussian(agreed.sigma / math.sqrt(made), plan.delta)
        without, found = plan.guarantees(), plan.guarantees(evaluation=agreed)
        release, noise = plan.release(), plan.noise_scales()
        for each in plan.adversaries():
            most = gdp_epsilon(math.sqrt(each.cost(release, noise, plan.rounds) + scores), plan.delta)
            assert max(alone, without[each.key]) * (1 - 1e-4) <= found[each.key] <= most * (1 + 1e-4)
        online = [AnsweredRound(np.arange(plan.drawn))] * plan.rounds
        assert plan.guarantees(online, agreed)["broadcast"] == pytest.approx(found["broadcast"], rel=1e-6)


def test_a_secret_draw_and_scores_compose_as_by_monte_carlo() -> None:
    """delta(epsilon) of one amplified round and one sure Gaussian, by sampling the worst pair of both."""
    plan = Plan(
        clients=6, per_round=2, rounds=1, sensitivity="client", clip=1.0, model="softmax", epsilon=2.0, delta=1e-3,
        adversary="broadcast",
    )  # fmt: skip
    agreed = Evaluation(1, 1.5)
    release, noise = agreed.beside(plan)[0], plan.noise_scales()
    mu, q, nu = math.sqrt(adversary.BROADCAST.cost(plan.release(), noise, 1)), 1 / 3, 1 / agreed.sigma
    found = subsampling.delta(release, noise, adversary.BROADCAST, 1.0)
    draws, source = 2_000_000, np.random.default_rng(3)
    drawn = source.random(draws) < q
    x, y = source.normal(np.where(drawn, mu, 0.0)), source.normal(nu, size=draws)

    def likelihood(shift: float, value: np.ndarray) -> np.ndarray:
        return np.exp(shift * value - shift**2 / 2)

    # Replacing a client: if drawn, its upload lies a distance mu away on one side instead of at the other's place.
    loss = np.log((1 - q) + q * likelihood(mu, x)) - np.log((1 - q) + q) + np.log(likelihood(nu, y))
    sampled = float(np.mean(np.maximum(0.0, -np.expm1(1.0 - loss))))
    assert sampled <= found * 1.02, "one of the pairs that the bound holds for"
    assert found <= gdp_delta(1.0, math.hypot(mu, nu)) * (1 + 1e-6)
    assert accounting.attack_power(release, noise, adversary.BROADCAST, 0.01) > accounting.attack_power(
        plan.release(), noise, adversary.BROADCAST, 0.01
    )


def test_secure_scores_are_counted_in() -> None:
    plan = Plan(
        clients=6, samples=200, rounds=5, sensitivity="gradient", model="softmax", epsilon=1.0, delta=1e-5, lr=0.5,
        record_clip=1.0, adversary="curious-server:1", aggregation="secure", min_answers=5, calibration="exact",
        server_momentum=0.0, dimension=30,
    )  # fmt: skip
    agreed = Evaluation(2, 4.0)
    by_hand = gdp_epsilon(math.sqrt(gdp_mu(1.0, 1e-5) ** 2 + 3 / 16), 1e-5)
    made = plan.statement("0" * 64, 30, simulated=False, evaluation=agreed)
    assert made.holding == pytest.approx(by_hand, rel=1e-2)
    assert made.holding >= by_hand
    assert made.to_dict()["evaluation"]["epsilon_with_training"] == pytest.approx(made.holding)
    assert made.best_guess() > plan.statement("0" * 64, 30).best_guess()
    assert plan.epsilon_after(5, agreed) == pytest.approx(made.holding)
    assert plan.epsilon_after(1, agreed) == plan.epsilon_after(1), "no score yet"
    assert plan.epsilon_after(2, agreed) > plan.epsilon_after(2)


def test_epsilon_so_far_counts_the_scores_so_far() -> None:
    agreed = Evaluation(4, 0.5)
    one = gdp_mu(1.0, 1e-5) ** 2 / 10
    for done, made in ((0, 0), (3, 0), (4, 1), (7, 1), (8, 2), (10, 3)):
        expected = gdp_epsilon(math.sqrt(done * one + made / 0.25), 1e-5)
        assert WHOLE.epsilon_after(done, agreed) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_a_run_that_goes_on_counts_scores_before_and_after() -> None:
    """The statement of the scores forgot the runs before; the price of those runs forgot their scores."""
    price = continuing.price(WHOLE, [], None, COUNTS)
    assert price["curious-server"] == pytest.approx(gdp_mu(1.0, 1e-5) ** 2 + 10 / 0.25, rel=1e-6)
    assert price["broadcast"] == pytest.approx(continuing.price(WHOLE, [], None)["broadcast"] + 10 / 0.25)
    before = Earlier("cd" * 32, "ab" * 32, 10, 1, continuing.price(WHOLE, [], None))
    second = WHOLE.with_fields(epsilon=2.0, init="m", init_sha256="ab" * 32, continues=(before,))
    stated = Evaluation(5, 1.0).statement(second)
    both = gdp_epsilon(math.sqrt(gdp_mu(2.0, 1e-5) ** 2 + 2), 1e-5)
    assert stated["epsilon_with_training"] == pytest.approx(both, rel=1e-6)
    told = second.statement("0" * 64, 5, evaluation=Evaluation(5, 1.0)).sentences()
    (prices,) = (each for each in told if each.startswith("Price against"))
    parts = [float(each) for each in re.findall(r"[\d.]+", prices.split(": ")[1].rstrip("."))]
    first = gdp_mu(1.0, 1e-5) ** 2
    assert parts[:-1] == pytest.approx([first, gdp_mu(2.0, 1e-5) ** 2 - first, 2.0], rel=1e-4)
    assert parts[-1] == pytest.approx(sum(parts[:-1]), rel=1e-4)


@pytest.fixture
def federated(tmp_path: Path) -> Run:
    """A finished run as a federation with counts at the clients leaves it."""
    source = np.random.default_rng(0)
    data = [(source.random((12, 4)).astype(np.float32), source.integers(2, size=12)) for _ in range(5)]
    federation = nbafl.Federation.from_arrays(clients=data, test=data[0], outputs=2)
    run = nbafl.simulate(WHOLE.with_fields(samples=12), federation, out=tmp_path / "run")
    facts = run.facts
    assert facts is not None
    replace(facts, where="federation", evaluation=asdict(COUNTS)).save(run.path)
    for number in range(1, 11):
        whole = list(range(5))
        answers.add(run.path / answers.FILE, {
            "number": number, "online": whole, "still_online": whole, "drawn": whole, "answered": whole,
            "sigma_downlink": 0.0,
        })  # fmt: skip
    runs.write_privacy(run, run.privacy["model_digest"], run.privacy["model_parameters"])
    return run


def test_run_folder_report_and_evidence_count_the_scores_in(federated: Run) -> None:
    told, shown = federated.privacy, federated.summary()
    assert told["epsilon"] == pytest.approx(46.27, rel=1e-3)
    assert shown["privacy"]["guarantee"] == told["guarantee"]
    assert shown["privacy"]["evaluation"]["counts"] == 10
    assert not shown["privacy"]["delivers_claim"]
    page = render(federated)
    assert "and 10 noisy scores of each client" in page
    assert "Not kept" in page
    evidence = gather(federated)
    assert evidence["statement"]["guarantee"] == told["guarantee"]
    assert "46.27" in evidence["questions"][0]["answer"]
    assert "over all 10 rounds and 10 noisy scores of each client" in page_of(evidence)


def test_facts_of_a_run_without_scores_are_read_as_before(federated: Run) -> None:
    facts = federated.facts
    assert facts is not None
    kept = asdict(facts)
    del kept["evaluation"]
    assert Evaluation.of(Facts.of(kept)) is None
    assert Evaluation.of(facts) == COUNTS
    assert Evaluation.of(None) is None
    with pytest.raises(DataError, match="damaged"):
        Evaluation.of(replace(facts, evaluation={"often": 1}))


def test_realised_cost_includes_the_scores() -> None:
    release = COUNTS.beside(WHOLE)[0]
    rounds = [AnsweredRound(np.arange(5))] * 10
    server = adversary.CURIOUS_SERVER
    with_scores = dropouts.realised_cost(release, WHOLE.noise_scales(), server, rounds)
    assert with_scores == pytest.approx(
        dropouts.realised_cost(WHOLE.release(), WHOLE.noise_scales(), server, rounds) + 40
    )


def test_scores_agreed_on_after_a_run_began_are_in_its_facts_and_stay(federated: Run) -> None:
    facts = federated.facts
    assert facts is not None
    replace(facts, evaluation=None).save(federated.path)
    keep_agreed(federated, facts)
    assert federated.facts == facts
    with pytest.raises(UsageError, match="as this run began with"):
        keep_agreed(federated, replace(facts, evaluation=asdict(Evaluation(1, 9.0))))
    assert federated.facts == facts
