"""Where a run starts: public weights from a file, or the model of a finished run, whose price it carries on."""

from __future__ import annotations

import hashlib
import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import nbafl
from nbafl.cli import run_command
from nbafl.errors import DataError, NbaflError, Refused, UsageError
from nbafl.protocol import generator
from nbafl.run.starting import start_from
from nbafl.simulation import build, simulator

GRADIENT = {
    "clients": 3, "samples": 20, "rounds": 4, "lr": 0.5, "record_clip": 1.0, "sensitivity": "gradient", "model": "softmax",
    "calibration": "exact", "adversary": "eavesdropper", "epsilon": 3.0, "delta": 1e-5, "features": "raw",
}  # fmt: skip


def federation() -> nbafl.Federation:
    numbers = np.random.default_rng(0)
    return nbafl.Federation.from_arrays(
        [(numbers.normal(size=(20, 6)).astype(np.float32), numbers.integers(3, size=20)) for _ in range(3)],
        outputs=3,
    )


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 3))


def public(path, **changes) -> str:
    weights = {"1.weight": torch.full((3, 6), 0.25), "1.bias": torch.arange(3.0), **changes}
    save_file({name: value for name, value in weights.items() if value is not None}, path)
    return str(path)


def test_a_run_starts_from_public_weights_and_says_so(tmp_path):
    plan = nbafl.Plan(**GRADIENT, init=public(tmp_path / "public.safetensors"))
    run = nbafl.simulate(plan, federation(), out=tmp_path / "run", report=False)
    found = hashlib.sha256((tmp_path / "public.safetensors").read_bytes()).hexdigest()
    assert run.plan.init_sha256 == found
    assert any(
        "assumed to be public" in sentence and found[:16] in sentence for sentence in run.privacy["sentences"]
    )
    other = nbafl.simulate(nbafl.Plan(**GRADIENT), federation(), out=tmp_path / "other", report=False)
    moved = (
        load_file(run.path / "model.safetensors")["1.bias"]
        - load_file(other.path / "model.safetensors")["1.bias"]
    )
    assert abs(moved - torch.arange(3.0)).max() < 0.5, "the same noise, from another start"
    assert run.plan.digest() != other.plan.digest()
    elsewhere = public(tmp_path / "copy.safetensors")
    assert plan.with_fields(init=elsewhere).digest() == plan.digest(), "what counts is the content"


def test_a_resumed_run_needs_no_file(tmp_path):
    plan = nbafl.Plan(**GRADIENT, init=public(tmp_path / "public.safetensors"))
    whole = nbafl.simulate(plan, federation(), out=tmp_path / "whole", report=False)

    def stop(metrics):
        if metrics.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        nbafl.simulate(plan, federation(), out=tmp_path / "run", on_round=stop, report=False)
    (tmp_path / "public.safetensors").unlink()
    again = nbafl.simulate(plan, federation(), out=tmp_path / "run", resume=True, report=False)
    assert (again.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"1.bias": torch.zeros(4)}, r"'1\.bias' as float32 of shape \(4,\).*float32 of shape \(3,\)"),
        ({"1.bias": torch.zeros(3, dtype=torch.float16)}, "float16 of shape"),
        ({"1.bias": torch.tensor([0.0, float("nan"), 1.0])}, "not finite"),
        ({"1.weight": torch.full((3, 6), float("inf"))}, "not finite"),
        ({"1.bias": None}, r"lacks '1\.bias'"),
        ({"2.bias": torch.zeros(1)}, r"has '2\.bias'"),
    ],
)
def test_weights_that_do_not_fit_are_refused_before_anything_is_written(tmp_path, changes, told):
    plan = nbafl.Plan(**GRADIENT, init=public(tmp_path / "odd.safetensors", **changes))
    with pytest.raises(DataError, match=told):
        nbafl.simulate(plan, federation(), out=tmp_path / "run", report=False)
    assert not (tmp_path / "run").exists()


