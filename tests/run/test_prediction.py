"""A model in use: predictions by the run folder alone, and what the folder says about itself."""

from __future__ import annotations

import csv
import gc
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.paper_setting import Plan

import nbafl
from nbafl.cli import run_command
from nbafl.errors import DataError, UsageError
from nbafl.protocol import probabilities


def table(path: Path, rows: int, seed: int) -> None:
    numbers = random.Random(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "sex", "score", "outcome"])
        for _ in range(rows):
            age = numbers.randint(20, 90)
            score = "" if numbers.random() < 0.1 else f"{numbers.gauss(0, 1):.3f}"
            writer.writerow([age, numbers.choice("fm"), score, "ill" if age > 55 else "well"])


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    folder = tmp_path / "hospitals"
    folder.mkdir()
    for seed, name in enumerate(("north", "south", "west")):
        table(folder / f"{name}.csv", 60 + 10 * seed, seed)
    table(folder / "test.csv", 40, 9)
    assert run_command(["data", "schema", str(folder), "--target", "outcome"]) == 0
    return folder


def train(folder: Path, out: Path, *more: str) -> nbafl.Run:
    words = ["run", "--dataset", str(folder), "--test", str(folder / "test.csv"), "--target", "outcome"]
    words += [
        "--sensitivity",
        "gradient",
        "--model",
        "softmax",
        "--lr",
        "1",
        "--rounds",
        "20",
        "--epsilon",
        "20",
    ]
    assert run_command([*words, *more, "--out", str(out), "--json"]) == 0
    return nbafl.Run.load(out)


def test_predictions_are_the_models_own_test_answers_wherever_the_folder_is(tmp_path, hospitals, capsys):
    run = train(hospitals, tmp_path / "run")
    federation = nbafl.Federation.from_csv(hospitals, test=hospitals / "test.csv")
    assert federation.test is not None
    with torch.no_grad():
        own = probabilities(run.model()(torch.from_numpy(federation.test[0])).double()).numpy()
    moved = tmp_path / "elsewhere" / "moved"
    shutil.copytree(run.path, moved)
    shutil.rmtree(run.path)
    answers = nbafl.Run.load(moved).predict(hospitals / "test.csv")
    np.testing.assert_allclose(answers.probabilities, own, rtol=0, atol=1e-12)
    right = np.mean([federation.classes.index(name) for name in answers.values] == federation.test[1])
    assert right == pytest.approx(nbafl.Run.load(moved).summary()["test_accuracy"])
    assert answers.to_frame().columns.tolist() == ["prediction", "probability ill", "probability well"]
    capsys.readouterr()
    assert (
        run_command(["predict", str(moved), str(hospitals / "test.csv"), "-o", str(tmp_path / "out.csv")])
        == 0
    )
    with open(tmp_path / "out.csv", newline="") as file:
        written = list(csv.DictReader(file))
    assert [float(row["probability ill"]) for row in written] == pytest.approx(own[:, 0].tolist(), abs=1e-12)
    assert "missing, filled by the schema's rule" in capsys.readouterr().err


def test_new_rows_need_no_target_and_follow_the_schema(tmp_path, hospitals):
    run = train(hospitals, tmp_path / "run")
    answers = run.predict({"age": [70, 30], "sex": ["f", "x"], "score": [0.1, None]})
    assert len(answers.values) == 2
    assert any("in no category" in remark for remark in answers.remarks)
    with pytest.raises(DataError, match="lacks the column 'score'"):
        run.predict({"age": [70], "sex": ["f"]})
    with pytest.raises(DataError, match="is not a number"):
        run.predict({"age": ["old"], "sex": ["f"], "score": [1]})


def test_parquet_and_csv_and_frames_give_the_same_model_bit_for_bit(tmp_path, hospitals):
    import pandas
    import polars

    by_csv = train(hospitals, tmp_path / "csv")
    other = tmp_path / "parquet"
    other.mkdir()
    shutil.copy(hospitals / "schema.toml", other)
    frames = {}
    for path in hospitals.glob("*.csv"):
        frames[path.stem] = pandas.read_csv(path)
        frames[path.stem].to_parquet(other / f"{path.stem}.parquet")
    words = [
        "run",
        "--dataset",
        str(other),
        "--test",
        str(other / "test.parquet"),
        "--sensitivity",
        "gradient",
    ]
    words += ["--model", "softmax", "--lr", "1", "--rounds", "20", "--epsilon", "20", "--json"]
    assert run_command([*words, "--out", str(tmp_path / "run")]) == 0
    left, right = by_csv.model().state_dict(), nbafl.Run.load(tmp_path / "run").model().state_dict()
    assert all(torch.equal(left[name], right[name]) for name in left)
    test = frames.pop("test")
    schema = hospitals / "schema.toml"
    named = dict(sorted(frames.items()))
    read = nbafl.Federation.from_csv(hospitals, test=hospitals / "test.csv")
    for kind in (lambda frame: frame, polars.from_pandas):
        given = nbafl.Federation.from_frames(
            {n: kind(f) for n, f in named.items()}, test=kind(test), schema=schema
        )
        assert (given.x == read.x).all()
        assert (given.y == read.y).all()
        assert tuple(given.names) == tuple(read.names)


