"""Ten traps that a trial of the first release fell into without a word; each is a sentence now."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.paper_setting import Plan

import nbafl
from nbafl.cli import run_command
from nbafl.errors import DataError

ROWS = "".join(f"{20 + i},{'fm'[i % 2]},{'ill' if i > 30 else 'well'}\n" for i in range(60))
HEAD = "age,sex,outcome\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "hospitals"
    made.mkdir()
    for name in ("north", "south"):
        (made / f"{name}.csv").write_text(HEAD + ROWS)
    return made


def said(folder: Path, **options: object) -> str:
    """Everything the data room says about a folder: its remarks, or why it refuses."""
    try:
        return " ".join(nbafl.Federation.from_csv(folder, **{"target": "outcome", **options}).remarks)
    except DataError as error:
        return str(error)


def test_1_a_test_file_is_asked_about_and_not_trained_on(folder, capsys):
    (folder / "test.csv").write_text(HEAD + ROWS)
    assert run_command(["run", "--dataset", str(folder), "--target", "outcome"]) == 2
    assert "test.csv, which may be the test set or a client" in capsys.readouterr().err
    assert nbafl.Federation.from_csv(folder, target="outcome", test="none").clients == 3
    assert nbafl.Federation.from_csv(folder, target="outcome", test=folder / "test.csv").clients == 2


def test_2_a_typing_error_in_a_class_is_pointed_out(folder):
    (folder / "south.csv").write_text(HEAD + ROWS.replace("ill", "il", 1))
    assert "Rare in the target 'outcome': 'il' (1 of 120 records)" in said(folder)
    (folder / "test.csv").write_text(HEAD + ROWS + "50,f,sick\n")
    assert "'sick' (1); those records are left out of the test" in said(folder, test=folder / "test.csv")


def test_3_values_that_are_cut_off_are_counted(folder):
    assert "48 values of 'age' outside the public range cut off" not in said(folder)
    assert "29 values of 'age' outside the public range cut off" in said(folder, scale={"age": (0, 50)})


def test_4_an_unknown_category_is_counted(folder):
    assert run_command(["data", "schema", str(folder), "--target", "outcome"]) == 0
    (folder / "north.csv").write_text(HEAD + ROWS.replace(",f,", ",x,", 2))
    assert "2 values of 'sex' in no category of the schema" in said(folder)


def test_5_classes_one_and_two_are_two_classes(folder):
    (folder / "north.csv").write_text(HEAD + ROWS.replace("ill", "1").replace("well", "2"))
    (folder / "south.csv").write_text(HEAD + ROWS.replace("ill", "2").replace("well", "1"))
    read = nbafl.Federation.from_csv(folder, target="outcome")
    assert (read.task, read.classes, set(read.y.tolist())) == ("binary", ("1", "2"), {0, 1})
    with pytest.raises(
        DataError, match=r"classes 1 to 2, and none is 0: number them from 0, or say outputs=3"
    ):
        nbafl.Federation.from_arrays([(np.ones((4, 2)), np.array([1, 2, 1, 2]))])
    assert nbafl.Federation.from_arrays([(np.ones((4, 2)), np.array([1, 2, 1, 2]))], outputs=3).outputs == 3


def test_6_zeros_and_ones_with_a_decimal_point_are_classes_or_asked_about(folder):
    for name in ("north", "south"):
        (folder / f"{name}.csv").write_text(HEAD + ROWS.replace("ill", "1.0").replace("well", "0.0"))
    assert nbafl.Federation.from_csv(folder, target="outcome").task == "binary"
    with pytest.raises(DataError, match="only 0 and 1 as decimal numbers: say task="):
        nbafl.Federation.from_arrays([(np.ones((4, 2)), np.array([0.0, 1.0, 1.0, 0.0]))])


def test_7_whole_numbers_that_may_be_amounts_are_asked_about(folder):
    for name in ("north", "south"):
        rows = "".join(f"{20 + i},f,{(i % 5) * 10}\n" for i in range(60))
        (folder / f"{name}.csv").write_text(HEAD + rows)
    assert "say --task classification or --task regression" in said(folder)
    assert nbafl.Federation.from_csv(folder, target="outcome", task="regression").task == "regression"
    for name in ("north", "south"):
        (folder / f"{name}.csv").write_text(HEAD + "".join(f"{20 + i},f,{i % 3}\n" for i in range(60)))
    assert "are taken for 3 classes; say --task regression" in said(folder)


def test_8_a_rare_class_that_is_never_found_is_said(folder, tmp_path, capsys):
    for name in ("north", "south"):
        rows = "".join(f"{20 + i % 50},f,{'ill' if i % 33 == 0 else 'well'}\n" for i in range(330))
        (folder / f"{name}.csv").write_text(HEAD + rows)
    assert "97% of the records are 'well'" in said(folder)
    words = [
        "run",
        "--dataset",
        str(folder),
        "--target",
        "outcome",
        "--rounds",
        "2",
        "--lr",
        "0.001",
        "--no-noise",
    ]
    assert run_command([*words, "--model", "softmax", "--out", str(tmp_path / "run")]) == 0
    assert "never finds 'ill' (recall 0)" in capsys.readouterr().out.replace("\n", " ")
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert scores["accuracy"] == scores["constant"]["accuracy"]
    assert scores["balanced_accuracy"] == 0.5


def test_9_a_wrong_target_with_missing_values_is_refused_with_counts(folder):
    (folder / "north.csv").write_text(HEAD + ROWS.replace(",f,", ",,"))
    assert "of 'sex' in row 2" in said(folder, target="sex")
    assert "is missing, and no rule fills in a target: leave such rows out (30 such values)" in said(
        folder, target="sex"
    )
    assert "The target column 'outcom' is not in" in said(folder, target="outcom")


def test_10_delta_is_held_against_the_largest_client():
    plan = Plan(sizes=(50, 2000), delta=0.001, sensitivity="gradient", lr=0.1, rounds=5, model="softmax")
    assert any("0.001" in warning and "0.0005" in warning for warning in plan.warnings())
    assert not any("1/m" in warning for warning in plan.with_fields(delta=1e-5).warnings())


def test_all_is_described_before_training(folder, capsys):
    (folder / "south.csv").write_text("age,sex,outcome\n" + ROWS + ",m,ill\n")
    assert run_command(["data", "check", str(folder), "--target", "outcome", "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert told["clients"] == {"north": 60, "south": 61}
    age = next(column for column in told["columns"] if column["name"] == "age")
    assert age["missing"] == {"south": 1}
    assert told["classes"]["north"] == {"ill": 29, "well": 31}
    assert "'age' in row 62" in told["problems"][0]


def test_identifiers_are_refused_with_the_way_out(folder):
    for name in ("north", "south"):
        rows = "".join(f"p{name}{i},{20 + i},{'ill' if i > 30 else 'well'}\n" for i in range(60))
        (folder / f"{name}.csv").write_text("patient,age,outcome\n" + rows)
    assert "'patient' (120 different values) looks like an identifier" in said(folder)
    assert "--ignore patient" in said(folder)
    assert nbafl.Federation.from_csv(folder, target="outcome", ignore=["patient"]).shape == (1,)
    assert run_command(["data", "schema", str(folder), "--target", "outcome"]) == 0
    assert 'ignore = ["patient"]' in (folder / "schema.toml").read_text()


@pytest.mark.parametrize(("separator", "encoding"), [(";", "utf-8"), ("\t", "cp1252"), ("|", "utf-16")])
def test_separators_and_encodings_are_found_out_and_said(tmp_path, separator, encoding):
    rows = "größe,sex,outcome\n" + "".join(
        f"{i},{'fm'[i % 2]},{'no' if i % 3 else 'yes'}\n" for i in range(12)
    )
    (tmp_path / "a.csv").write_text(rows.replace(",", separator), encoding=encoding)
    read = nbafl.Federation.from_csv(tmp_path, target="outcome")
    assert read.shape == (3,)
    assert any("between its values" in remark for remark in read.remarks)
    assert (encoding == "cp1252") == any("Windows-1252" in remark for remark in read.remarks)
    (tmp_path / "a.csv").write_text("a;t\n1,5;x\n2;y\n")
    comma = nbafl.Federation.from_csv(tmp_path, target="t")
    assert comma.x.tolist() == [[1.5], [2.0]]
    assert any("decimal comma" in remark for remark in comma.remarks)


def test_a_check_tells_everything_at_once(tmp_path, capsys):
    folder = tmp_path / "hospitals"
    folder.mkdir()
    rows = [f"{number},{30 + number},{'ill' if number % 2 else 'well'}" for number in range(40)]
    (folder / "a.csv").write_text("\n".join(["patient,age,outcome", *rows]))
    rows = [f"9{row}" for row in rows]
    rows[3], rows[7] = "93,,ill", "97,37,"
    (folder / "b.csv").write_text(
        "\n".join(["patient;age;outcome;extra", *(f"{row};1" for row in rows)]).replace(",", ";")
    )
    assert run_command(["data", "check", str(folder), "--target", "outcome", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    columns, persons, missing = found["problems"]
    assert "it has 'extra' besides" in columns
    assert "'patient' (80 different values) looks like an identifier" in persons
    assert "2 problems: The value of 'age' in row 5" in missing
    assert "The value of 'outcome' in row 9" in missing
    assert any("read with semicolons" in remark for remark in found["remarks"])


def test_no_rule_fills_in_a_target(tmp_path, capsys):
    folder = tmp_path / "hospitals"
    folder.mkdir()
    rows = "\n".join(f"{number},{'' if number == 3 else number / 4}" for number in range(1, 30, 2))
    (folder / "a.csv").write_text(f"age,stay\n{rows}\n")
    words = ["--target", "stay"]
    assert run_command(["data", "schema", str(folder), *words]) == 0
    told = (
        "The value of 'stay' in row 3 of {} is missing, and no rule fills in a target: leave such rows out."
    )
    assert f"Training will still refuse: {told.format(folder / 'a.csv')}" in capsys.readouterr().out
    for _ in range(2):
        assert run_command(["run", "--dataset", str(folder), *words, "--out", str(tmp_path / "run")]) == 2
        assert capsys.readouterr().err == f"nbafl: {told.format(folder / 'a.csv')}\n"
        (folder / "schema.toml").unlink(missing_ok=True)
