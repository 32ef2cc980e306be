"""A federation of hospitals: a public schema, persons with many rows, class weights, and predictions from its folder."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from federation_processes import Federation, Nursery

from nbafl import Run
from nbafl.cli import run_command
from nbafl.plan import Plan

pytestmark = pytest.mark.e2e
SCHEMA = """public = true
target = "outcome"
task = "binary"
classes = ["well", "ill"]
person = "patient"
ignore = ["note"]
[columns.age]
kind = "number"
range = [0, 100]
fill = 50
[columns.sex]
kind = "category"
categories = ["f", "m", "missing"]
fill = "missing"
"""
PATIENTS = 30


def hospital(path: Path, seed: int) -> Path:
    """Thirty patients with one to four rows each; some ages are missing, one is beyond the public range."""
    chance, lines = np.random.default_rng(seed), ["patient,note,age,sex,outcome"]
    for patient in range(PATIENTS):
        for _ in range(int(chance.integers(1, 5))):
            age = chance.integers(20, 95)
            told = "" if chance.random() < 0.1 else str(age)
            lines.append(
                f"p{patient},x{patient},{told},{chance.choice(['f', 'm'])},{'ill' if age > 55 else 'well'}"
            )
    lines.append(f"p0,x,140,x,{'ill'}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def nursery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nursery]:
    monkeypatch.setenv("NBAFL_ANCHORS", str(tmp_path / "anchors"))
    made = Nursery(tmp_path)
    yield made
    made.close()


def test_hospitals_train_by_a_schema_and_their_folder_predicts(
    tmp_path: Path, nursery: Nursery, capsys
) -> None:
    data, apart = tmp_path / "data", tmp_path / "apart"
    data.mkdir(), apart.mkdir()
    (data / "schema.toml").write_text(SCHEMA)
    files = [hospital(apart / f"{name}.csv", seed) for seed, name in enumerate(("north", "south", "west"))]
    test = hospital(apart / "test.csv", 9)
    words = f"--rounds 4 --samples {PATIENTS} --model softmax --sensitivity gradient --lr 4 --record-clip 0.5"
    words += " --epsilon 8 --delta 1e-3 --calibration exact --class-weights ill=2"
    federation = Federation(tmp_path, 3, "--dataset", data, "--test", test, *words.split())
    agreed = Plan.from_toml(federation.home / "plan.toml")
    assert (agreed.task, agreed.target, agreed.person) == ("binary", "outcome", "patient"), (
        "as the schema says"
    )
    assert agreed.release().uplink[0] == pytest.approx(2 * 4.0 * 0.5 * 2 / PATIENTS)
    server = nursery.start("serve", *federation.serve())
    clients = [nursery.start(f"join-{n}", *federation.join(n, data=file)) for n, file in enumerate(files)]
    assert server.finish() == 0, server.output
    for client in clients:
        assert client.finish() == 0, client.output
        assert "1 value of 'age' outside the public range cut off" in client.output
        assert "1 value of 'sex' in no category of the schema" in client.output
    run = federation.home / "run"
    stated = json.loads((run / "privacy.json").read_text())
    assert stated["unit"] == "person"
    assert json.loads((run / "facts.json").read_text())["read_from_data"] == [], "the schema is public"
    assert all(line["test_accuracy"] is not None for line in federation.metrics)
    capsys.readouterr()
    new = tmp_path / "new.csv"
    new.write_text("age,sex\n30,f\n,m\n88,other\n")
    assert run_command(["predict", str(run), str(new), "-o", str(tmp_path / "out.csv")]) == 0
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    model = Run.load(run).model()
    assert next(model.parameters()).shape == (1, 5), "one output; age, its indicator and three categories"
    x = torch.tensor([[-0.4, 0, 1, 0, 0], [0, 1, 0, 1, 0], [0.76, 0, 0, 0, 0]])
    second = torch.sigmoid(model(x)).detach()[:, 0]
    assert [float(row["probability ill"]) for row in rows] == pytest.approx(second.tolist(), abs=1e-5)
    assert [row["prediction"] for row in rows] == ["ill" if p > 0.5 else "well" for p in second.tolist()]
