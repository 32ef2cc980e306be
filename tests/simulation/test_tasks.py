"""Tasks and records beside the usual ones: two classes with one output, class weights, own losses, tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import nbafl
from nbafl.data.federation import Federation
from nbafl.errors import DataError, UsageError
from nbafl.protocol import Training, descend, flatten
from nbafl.simulation.job import Job
from nbafl.simulation.models import build
from nbafl.simulation.simulator import Simulator

SIZES = (6, 9, 4)


def federation(task: str | None = "binary", seed: int = 0) -> Federation:
    rng = np.random.default_rng(seed)
    parts = []
    for size in SIZES:
        x = rng.normal(size=(size, 5))
        parts.append((x, (x[:, 0] + rng.normal(size=size) > 0).astype(int)))
    return Federation.from_arrays(parts, test=parts[0], task=task, outputs=None if task == "binary" else 2)


@pytest.mark.parametrize("engine", ["dual", "plain", "clients", "vmap"])
@pytest.mark.parametrize("task", ["binary", "classification"])
def test_every_engine_trains_weighted_classes_as_the_protocol_does(engine: str, task: str) -> None:
    data = federation(task)
    model = build("mlp", data.shape, data.outputs, 0).double()
    loss = {"binary": "logistic", "classification": "cross_entropy"}[task]
    training = Training(rule="client", steps=3, lr=0.3, mu=0.1, clip=1e6, loss=loss, class_weights=(0.5, 3.0))
    simulator = Simulator(data, model, Job(training, rounds=1, weights="uniform"), "cpu", engine)
    simulator.step()
    start = flatten(model)
    uploads = [
        descend(model, torch.from_numpy(x).double(), torch.from_numpy(y), start, training)
        for x, y in (data.client(number) for number in range(3))
    ]
    assert torch.allclose(simulator.vector, torch.stack(uploads).mean(0), atol=1e-9)


def test_one_output_trains_as_two_outputs_with_half_the_step_and_a_longer_clip(tmp_path: Path) -> None:
    """What one output answers is the difference of the two: (2 lr, G/sqrt 2) against (lr, G)."""
    shared = {
        "sizes": SIZES,
        "sensitivity": "gradient",
        "features": "raw",
        "rounds": 20,
        "noise": False,
        "model": "softmax",
    }
    one = nbafl.simulate(
        nbafl.Plan(**shared, lr=0.8, record_clip=0.3 / 2**0.5), federation("binary"), out=tmp_path / "one"
    )
    two = nbafl.simulate(
        nbafl.Plan(**shared, lr=0.4, record_clip=0.3), federation("classification"), out=tmp_path / "two"
    )
    assert (one.metrics[-1]["train_accuracy"], one.scores["auc"]) == (
        two.metrics[-1]["train_accuracy"],
        two.scores["auc"],
    )
    x = np.random.default_rng(5).normal(size=(7, 5)).astype(np.float32)
    assert np.allclose(one.predict(x).probabilities, two.predict(x).probabilities, atol=1e-5)
    assert one.model()(torch.from_numpy(x)).shape == (7, 1)


def test_settings_of_one_output_follow_the_same_rule() -> None:
    said = {
        "sizes": (300, 300),
        "sensitivity": "gradient",
        "features": "raw",
        "model": "softmax",
        "epsilon": 3,
        "delta": 1e-5,
    }
    two, one = nbafl.Plan(**said, task="classification"), nbafl.Plan(**said, task="binary")
    assert one.rounds == two.rounds
    assert one.record_clip == pytest.approx(two.record_clip / 2**0.5, rel=5e-3)
    assert one.lr == pytest.approx(2 * two.lr, rel=1e-2)
    heavy = nbafl.Plan(**said, task="binary", class_weights={"1": 4})
    assert heavy.lr == pytest.approx(one.lr / 4, rel=1e-2)
    assert heavy.release().uplink[0] == pytest.approx(one.release().uplink[0], rel=1e-2)
    assert heavy.rule.reach(heavy).radius == pytest.approx(heavy.lr * heavy.record_clip * 4)


def test_class_weights_find_a_rare_class_and_the_bound_knows_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(600, 3))
    data = Federation.from_arrays(
        [(x, (x[:, 0] + 0.5 * rng.normal(size=600) > 1.8).astype(int))], task="binary"
    )
    said = {
        "sizes": (600,),
        "sensitivity": "gradient",
        "features": "raw",
        "model": "softmax",
        "rounds": 60,
        "lr": 4.0,
        "noise": False,
    }
    plain = nbafl.Plan(**said)
    heavy = plain.with_fields(class_weights={"1": 10.0})
    assert heavy.sensitivity_of().uplink[0] == 10 * plain.sensitivity_of().uplink[0]
    assert "weight of its class, at most 10" in heavy.sensitivity_of().premise
    assert nbafl.Plan(**said, task="binary").with_fields(class_weights="1=10") == heavy.with_fields(
        task="binary"
    )
    recalls = [
        nbafl.simulate(plan, data, out=tmp_path / str(plan.largest_weight)).scores["recall"]["1"]
        for plan in (plain, heavy)
    ]
    assert recalls[1] > recalls[0] + 0.2
    with pytest.raises(UsageError, match="for classes of the data"):
        nbafl.simulate(plain.with_fields(class_weights={"ill": 2}), data, out=tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_a_plan_for_one_task_does_not_train_another(tmp_path: Path) -> None:
    plan = nbafl.Plan(
        sizes=SIZES,
        sensitivity="proximal",
        model="softmax",
        feature_norm=3.0,
        task="binary",
        lr=0.1,
        rounds=2,
    )
    assert plan.sensitivity_of().uplink[0] < plan.with_fields(task=None).sensitivity_of().uplink[0]
    with pytest.raises(UsageError, match="task must be classification, as the data say, got 'binary'"):
        nbafl.simulate(plan, federation("classification"), out=tmp_path / "run")
    run = nbafl.simulate(plan, federation("binary"), out=tmp_path / "run")
    assert run.model()(torch.zeros(1, 5)).shape == (1, 1)


def smooth(output: Tensor, target: Tensor) -> Tensor:
    return functional.smooth_l1_loss(output[:, 0], target, reduction="none", beta=0.1)


def test_a_loss_of_ones_own_from_python_is_named_in_the_plan(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(50, 3))
    data = Federation.from_arrays([(x, x[:, 0].astype(np.float32))])
    plan = nbafl.Plan(
        sizes=(50,), sensitivity="gradient", features="raw", model="softmax", rounds=30, lr=1.0, noise=False
    )
    run = nbafl.simulate(plan, data, loss=smooth, out=tmp_path / "given")
    assert run.plan.loss == f"{__name__}:smooth"
    named = nbafl.simulate(plan.with_fields(loss=f"{__name__}:smooth"), data, out=tmp_path / "named")
    assert torch.equal(flatten(run.model()), flatten(named.model()))
    assert not torch.equal(
        flatten(run.model()), flatten(nbafl.simulate(plan, data, out=tmp_path / "own").model())
    )
    paper = plan.with_fields(sensitivity="paper", local_steps=2, lr=0.05)
    assert nbafl.simulate(paper, data, loss=smooth, out=tmp_path / "paper").metrics[-1]["train_loss"] < 0.5
    with pytest.raises(UsageError, match="one number per record"):
        nbafl.simulate(plan, data, loss=lambda o, _: o.mean(), out=tmp_path / "mean")
    with pytest.raises(UsageError, match="loss must be unset under sensitivity proximal"):
        nbafl.Plan(sensitivity="proximal", model="softmax", feature_norm=2.0, loss="a:b")


class Reader(nn.Module):
    """Tokens in, two classes out."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(11, 4), nn.Linear(4 * shape[0], outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.words(x).flatten(1))


