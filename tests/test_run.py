"""The run folder and `nbafl.simulate`: what is written, what is refused, what a resume takes up."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.paper_setting import Plan
from torch import nn

import nbafl
from nbafl.cli import run_command
from nbafl.errors import DataError, NbaflError, Refused, UsageError
from nbafl.run import Run


def small_federation(seed: int = 0, classes: int = 3, sizes=(20, 30)) -> nbafl.Federation:
    numbers = np.random.default_rng(seed)
    clients = []
    for size in (*sizes, 40):
        y = numbers.integers(classes, size=size)
        x = numbers.normal(size=(size, 6)).astype(np.float32)
        x[:, :classes] += 2 * np.eye(classes)[y]
        clients.append((x, y))
    return nbafl.Federation.from_arrays(clients=clients[:-1], test=clients[-1], outputs=classes)


def small_plan(**fields) -> nbafl.Plan:
    return Plan(**{"sizes": (20, 30), "rounds": 4, "model": "softmax", "epsilon": 100, **fields})


@pytest.fixture
def finished(tmp_path) -> Run:
    return nbafl.simulate(small_plan(), small_federation(), out=tmp_path / "run")


def test_a_run_folder_holds_everything_the_contract_names(finished):
    names = {path.name for path in finished.path.iterdir()}
    assert names == {
        "plan.toml",
        "facts.json",
        "scores.json",
        "metrics.jsonl",
        "model.safetensors",
        "checkpoint",
        "privacy.json",
        "report.html",
    }
    again = Run.load(finished.path)
    assert again.plan == finished.plan
    assert [line["round"] for line in again.metrics] == [1, 2, 3, 4]
    required = {
        "round",
        "train_loss",
        "train_accuracy",
        "test_loss",
        "test_accuracy",
        "worst_client_accuracy",
        "participants",
        "clipped_fraction",
        "seconds",
    }
    assert required <= set(again.metrics[0])
    assert again.finished
    assert not again.active


def test_the_privacy_statement_belongs_to_this_model(finished):
    import hashlib

    statement = finished.privacy
    content = (finished.path / "model.safetensors").read_bytes()
    assert statement["model_digest"] == hashlib.sha256(content).hexdigest()
    assert statement["plan_digest"] == finished.plan.digest()
    assert statement["adversary"]["name"] == "eavesdropper"
    assert statement["epsilon"] == pytest.approx(100, rel=1e-6)
    assert statement["delta"] == 0.01
    assert statement["model_parameters"] == 6 * 3 + 3


def test_the_same_seed_gives_the_same_model_and_another_seed_does_not(tmp_path):
    def weights(name: str, seed: int) -> bytes:
        run = nbafl.simulate(small_plan(seed=seed), small_federation(), out=tmp_path / name)
        return b"".join(value.tobytes() for value in load_file(run.path / "model.safetensors").values())

    assert weights("a", 1) == weights("b", 1)
    assert weights("c", 2) != weights("d", 1)


def test_a_module_of_the_users_own(tmp_path):
    module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    run = nbafl.simulate(small_plan(model="mlp"), small_federation(), model=module, out=tmp_path / "run")
    assert load_file(run.path / "model.safetensors").keys() == module.state_dict().keys()


def test_a_factory_of_the_users_own(tmp_path):
    def narrow(_, outputs):
        return nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.Linear(4, outputs))

    run = nbafl.simulate(small_plan(model="mlp"), small_federation(), model=narrow, out=tmp_path / "run")
    assert load_file(run.path / "model.safetensors")["0.weight"].shape == (4, 6)


class _Pair(nn.Linear):
    def forward(self, x):
        return super().forward(x), 0


def _fails(*_):
    raise RuntimeError("out of paper")


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (nn.Linear(4, 3), "3 numbers for each record of shape (6,); it failed: RuntimeError"),
        (nn.Linear(6, 2), "two records gave (2, 2)"),
        (nn.Linear(6, 4), "two records gave (2, 4)"),
        (_Pair(6, 3), "two records gave tuple"),
        (nn.Identity(), "parameters to train"),
        (_fails, "calling it failed: RuntimeError (out of paper)"),
        (lambda: nn.Linear(6, 3), "takes (input shape, number of outputs)"),
        (lambda *_: "a model", "returns a torch.nn.Module"),
        (lambda *_: nn.Linear(6, 2), "two records gave (2, 2)"),
    ],
)
def test_a_model_that_does_not_fit_the_data_is_one_sentence_and_writes_nothing(tmp_path, model, told):
    with pytest.raises(UsageError, match=re.escape(told)) as refusal:
        nbafl.simulate(small_plan(model="mlp"), small_federation(), model=model, out=tmp_path / "run")
    assert str(refusal.value).startswith("model must be ")
    assert "\n" not in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_no_longer_finite_is_neither_kept_nor_vouched_for(tmp_path):
    numbers = np.random.default_rng(0)
    clients = [(1e20 * numbers.normal(size=(20, 3)), numbers.normal(size=20)) for _ in range(2)]
    plan = Plan(clients=2, samples=20, rounds=9, model="softmax", noise=False)
    with pytest.raises(Refused, match=r"no longer finite after round \d"):
        nbafl.simulate(plan, nbafl.Federation.from_arrays(clients=clients), out=tmp_path / "run")
    run = Run.load(tmp_path / "run")
    assert not run.finished
    assert not (run.path / "privacy.json").exists()
    last_good = load_file(run.path / "checkpoint" / "state.safetensors")
    assert np.isfinite(last_good["vector"]).all()
    assert int(last_good["round"]) == run.rounds_done


def test_a_loss_too_large_for_a_float_is_null_and_never_an_older_one(tmp_path):
    x = np.full((20, 2), 3e38, dtype=np.float32)
    y = np.zeros(20, dtype=np.float32)
    clients = [(x[:10], y[:10]), (x[10:], y[10:])]
    federation = nbafl.Federation.from_arrays(clients=clients, test=(x * 0, y), task="regression")
    plan = Plan(clients=2, samples=10, rounds=1, model="softmax", epsilon=0.1, lr=1e-38, local_steps=1)
    run = nbafl.simulate(plan, federation, out=tmp_path / "run")
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1], parse_constant=pytest.fail)["train_loss"] is None
    assert run.summary()["train_loss"] is None
    assert run.summary()["test_loss"] is not None


def test_a_regression_has_losses_but_no_accuracy(tmp_path):
    numbers = np.random.default_rng(0)
    x = numbers.normal(size=(40, 3)).astype(np.float32)
    y = (x @ np.array([1.0, -2.0, 0.5])).astype(np.float32)
    federation = nbafl.Federation.from_arrays(clients=[(x[:20], y[:20]), (x[20:], y[20:])])
    run = nbafl.simulate(
        Plan(clients=2, samples=20, rounds=30, model="softmax", noise=False),
        federation,
        out=tmp_path / "run",
    )
    summary = run.summary()
    assert summary["train_accuracy"] is None
    assert summary["test_loss"] is None
    assert summary["train_loss"] < 0.1 * run.metrics[0]["train_loss"]
    assert "Loss by round" in (run.path / "report.html").read_text()


@pytest.mark.parametrize(
    ("fields", "named"),
    [({"sizes": (20, 31)}, "samples"), ({"sizes": (20, 30, 10)}, "one number per client")],
)
def test_a_plan_for_other_data_is_refused_and_writes_nothing(tmp_path, fields, named):
    with pytest.raises(UsageError, match=named):
        nbafl.simulate(small_plan(**fields), small_federation(), out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_a_run_in_it_is_not_overwritten(finished):
    with pytest.raises(UsageError, match="resume"):
        nbafl.simulate(small_plan(), small_federation(), out=finished.path)


def test_resume_refuses_other_data(finished):
    with pytest.raises(Refused, match="other data"):
        nbafl.simulate(small_plan(), small_federation(seed=5), out=finished.path, resume=True)


def test_resume_drops_a_round_whose_checkpoint_never_came_to_be(tmp_path):
    class Interrupted(Exception):
        pass

    def stop(metrics):
        if metrics.round == 2:
            raise Interrupted

    whole = nbafl.simulate(small_plan(), small_federation(), out=tmp_path / "whole")
    with pytest.raises(Interrupted):
        nbafl.simulate(small_plan(), small_federation(), out=tmp_path / "part", on_round=stop)
    with open(tmp_path / "part" / "metrics.jsonl", "a") as log:
        log.write(json.dumps({"round": 3, "train_loss": -1.0}) + "\n" + '{"round": 4, "trai')
    part = nbafl.simulate(small_plan(), small_federation(), out=tmp_path / "part", resume=True)
    assert [line | {"seconds": 0} for line in part.metrics] == [
        line | {"seconds": 0} for line in whole.metrics
    ]
    assert (part.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()


@pytest.mark.parametrize("damage", ["missing", "empty", "cut"])
def test_a_damaged_run_folder_is_one_sentence(finished, damage):
    state = finished.path / "checkpoint" / "state.safetensors"
    content = state.read_bytes()
    if damage == "missing":
        (finished.path / "plan.toml").unlink()
    else:
        state.write_bytes(b"" if damage == "empty" else content[: len(content) // 2])
    with pytest.raises(NbaflError) as refusal:
        nbafl.simulate(small_plan(), small_federation(), out=finished.path, resume=True)
    assert isinstance(refusal.value, DataError)
    assert "\n" not in str(refusal.value)


FIRST_RELEASE = Path(__file__).parent / "fixtures" / "first_release_run"
"""A run of 0.1.0 (commit d07fa30), stopped after 2 of 4 rounds; digest.txt is what it called its plan."""


def test_a_run_of_the_first_release_is_recognised_and_goes_on(tmp_path):
    folder = shutil.copytree(FIRST_RELEASE, tmp_path / "run")
    x = np.linspace(-1, 1, 60, dtype=np.float32).reshape(3, 10, 2)
    y = (x.sum(2) > 0).astype(np.int64)
    federation = nbafl.Federation.from_arrays(clients=list(zip(x, y, strict=True)))
    plan = Run.load(folder).plan
    assert plan.legacy_digest() == (FIRST_RELEASE / "digest.txt").read_text().strip()
    assert plan.legacy_digest() != plan.digest()
    run = nbafl.simulate(plan, federation, out=folder, resume=True)
    assert [line["round"] for line in run.metrics] == [1, 2, 3, 4]


FIRST_RELEASE_TABLE = FIRST_RELEASE.parent / "first_release_table"
"""Another run of 0.1.0 (commit 4d2aa0c) stopped likewise, over tables with two classes, one of them called test."""


def test_a_run_of_the_first_release_over_tables_goes_on(tmp_path, monkeypatch):
    monkeypatch.chdir(shutil.copytree(FIRST_RELEASE_TABLE, tmp_path / "here"))
    assert run_command(["run", "--resume", "run"]) == 0
    run = Run.load("run")
    assert [line["round"] for line in run.metrics] == [1, 2, 3, 4]
    assert run.metrics[-1]["train_accuracy"] > 0.9


def test_how_a_run_is_computed_may_change_when_it_goes_on(tmp_path):
    def stop(metrics) -> None:
        if metrics.round == 2:
            raise KeyboardInterrupt

    begun = small_plan(engine="plain", device="cpu")
    with pytest.raises(KeyboardInterrupt):
        nbafl.simulate(begun, small_federation(), out=tmp_path / "run", on_round=stop)
    later = small_plan(engine="dual", device="auto", eval_every=2)
    assert later.digest() == begun.digest()
    assert later != begun
    run = nbafl.simulate(later, small_federation(), out=tmp_path / "run", resume=True)
    assert [line["round"] for line in run.metrics] == [1, 2, 3, 4]
    with pytest.raises(Refused, match="other data or another model"):
        nbafl.simulate(small_plan(epsilon=101), small_federation(), out=tmp_path / "run", resume=True)