def test_the_numeric_part_is_exported_with_the_schema_beside_it(tmp_path, hospitals, capfd, recwarn):
    onnxruntime = pytest.importorskip("onnxruntime")
    run = train(hospitals, tmp_path / "run")
    gc.collect()  # what earlier tests left has its say before
    capfd.readouterr()
    recwarn.clear()
    assert run_command(["predict", str(run.path), "--onnx", str(tmp_path / "model.onnx")]) == 0
    assert capfd.readouterr() == (f"Wrote {tmp_path / 'model.onnx'}\n", "")
    # What the garbage collector finds of an earlier test's sockets while this one runs is not the export's word.
    words = [str(each.message) for each in recwarn if not issubclass(each.category, ResourceWarning)]
    assert words == []
    federation = nbafl.Federation.from_csv(hospitals, test=hospitals / "test.csv")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    (found,) = session.run(None, {"records": federation.test[0]})
    with torch.no_grad():
        expected = run.model()(torch.from_numpy(federation.test[0])).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert (tmp_path / "model.schema.toml").read_text() == (run.path / "schema.toml").read_text()


def test_a_run_from_python_says_what_it_was_made_of_and_goes_on(tmp_path):
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(30, 4)).astype(np.float32), rng.integers(0, 2, 30)) for _ in range(3)]
    federation = nbafl.Federation.from_arrays(clients)
    plan = Plan(clients=3, samples=30, rounds=3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 2))
    run = nbafl.simulate(plan, federation, model=model, out=tmp_path / "run")
    written = (run.path / "plan.toml").read_text()
    assert 'dataset = "mnist"' not in written
    assert 'model = "mlp"' not in written
    assert json.loads((run.path / "facts.json").read_text())["data"] == "given from Python"
    page = (run.path / "report.html").read_text()
    assert "data mnist" not in page
    assert "model mlp" not in page
    (run.path / "model.safetensors").unlink()
    again = nbafl.simulate(plan, federation, model=model, out=run.path, resume=True)
    assert again.finished
    assert again.predict(clients[0][0], model=torch.nn.Sequential(torch.nn.Linear(4, 2))).values.shape == (
        30,
    )
    with pytest.raises(UsageError, match="given from Python"):
        again.predict(clients[0][0])
    np.save(tmp_path / "whole.npy", clients[0][0])
    whole = (tmp_path / "whole.npy").read_bytes()
    pickled = b"\x80\x04\x95" + b"x" * 40
    for content in (b"", b"age,sex\n1,f\n", whole[:-1], whole[:30], whole.replace(b"}", b"{"), pickled):
        (tmp_path / "broken.npy").write_bytes(content)
        with pytest.raises(
            DataError, match=r"not a whole array of numbers as numpy\.save writes it"
        ) as refused:
            again.predict(tmp_path / "broken.npy")
        assert "pickle" not in str(refused.value)
    assert run_command(["run", "--resume", str(run.path)]) == 2


def test_what_was_read_from_the_data_stands_in_the_statement(tmp_path, hospitals):
    """Issue 10, point 4: categories, classes and columns read from private files shape the model."""
    run = train(hospitals, tmp_path / "drafted")
    said = run.privacy
    assert any("the categories of 'sex'" in each and "read from" in each for each in said["not_covered"])
    assert any("were read from the private records" in each for each in said["assumptions"])
    schema = hospitals / "schema.toml"
    schema.write_text(schema.read_text().replace("public = false", "public = true"))
    declared = train(hospitals, tmp_path / "declared").privacy
    assert not any(
        "read from the private" in each for each in (*declared["not_covered"], *declared["assumptions"])
    )
    schema.unlink()
    for path in hospitals.glob("*.csv"):
        rows = [row for row in path.read_text().splitlines() if ",," not in row]
        path.write_text("\n".join(rows) + "\n")
    bare = train(hospitals, tmp_path / "bare").privacy
    assert any("the classes 'ill', 'well'" in each for each in bare["not_covered"])


def test_a_model_of_records_that_had_features_already_is_used_on_such_records(tmp_path):
    images = np.random.default_rng(0).random((40, 1, 8, 8), dtype=np.float32)
    y = np.arange(40) % 2
    given = nbafl.Federation.from_arrays([(images[:20], y[:20]), (images[20:], y[20:])], test=(images, y))
    seen = given.with_features("scattering")
    run = nbafl.simulate(nbafl.Plan(rounds=2), seen, out=tmp_path / "run")
    assert run.plan.features == "raw"
    found = nbafl.Run.load(run.path).predict(seen.test[0]).values
    assert np.mean(found == y.astype(str)) == pytest.approx(run.metrics[-1]["test_accuracy"])
