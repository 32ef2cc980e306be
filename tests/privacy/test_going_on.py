"""Two runs over the same data: the sum of their prices, against dp-accounting release by release."""

from __future__ import annotations

import dataclasses
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld

from nbafl.continuing import price
from nbafl.errors import Refused, UsageError
from nbafl.flower.release import precision_of
from nbafl.plan import Plan
from nbafl.privacy import adversary
from nbafl.privacy.dropouts import AnsweredRound, epsilon_of_rounds
from nbafl.privacy.gaussian import gdp_delta
from nbafl.privacy.noise import arithmetic_cost
from nbafl.privacy.release import Earlier

DIGEST = "ab" * 32


def first_plan(rng: np.random.Generator, named: str) -> Plan:
    rounds = int(rng.integers(3, 40))
    return Plan(
        clients=int(rng.integers(2, 30)), samples=int(rng.integers(20, 500)), rounds=rounds, lr=float(rng.uniform(0.05, 2)),
        record_clip=float(rng.uniform(0.1, 3)), exposures=int(rng.integers(1, rounds + 1)), sensitivity="gradient",
        adversary=named, epsilon=float(rng.uniform(0.3, 4)), delta=1e-5, calibration="exact", features="raw",
        model="softmax",
    )  # fmt: skip


def after(first: Plan, **changes: object) -> Plan:
    """A plan that goes on with a run of `first`."""
    others = [adversary.parse(str(changes.get("adversary", first.adversary)))]
    init = "" if first.continues else first.init_sha256 or ""
    own = Earlier(first.digest(), DIGEST, first.rounds, first.exposures, price(first, others, None), init)
    start = {"init": "model.safetensors", "init_sha256": DIGEST, "continues": (*(first.continues or ()), own)}
    return Plan(**{**first.model_dump(), **changes, **start})


def events(plan: Plan, named: str) -> list[tuple[float, int]]:
    """(noise over sensitivity, how often) of each kind of release that an adversary sees of one run."""
    release, noise = plan.release(), plan.noise_scales()
    moved = float(release.uplink[0])
    u, v = (noise.sigma_uplink[0] / moved) ** 2, (plan.clients * noise.sigma_downlink / moved) ** 2
    rounds, seen = plan.rounds, plan.exposures
    kinds = {
        "broadcast": [(plan.clients * u + v, rounds)],
        "targeted": [(u, seen), (plan.clients * u + v, rounds - seen)],
        "eavesdropper": [
            (u, seen),
            (u + v, min(seen, rounds - seen)),
            (plan.clients * u + v, rounds - seen - min(seen, rounds - seen)),
        ],
        "curious-server": [(u, rounds)],
    }[named]
    return [(math.sqrt(square), count) for square, count in kinds if count]


@pytest.mark.parametrize("named", ["broadcast", "targeted", "eavesdropper", "curious-server"])
@pytest.mark.parametrize("seed", range(2))
def test_the_sum_of_two_and_three_runs_is_dp_accountings(named: str, seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    first = first_plan(rng, named)
    rounds = int(rng.integers(1, 30))
    exposures = int(rng.integers(1, min(rounds, first.exposures) + 1))
    second = after(first, rounds=rounds, exposures=exposures, epsilon=first.epsilon * 1.7)
    third = after(second, rounds=2, exposures=1, epsilon=second.epsilon * 1.4, lr=0.3)
    for runs in ((first, second), (first, second, third)):
        accountant = pld.PLDAccountant(value_discretization_interval=1e-3)
        for run in runs:
            for sigma, count in events(run, named):
                # one Gaussian of sigma/sqrt(count) is `count` of sigma: dp-accounting composes the kinds and the runs
                accountant.compose(dp_accounting.GaussianDpEvent(sigma / math.sqrt(count)))
        theirs = accountant.get_epsilon(first.delta)
        ours = runs[-1].guarantees()[adversary.parse(named).key]
        assert ours == pytest.approx(theirs, rel=5e-3)
        assert ours == pytest.approx(runs[-1].epsilon, rel=1e-6), "the budget is used up, and not more"


def test_each_adversary_has_a_sum_of_its_own() -> None:
    first = first_plan(np.random.default_rng(5), "eavesdropper")
    second = after(first, adversary="curious-server", epsilon=60.0)
    release, noise = second.release(), second.noise_scales()
    for name in ("broadcast", "targeted", "eavesdropper", "curious-server"):
        own = adversary.parse(name).cost(dataclasses.replace(release, earlier=()), noise, second.rounds)
        before = adversary.parse(name).cost(first.release(), first.noise_scales(), first.rounds)
        assert release.before(name) == pytest.approx(before)
        mu = math.sqrt(own + before)
        theirs = dp_accounting.get_epsilon_gaussian(1 / mu, second.delta)
        assert second.guarantees()[adversary.parse(name).key] == pytest.approx(theirs, rel=1e-6)
    everyone = [AnsweredRound(np.arange(second.clients))] * second.rounds
    realised = epsilon_of_rounds(release, noise, adversary.CURIOUS_SERVER, everyone, second.delta)
    assert realised == pytest.approx(second.guarantees()["curious_server"], rel=1e-6)


def test_progress_starts_at_what_was_spent() -> None:
    first = first_plan(np.random.default_rng(6), "eavesdropper")
    second = after(first, epsilon=first.epsilon * 2)
    assert second.epsilon_after(0) == pytest.approx(first.epsilon, rel=1e-6)
    assert second.epsilon_after(0) < second.epsilon_after(1) <= second.epsilon_after(second.rounds)
    assert second.epsilon_after(second.rounds) == pytest.approx(second.epsilon, rel=1e-6)
    assert first.epsilon_after(0) == 0.0


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_spent_budget_is_refused(share: float) -> None:
    first = first_plan(np.random.default_rng(7), "eavesdropper")
    with pytest.raises(Refused, match=r"budget is spent.*eavesdropper.*together"):
        after(first, epsilon=first.epsilon * share * (1 - 1e-9))


def test_an_adversary_without_a_price_is_refused() -> None:
    first = first_plan(np.random.default_rng(7), "eavesdropper")
    second = after(first, epsilon=first.epsilon * 2)
    with pytest.raises(Refused, match="no price against eavesdropper-spread"):
        second.with_fields(adversary="eavesdropper-spread")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"per_round": 1}, "per_round"),
        ({"calibration": "separate"}, "calibration"),
        ({"noise": False}, "noise"),
        ({"aggregation": "secure"}, "aggregation"),
        ({"sensitivity": "paper"}, "sensitivity"),
        ({"init_sha256": "cd" * 32}, "init"),
        ({"continues": ()}, "continues"),
    ],
)
def test_what_does_not_add_up_is_refused(changes: dict, named: str) -> None:
    first = first_plan(np.random.default_rng(8), "eavesdropper")
    second = after(first, epsilon=first.epsilon * 2)
    with pytest.raises(UsageError, match=named):
        second.with_fields(**changes)