def test_files_that_are_no_weights_or_changed_are_refused(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        nbafl.Plan(**GRADIENT, init=str(tmp_path / "missing.safetensors"))
    (tmp_path / "text").write_text("no weights")
    with pytest.raises(DataError, match="not a safetensors file"):
        start_from(nbafl.Plan(**GRADIENT, init=str(tmp_path / "text")), network())
    plan = nbafl.Plan(**GRADIENT, init=public(tmp_path / "public.safetensors"))
    public(tmp_path / "public.safetensors", **{"1.bias": torch.ones(3)})
    with pytest.raises(Refused, match="not the one that was planned with"):
        start_from(plan, network())


def test_a_tied_weight_may_have_one_name(tmp_path):
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
            self.two.weight = self.one.weight

    given = {"one.weight": torch.ones(4, 4), "one.bias": torch.zeros(4), "two.bias": torch.zeros(4)}
    save_file(given, tmp_path / "tied.safetensors")
    started = start_from(nbafl.Plan(**GRADIENT, init=str(tmp_path / "tied.safetensors")), Tied())
    assert torch.equal(started.two.weight, torch.ones(4, 4))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return nbafl.simulate(
        nbafl.Plan(**GRADIENT, server_average=2), federation(), out=tmp_path_factory.mktemp("first") / "run"
    )


def test_a_run_goes_on_with_new_noise_under_what_is_left(finished, tmp_path):
    plan = finished.going_on(epsilon=4.0, rounds=5)
    assert plan.lr == finished.plan.lr
    job = plan.job()
    assert job.rounds_before == 4
    on = nbafl.simulate(plan, federation(), out=tmp_path / "second", report=False)
    told = on.privacy
    assert told["epsilon"] == pytest.approx(4.0, rel=1e-6)
    assert told["continues"][0]["model"] == finished.privacy["model_digest"]
    assert any("run by run" in sentence for sentence in told["sentences"])
    third = on.going_on(epsilon=4.5)
    assert [each.rounds for each in third.continues] == [4, 5]
    assert third.job().rounds_before == 9
    with pytest.raises(Refused, match="budget is spent"):
        on.going_on(epsilon=4.0 * (1 - 1e-6))


def test_no_noise_of_the_first_run_comes_again(finished, monkeypatch):
    """Noise is a function of (seed, round): the second run's rounds are counted from where the first one ended."""
    plan, data, drawn = finished.going_on(epsilon=4.0), federation(), []

    def spy(seed, round, *purpose):
        drawn.append((seed, round))
        return generator(seed, round, *purpose)

    monkeypatch.setattr(simulator, "generator", spy)
    job = plan.job()
    running = simulator.Simulator(data, build(plan.model, data.shape, 3, plan.seed), job, "cpu", measure=())
    running.step()
    running.step()
    assert drawn == [(plan.seed, 5), (plan.seed, 6)]
    assert running.round == 2


def test_a_trained_model_is_not_taken_for_public_weights(finished, tmp_path):
    plan = nbafl.Plan(**GRADIENT, init=str(finished.path / "model.safetensors"))
    with pytest.raises(Refused, match="--continues"):
        nbafl.simulate(plan, federation(), out=tmp_path / "run", report=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "changes", [{"seed": 3}, {"clients": 2}, {"adjacency": "drop"}, {"sensitivity": "client"}]
)
def test_data_and_unit_stay_the_same(finished, changes):
    with pytest.raises(UsageError, match=next(iter(changes))):
        finished.going_on(epsilon=9.0, **changes)


@pytest.mark.parametrize("changes", [{"noise": False}, {"per_round": 2}, {"sensitivity": "paper"}])
def test_runs_without_a_sum_cannot_be_gone_on_with(tmp_path, changes):
    plan = nbafl.Plan(**{**GRADIENT, "rounds": 1, **changes})
    run = nbafl.simulate(plan, federation(), out=tmp_path / "run", report=False)
    with pytest.raises(Refused, match="cannot be continued"):
        run.going_on(epsilon=9.0)


def test_an_unfinished_or_altered_run_cannot_be_gone_on_with(finished, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(finished.path, copy)
    with open(copy / "model.safetensors", "ab") as file:
        file.write(b"x")
    with pytest.raises(Refused, match="not the model"):
        nbafl.Run.load(copy).going_on(epsilon=9.0)
    (copy / "model.safetensors").unlink()
    with pytest.raises(NbaflError, match="not finished"):
        nbafl.Run.load(copy).going_on(epsilon=9.0)


def test_the_command_line_goes_on_and_refuses_a_spent_budget(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    common = [
        "run",
        "--clients",
        "2",
        "--samples",
        "20",
        "--rounds",
        "2",
        "--lr",
        "0.1",
        "--sensitivity",
        "gradient",
    ]
    common += [
        "--features",
        "raw",
        "--model",
        "softmax",
        "--delta",
        "1e-5",
        "--epsilon",
        "2",
        "--calibration",
        "exact",
    ]
    assert run_command([*common, "--out", "first", "--json"]) == 0
    assert run_command(["run", "--continues", "first", "--epsilon", "3", "--out", "second", "--json"]) == 0
    stated = json.loads((tmp_path / "second" / "privacy.json").read_text())
    assert stated["epsilon"] == pytest.approx(3.0, rel=1e-6)
    capsys.readouterr()
    assert run_command(["run", "--continues", "second", "--epsilon", "3", "--out", "third"]) == 1
    assert "budget is spent" in capsys.readouterr().err
    assert not (tmp_path / "third").exists()
    assert run_command(["run", "--continues", "first", "--epsilon", "3", "--seed", "1"]) == 2
    assert run_command(["run", "--continues", "nowhere", "--epsilon", "3"]) == 2
    assert run_command(["run", "--continues", "first", "--preset", "paper"]) == 2
    assert run_command(["plan", "--continues", "first", "--epsilon", "5", "--json"]) == 0
