"""Data of one's own on the command line: a folder of CSV files decides who has what, whatever the preset."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from nbafl.cli import run_command
from nbafl.data.schema_file import read_schema
from nbafl.plan import Plan

SIZES = (60, 90, 120)


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    numbers = random.Random(0)
    folder = tmp_path / "hospitals"
    folder.mkdir()
    for name, size in zip("abc", SIZES, strict=True):
        ages = [numbers.randint(20, 90) for _ in range(size)]
        rows = [f"{age},{numbers.choice('fm')},{'ill' if age > 55 else 'well'}" for age in ages]
        (folder / f"{name}.csv").write_text("age,sex,outcome\n" + "\n".join(rows) + "\n")
    return folder


def _run(capsys, *words: object) -> tuple[int, str, str]:
    code = run_command([str(word) for word in words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_numbers_without_a_public_range_are_pointed_out(capsys, tmp_path, hospitals):
    words = ("run", "--dataset", hospitals, "--target", "outcome", "--rounds", 2, "--json")
    code, out, err = _run(capsys, *words, "--out", tmp_path / "raw")
    assert code == 0
    assert json.loads(out)["rounds_done"] == 2
    assert err.count("Note: Numbers beyond 10 in the column 'age'") == 1
    (hospitals / "ranges.toml").write_text("age = [0, 100]\n")
    code, _, err = _run(capsys, *words, "--out", tmp_path / "scaled")
    assert code == 0
    assert "Numbers beyond" not in err


def test_a_model_to_give_away_comes_from_a_federation(capsys, tmp_path, hospitals):
    words = ("run", "--dataset", hospitals, "--target", "outcome", "--rounds", 1, "--seed", 7, "--json")
    _, _, err = _run(capsys, *words, "--out", tmp_path / "noisy")
    assert err.count("Note: A simulation's noise follows from its seed (7)") == 1
    _, _, err = _run(capsys, *words, "--no-noise", "--out", tmp_path / "bare")
    assert "seed" not in err


def test_the_private_preset_takes_the_files_as_they_are_and_keeps_its_promise(capsys, tmp_path, hospitals):
    (hospitals / "ranges.toml").write_text("age = [0, 100]\n")
    words = ("run", "--preset", "private", "--dataset", hospitals, "--target", "outcome")
    code, out, _ = _run(capsys, *words, "--rounds", 30, "--json", "--out", tmp_path / "run")
    assert code == 0
    told = json.loads(out)
    assert told["plan"]["claimed"]["epsilon"] == 1.0
    assert told["plan"]["guarantee"]["eavesdropper"]["epsilon"] == pytest.approx(1.0, abs=1e-6)
    assert not told["plan"]["conditional"]
    assert "clients = 3" in (tmp_path / "run" / "plan.toml").read_text()


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--samples", 7, f"samples must be unset: the files in 'HERE' hold {list(SIZES)} records, got 7."),
        ("--partition", "shards:2", "partition must be unset for a folder of CSV files"),
        ("--clients", 4, "clients must be the number of files in 'HERE' (3), got 4."),
        ("--features", "scattering", "features must be raw for records of shape (3,)"),
    ],
)
def test_what_the_files_decide_cannot_be_said_otherwise(capsys, tmp_path, hospitals, option, value, told):
    words = ("run", "--dataset", hospitals, "--target", "outcome", option, value)
    code, _, err = _run(capsys, *words, "--out", tmp_path / "run")
    assert code == 2
    assert told.replace("HERE", str(hospitals)) in err
    assert not (tmp_path / "run").exists()


def test_run_says_that_delta_is_too_large_for_the_largest_client(capsys, tmp_path, hospitals):
    words = ("run", "--dataset", hospitals, "--target", "outcome", "--rounds", 1, "--sensitivity", "gradient")
    code, out, _ = _run(capsys, *words, "--delta", "0.01", "--out", tmp_path / "run")
    assert code == 0
    assert "Warning: delta 0.01 is not below 1/m = 0.00833333 of the largest client" in out


SECURE = (
    "--aggregation",
    "secure",
    "--adversary",
    "curious-server",
    "--sensitivity",
    "gradient",
    "--epsilon",
    8,
)


@pytest.mark.parametrize("model", ["softmax", "mlp", "nbafl.simulation.models:softmax"])
def test_secure_aggregation_finds_the_number_of_coordinates(capsys, tmp_path, hospitals, model):
    (hospitals / "ranges.toml").write_text("age = [0, 100]\n")
    words = ("--dataset", hospitals, "--target", "outcome", "--model", model, "--rounds", 1, *SECURE)
    code, out, err = _run(capsys, "run", *words, "--json", "--out", tmp_path / "run")
    assert code == 0, err
    trained = json.loads((tmp_path / "run" / "privacy.json").read_text())["model_parameters"]
    assert json.loads(out)["plan"]["aggregation"]["dimension"] == trained
    code, out, _ = _run(capsys, "plan", *words, "--json")
    assert code == 0
    assert json.loads(out)["aggregation"]["dimension"] == trained
    code, _, err = _run(capsys, "run", *words, "--dimension", trained + 1, "--out", tmp_path / "wrong")
    assert code == 2
    assert f"dimension must be the model's number of coordinates, {trained}" in err


def test_a_model_of_ones_own_on_mnist_needs_no_number_either(capsys):
    words = ("plan", "--model", "nbafl.simulation.models:mlp", "--features", "raw", "--clients", 10, *SECURE)
    code, out, err = _run(capsys, *words, "--json")
    assert code == 0, err
    assert json.loads(out)["aggregation"]["dimension"] == 203_530


def test_a_federation_over_tables_is_prepared_without_the_number(capsys, tmp_path, hospitals):
    (hospitals / "ranges.toml").write_text("age = [0, 100]\n")
    words = (
        "serve",
        "--prepare",
        "--home",
        tmp_path / "home",
        "--clients",
        3,
        "--samples",
        60,
        "--target",
        "outcome",
    )
    code, _, err = _run(
        capsys, *words, "--test", hospitals / "a.csv", "--dataset", "hospital", "--model", "softmax", *SECURE
    )
    assert code == 0, err
    handed_out = Plan.from_toml(tmp_path / "home" / "handout" / "plan.toml")
    schema = read_schema(tmp_path / "home" / "handout" / "schema.toml")
    assert handed_out.dimension == (schema.features + 1) * schema.outputs