def test_a_plan_file_keeps_what_came_before(tmp_path) -> None:
    second = after(first_plan(np.random.default_rng(9), "curious-server"), epsilon=50.0)
    file = tmp_path / "plan.toml"
    file.write_text(second.to_toml())
    again = Plan.from_toml(file)
    assert again == second
    assert again.digest() == second.digest() != second.with_fields(epsilon=51.0).digest()


def test_the_statement_names_the_runs_and_the_sum() -> None:
    first = first_plan(np.random.default_rng(9), "curious-server")
    second = after(first, epsilon=first.epsilon * 2, rounds=7, exposures=1)
    told = " ".join(second.statement("ef" * 32, 10).sentences())
    before = second.release().before("curious-server")
    own = adversary.CURIOUS_SERVER.cost(second.release(), second.noise_scales(), 7)
    assert f"over all 7 rounds and the {first.rounds} rounds of the runs it continues" in told
    assert f"plan {first.digest()[:16]} with {first.rounds} rounds" in told
    assert f"{before:.6g} + {own:.6g} = {before + own:.6g}" in told
    assert second.statement("ef" * 32, 10).to_dict()["continues"][0]["plan"] == first.digest()


def test_an_adversary_cannot_see_more_of_a_run_than_it_was_priced_for() -> None:
    first = first_plan(np.random.default_rng(8), "eavesdropper").with_fields(rounds=10, exposures=2)
    with pytest.raises(UsageError, match=r"exposures must be at most 2, .* got 5"):
        after(first, exposures=5, epsilon=first.epsilon * 2)
    assert after(first, exposures=1, epsilon=first.epsilon * 2).exposures == 1
    whole = first.with_fields(exposures=10)  # every upload of that run is seen already
    assert after(whole, rounds=30, exposures=20, epsilon=first.epsilon * 3).exposures == 20


def test_what_a_continued_run_began_with_is_said_truly() -> None:
    first = first_plan(np.random.default_rng(9), "eavesdropper").with_fields(
        init="public.safetensors", init_sha256="cd" * 32
    )
    third = after(after(first, epsilon=first.epsilon * 2), epsilon=first.epsilon * 3)
    told = " ".join(third.assumptions())
    assert f"assumed to be public (file with sha256 {'cd' * 8})" in told
    assert "initial weights" not in told
    assert "the weights that the first of its runs began with" in told
    assert "initial weights" in " ".join(first.assumptions())


@pytest.mark.parametrize("dimension", [7_850, 203_530, 5_000_000])
def test_finite_precision_is_paid_for_over_all_runs(dimension: int) -> None:
    """delta of what both runs release, by the closed form, with all that finite precision adds to epsilon."""
    first = first_plan(np.random.default_rng(10), "curious-server").with_fields(epsilon=1.0, rounds=10)
    second = after(first, epsilon=1.05, rounds=400)
    paid = precision_of(second, dimension)
    named = adversary.CURIOUS_SERVER
    own = named.cost(dataclasses.replace(second.release(), earlier=()), second.noise_scales(), 400)
    mu = math.sqrt(second.release().before(named.name) + own / paid.widening**2)
    added = 410 * paid.epsilon
    assert paid.epsilon == pytest.approx(arithmetic_cost(dimension, 1.05)[0])
    assert gdp_delta(1.05 - added, mu) <= 1e-5 * (1 + 1e-9)
    assert paid.widening > precision_of(first, dimension).widening