@pytest.mark.parametrize("rule", ["gradient", "client"])
def test_tokens_stay_whole_numbers_from_data_to_prediction(tmp_path: Path, rule: str) -> None:
    rng = np.random.default_rng(3)
    parts = []
    for size in (40, 40):
        x = rng.integers(0, 11, size=(size, 6))
        parts.append((x.astype(np.int32), (x[:, 0] > 5).astype(int)))
    data = Federation.from_arrays(parts, test=parts[0], tokens=True)
    assert data.x.dtype == np.int64
    assert "6 tokens" in data.described()
    plan = nbafl.Plan(
        sizes=(40, 40),
        sensitivity=rule,
        lr=2.0,
        clip=100.0,
        rounds=25,
        noise=False,
        local_steps=1,
        record_clip=5.0,
        eval_every=1,
    )
    run = nbafl.simulate(plan, data, model=Reader, out=tmp_path / "run")
    assert run.metrics[-1]["train_loss"] < 0.8 * run.metrics[0]["train_loss"]
    answers = nbafl.Run.load(tmp_path / "run").predict(parts[0][0])
    with torch.no_grad():
        output = run.model()(torch.from_numpy(parts[0][0].astype(np.int64)))
    assert np.allclose(answers.probabilities, torch.softmax(output.double(), 1).numpy())
    sets = [TensorDataset(torch.from_numpy(x), torch.from_numpy(y)) for x, y in parts]
    assert np.array_equal(Federation.from_datasets(sets, tokens=True).x, data.x)


def test_what_is_no_token_is_refused() -> None:
    y = np.array([0, 1])
    for x, told in ((np.ones((2, 3)), "float64 numbers"), (np.array([[1], [-1]]), "a value of -1")):
        with pytest.raises(DataError, match=f"must hold tokens, whole numbers of at least 0, got {told}"):
            Federation.from_arrays([(x, y)], tokens=True)
    tokens = Federation.from_arrays([(np.ones((2, 3), dtype=int), y)], tokens=True)
    with pytest.raises(
        UsageError, match="features must be raw, without a feature norm, for records of tokens"
    ):
        tokens.with_features("raw", 3.0)
    plan = nbafl.Plan(
        sizes=(2,), sensitivity="gradient", features="raw", rounds=1, lr=0.1, model="softmax", noise=False
    )
    with pytest.raises(UsageError, match="model must be one that answers"):
        nbafl.simulate(plan, tokens)
