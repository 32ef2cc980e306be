"""The empirical planner: on curves whose continuation is known, and against trainings at the paper's setting."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.paper_setting import Plan

from nbafl.data.federation import Federation
from nbafl.errors import DataError, UsageError
from nbafl.privacy.sensitivity import softmax_constants
from nbafl.protocol import Training
from nbafl.simulation import build
from nbafl.simulation.batch import simulate_batch
from nbafl.theory.planner import Pilot, pilot_rounds, predict, run_pilot
from nbafl.theory.planning import Knowledge, broken_premise, explore, plan_bounds, vary

SETTLED = (0.0, 10.0, 60.0, 85.0, 95.0, 99.0, 100.0, 100.0, 100.0, 100.0)


def pilot(losses: np.ndarray, response: tuple[float, ...] = SETTLED, sampling: float = 0.0) -> Pilot:
    return Pilot(tuple(losses.tolist()), response, sampling, 50, 50, 1000, 0.0)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.floats(0.05, 0.5), st.floats(0.5, 3), st.floats(2, 8), st.booleans())
def test_a_continued_curve_lies_near_the_true_one(
    level: float, height: float, scale: float, slow: bool
) -> None:
    """True tails of both kinds; the middle of the two fits misses by less than the fits differ."""
    rounds = np.arange(1, 31)
    curve = level + height * (scale / (rounds + scale) if slow else np.exp(-rounds / scale))
    prediction = predict(pilot(curve[:10]))
    assert [prediction(t, 50, 0.0) for t in range(1, 11)] == pytest.approx(curve[:10].tolist())
    geometric, harmonic = (tail(30) for tail in prediction.tails)
    exact = harmonic if slow else geometric
    assert exact == pytest.approx(curve[29], abs=0.02 * height)
    assert abs(prediction(30, 50, 0.0) - curve[29]) <= abs(geometric - harmonic) / 2 + 0.02 * height


def test_noise_and_drawing_add_what_was_measured() -> None:
    curve = 2 * np.exp(-np.arange(1, 11) / 3)
    prediction = predict(pilot(curve, sampling=0.7))
    quiet = prediction(25, 50, 0.0)
    assert prediction(25, 50, 0.1) - quiet == pytest.approx(100 * 0.01)
    assert prediction(25, 10, 0.0) - quiet == pytest.approx(0.7 * 40 / (10 * 49))


def test_growth_of_the_response_goes_on_geometrically() -> None:
    settling = pilot(np.ones(10), tuple(100 * (1 - 0.5**t) for t in range(1, 11)))
    assert settling.curvature(5) == pytest.approx(100 * (1 - 0.5**5))
    assert settling.curvature(40) == pytest.approx(100, rel=1e-6)
    straight = pilot(np.ones(10), tuple(float(t) for t in range(1, 11)))
    assert straight.curvature(40) == pytest.approx(40)


@pytest.mark.parametrize(("length", "ratio"), [(30, 0.9), (60, 0.95), (30, 1.0)])
def test_a_longer_pilot_continues_as_well(length: int, ratio: float) -> None:
    grown = np.cumsum(ratio ** np.arange(200))
    known = pilot(0.3 + 2 * np.exp(-np.arange(1, length + 1) / 12), tuple(grown[:length].tolist()))
    assert known.curvature(200) == pytest.approx(float(grown[-1]), rel=1e-6)
    assert predict(known)(length + 1, 50, 0.0) == pytest.approx(
        0.3 + 2 * math.exp(-(length + 1) / 12), abs=0.03
    )


def test_momentum_makes_the_pilot_longer() -> None:
    assert [pilot_rounds(momentum) for momentum in (0.0, 0.5, 0.9, 0.999)] == [10, 10, 30, 100]


def test_a_pilot_sees_what_the_model_will_see() -> None:
    """With ‖(x, 1)‖ <= R softmax regression is R²/2-smooth; on raw digits its gradients change far faster."""
    fields = {"clients": 4, "samples": 30, "model": "softmax", "sensitivity": "gradient", "lr": 1.0}
    bounded = explore(Plan(**fields, feature_norm=1.2)).constants.rho.high
    assert bounded <= softmax_constants(1.2)[1] * (1 + 1e-3)
    assert explore(Plan(**fields)).constants.rho.high > 2 * softmax_constants(1.2)[1]


@pytest.mark.e2e
def test_the_planner_finds_a_good_t_for_a_private_plan_with_momentum() -> None:
    """Softmax on few features under `gradient`: the T it names trains nearly as well as the best of a grid."""
    numbers = np.random.default_rng(3)
    x = numbers.uniform(0, 1, size=(1000, 4)).astype(np.float32)
    y = (x @ np.array([1.0, 0.7, -0.6, 0.0]) + numbers.normal(0, 0.15, 1000) > 0.55).astype(int)
    sizes = (100, 200, 300, 400)
    federation = Federation.partitioned(x, y, sizes=sizes)
    plan = Plan(
        sizes=sizes, model="softmax", sensitivity="gradient", epsilon=1, delta=1e-5, lr=0.4, rounds=25, record_clip=1,
        server_momentum=0.9,
    )  # fmt: skip
    model = build("softmax", (4,), 2, 0)

    def trained(rounds: int) -> float:
        jobs = [vary(plan, rounds=rounds, eval_every=rounds, seed=seed).job() for seed in range(8)]
        runs = simulate_batch(federation, model, jobs, measure={"train"})
        return float(np.mean([run[-1].train_loss for run in runs]))

    found = plan_bounds(plan, explore(plan, federation))
    over_rounds = found["curves"]["rounds"]["empirical"]
    best = over_rounds["at"]
    losses = {rounds: trained(rounds) for rounds in (10, 20, best, 150, 300)}
    assert losses[best] <= 1.1 * min(losses.values())
    assert losses[best] < 0.8 * losses[10]  # so that the grid has something to find
    assert over_rounds["value"] == pytest.approx(losses[best], rel=0.2)


def test_a_pilot_that_is_too_short_is_refused() -> None:
    federation = Federation.mnist(clients=4, samples=10)
    with pytest.raises(UsageError, match="at least 6"):
        run_pilot(federation, build("softmax", federation.shape, 10, 0), Training(), rounds=3)


@pytest.fixture(scope="module")
def small() -> Plan:
    return Plan(
        clients=6, samples=20, model="softmax", mu=400.0, lr=0.002, clip=1e6, rounds=12, calibration="paper"
    )


@pytest.fixture(scope="module")
def knowledge(small: Plan) -> Knowledge:
    return explore(small)


def test_plan_bounds_names_every_form(small: Plan, knowledge: Knowledge) -> None:
    found = plan_bounds(small, knowledge)
    assert set(found["bound"]) == {"printed", "repaired", "reason"}
    assert set(found["best"]) == {"printed", "repaired", "empirical"}
    assert isinstance(found["bound"]["repaired"], float)
    assert found["best"]["empirical"]["rounds"] >= 1
    curve = found["curves"]["rounds"]["empirical"]
    values = dict(zip(curve["candidates"], curve["values"], strict=True))
    assert found["best"]["empirical"]["rounds"] == min(values, key=lambda t: values[t])
    assert [entry["epsilon"] for entry in found["curves"]["epsilon"]] == [25, 50, 100]
    json.dumps(found, allow_nan=False)


def test_a_form_without_a_value_says_why(small: Plan, knowledge: Knowledge) -> None:
    found = plan_bounds(vary(small, mu=0.0), knowledge)
    for form in ("printed", "repaired"):
        assert found["bound"][form] is None
        assert "mu = 0" in found["bound"]["reason"][form]
        assert found["best"][form] is None
    assert found["best"]["empirical"] is not None


def test_numbers_for_which_there_is_no_plan_have_no_value(small: Plan, knowledge: Knowledge) -> None:
    """delta above the chance of ever being drawn: no noise would be needed, and the plan is refused there."""
    found = plan_bounds(vary(small, rounds=1, calibration="exact", delta=0.3), knowledge)
    curve = found["curves"]["per_round"]["empirical"]
    assert curve["values"][0] is None
    assert curve["values"][-1] is not None


def test_broken_premises_of_the_bound_are_named(small: Plan, knowledge: Knowledge) -> None:
    assert broken_premise(small, knowledge.pilot) is None
    assert "minibatches" in (broken_premise(vary(small, batch=5), knowledge.pilot) or "")
    assert "momentum" in (broken_premise(vary(small, server_momentum=0.5), knowledge.pilot) or "")
    tight = explore(vary(small, clip=1e-3))
    assert "clipping binds" in (broken_premise(small, tight.pilot) or "")
    assert "clipping binds" in plan_bounds(small, tight)["bound"]["reason"]["repaired"]


def test_a_pilot_is_kept_in_the_file_and_read_from_it(
    small: Plan, knowledge: Knowledge, tmp_path: Path
) -> None:
    path = tmp_path / "constants.json"
    first = plan_bounds(small, path)
    assert path.exists()
    assert Knowledge.load(path) == knowledge
    assert plan_bounds(small, str(path)) == first
    kept = json.loads(path.read_text())
    less = {name: value for name, value in kept["constants"].items() if name != "rho"}
    wrong = {**kept["constants"], "polyak": {"mean": -1.0, "low": -1.0, "high": -1.0}}
    for content, told in (
        ({}, "constants"),
        ({**kept, "constants": less}, "constants.rho"),
        ({**kept, "constants": wrong}, "polyak"),
        ({**kept, "pilot": {**kept["pilot"], "losses": 3}}, "pilot.losses"),
    ):
        path.write_text(json.dumps(content))
        with pytest.raises(DataError, match=f"does not hold a pilot: {told}"):
            plan_bounds(small, path)


@pytest.mark.e2e
def test_best_rounds_within_a_third_of_the_measured_best() -> None:
    """The paper's setting (math.md, section 13), `paper` calibration: a 10-round pilot against whole trainings."""
    setting = Plan(mu=0.0, calibration="paper", seed=1)
    knowledge = explore(setting)
    assert len(knowledge.pilot.losses) <= 10
    federation = Federation.mnist(clients=50, samples=100, seed=1)
    model = build("mlp", federation.shape, federation.outputs, 1)
    grid = (12, 15, 18, 21, 25, 30, 36)
    for epsilon in (60, 80):
        plans = [vary(setting, epsilon=epsilon, rounds=rounds, eval_every=99) for rounds in grid]
        runs = simulate_batch(federation, model, [plan.job() for plan in plans], measure={"train"})
        losses = [run[-1].train_loss for run in runs]
        measured = grid[int(np.argmin(losses))]
        planned = plan_bounds(vary(setting, epsilon=epsilon), knowledge)["best"]["empirical"]["rounds"]
        assert abs(math.log(planned / measured)) <= math.log(1.3)
