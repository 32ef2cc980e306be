"""A plan that says little, over data and models given from Python: what it leaves out follows from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torch import nn

import nbafl
from nbafl.cli import run_command
from nbafl.errors import UsageError
from nbafl.run.plan_data import plan_for


def arrays(*sizes: int, numbers: bool = False) -> nbafl.Federation:
    random = np.random.default_rng(3)
    clients = []
    for size in sizes:
        x = random.normal(size=(size, 4)).astype("float32")
        clients.append((x, 0.3 * x[:, 0] if numbers else (x[:, 0] > 0).astype(int)))
    return nbafl.Federation.from_arrays(clients=clients[:-1], test=clients[-1])


def test_a_plan_that_says_nothing_trains_on_arrays_with_a_guarantee_that_holds(tmp_path: Path) -> None:
    run = nbafl.simulate(nbafl.Plan(rounds=20), arrays(600, 900, 300), out=tmp_path / "run", report=False)
    assert (run.plan.clients, run.plan.sizes, run.plan.features) == (2, (600, 900), "raw")
    assert run.plan.summary()["guarantee"]["eavesdropper"]["epsilon"] == pytest.approx(1, rel=1e-6)
    assert not run.plan.summary()["conditional"]
    assert run.summary()["test_accuracy"] > 0.8


def test_settings_follow_from_the_data_as_if_they_had_been_given() -> None:
    equal = plan_for(nbafl.Plan(epsilon=3), arrays(500, 500, 100))
    assert equal == nbafl.Plan(epsilon=3, clients=2, samples=500, features="raw")
    numbers = plan_for(nbafl.Plan(epsilon=3), arrays(500, 500, 100, numbers=True))
    assert numbers == nbafl.Plan(epsilon=3, clients=2, samples=500, features="raw", task="regression")
    assert numbers.lr != equal.lr


def test_what_was_given_stays() -> None:
    given = nbafl.Plan(clients=2, samples=500, features="raw", lr=0.5, rounds=3)
    assert plan_for(given, arrays(500, 500, 100)) is given


@pytest.mark.parametrize("fields", [{"clients": 3}, {"samples": 7}, {"sizes": (500, 400)}])
def test_a_plan_that_contradicts_the_data_is_refused(tmp_path: Path, fields: dict) -> None:
    with pytest.raises(UsageError):
        nbafl.simulate(nbafl.Plan(**fields), arrays(500, 500, 100), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_of_ones_own_sees_the_digits_themselves() -> None:
    digits = nbafl.Federation.mnist(clients=2, samples=30)
    assert plan_for(nbafl.Plan(), digits).features == "scattering"
    assert plan_for(nbafl.Plan(), digits, nn.Linear(784, 10)).features == "raw"
    assert plan_for(nbafl.Plan(), digits, "mlp").features == "raw"
    assert plan_for(nbafl.Plan(), digits).samples == 30


def test_a_config_file_of_the_first_release_leaves_the_counts_to_a_folder(tmp_path: Path, capsys) -> None:
    folder = tmp_path / "clinics"
    folder.mkdir()
    for name in ("a", "b"):
        rows = "\n".join(f"{row / 40},{row % 2}" for row in range(40))
        (folder / f"{name}.csv").write_text(f"x,y\n{rows}\n")
    config = tmp_path / "plan.toml"
    config.write_text(f'dataset = "{folder}"\ntarget = "y"\nepsilon = 60\n')
    assert run_command(["plan", "--json", "--config", str(config)]) == 0
    assert '"conditional": true' in capsys.readouterr().out  # the rule of 0.1.0's defaults


@pytest.mark.parametrize("outputs", [None, 3])
def test_a_number_of_classes_read_from_the_targets_is_told(tmp_path: Path, outputs: int | None) -> None:
    """One record of a class nobody else has makes a larger model: no epsilon covers that."""
    random = np.random.default_rng(0)
    clients = [(random.normal(size=(20, 4)).astype("float32"), np.arange(20) % 3) for _ in range(2)]
    data = nbafl.Federation.from_arrays(clients, outputs=outputs)
    run = nbafl.simulate(nbafl.Plan(rounds=2), data, out=tmp_path / "run", report=False)
    told = " ".join([*run.privacy["not_covered"], *run.privacy["assumptions"]])
    assert ("the number of classes (3" in told) == (outputs is None)


def test_a_client_as_a_whole_keeps_its_public_number_of_records() -> None:
    plan = nbafl.Plan(clients=2, sizes=(30, 70), features="raw", sensitivity="client", clip=1.0)
    assert "The number of records of each client is public." in plan.assumptions()
