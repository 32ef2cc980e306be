"""Columns that tell whom a record is about: found by rule, named all at once, and none of their values in a file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from nbafl.cli import run_command
from nbafl.data.identifying import identifying
from nbafl.data.tables import Table


def judged(values: list[str], name: str = "column") -> str | None:
    table = Table("a.csv", {name: values}, range(2, len(values) + 2))
    found = identifying([table], [name])
    return found[0].looks if found else None


def texts(count: int, rows: int) -> list[str]:
    return [f"v{i % count}" for i in range(rows)]


@pytest.mark.parametrize(
    ("values", "name", "looks"),
    [
        ([f"v{i}" for i in range(10)], "who", "looks like an identifier"),
        ([f"v{i}" for i in range(9)], "who", None),
        ([str(i) for i in range(30)], "row", "looks like an identifier"),
        ([str(i) for i in range(29)], "row", None),
        ([str(i + 0.5) for i in range(300)], "pressure", None),
        ([*(str(i + 0.5) for i in range(300)), "twelve"], "pressure", None),
        (texts(21, 209), "town", "has few rows for each of its values"),
        (texts(21, 210), "town", None),
        (texts(20, 40), "town", None),
        (texts(100, 5000), "town", None),
        (texts(100, 5000), "patient", "looks like persons with several rows each"),
        (texts(100, 5000), "impatience", None),
        ([str(i % 100) for i in range(300)], "patient_id", "looks like persons with several rows each"),
        ([str(i % 100) for i in range(300)], "age", None),
        (["2024-01-31", "2024-02-01"] * 3, "seen", "holds dates"),
        (["2024-01-31T10:00:00Z", "2024-02-01 11:30"] * 3, "seen", "holds dates"),
        (["31.01.2024", "1/2/24", "31 Jan 2024", "Feb 1, 2024"], "seen", "holds dates"),
        (["20240131", "20240201.0", "19991231"] * 3, "seen", "holds dates"),
        (["20240131103000", "202402012359"] * 3, "seen", "holds dates"),
        (["20241331", "20240132", "20240199"] * 3, "platelets", None),
        (["17000101", "22000101"], "platelets", None),
        (["1.5", "2.5"], "seen", None),
        (["10-19", "20-29"], "age group", None),
        (["A 1/2", "B 3/4"], "seen", None),
    ],
)  # fmt: skip
def test_the_rule(values, name, looks):
    assert judged(values, name) == looks


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    rng = np.random.default_rng(3)
    row = 0
    for client in ("north", "south"):
        lines = ["row_id,patient,admitted,age,sex,outcome"]
        for _ in range(150):
            row += 1
            month, day = rng.integers(1, 13), rng.integers(1, 29)
            lines.append(
                f"{row},P{rng.integers(200):04d},2024-{month:02d}-{day:02d},{rng.integers(20, 90)},"
                f"{'fm'[row % 2]},{'ill' if rng.random() < 0.4 else 'well'}"
            )
        (tmp_path / f"{client}.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_a_drafted_schema_holds_no_value_of_a_person_or_a_date(hospitals, capsys):
    assert run_command(["data", "schema", str(hospitals), "--target", "outcome"]) == 0
    told, schema = capsys.readouterr().out, (hospitals / "schema.toml").read_text()
    assert "P0" not in schema
    assert "2024" not in schema
    assert 'ignore = ["row_id", "patient", "admitted"]' in schema
    assert "2 columns, 3 features" in told
    for name in ("row_id: looks like an identifier", "patient: looks like persons", "admitted: holds dates"):
        assert name in told
    assert "--person patient" in told


def test_a_check_names_them_all_at_once(hospitals, capsys):
    assert run_command(["data", "check", str(hospitals), "--target", "outcome", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    (problem,) = found["problems"]
    assert all(repr(name) in problem for name in ("row_id", "patient", "admitted"))
    assert "--ignore row_id,patient,admitted" in problem
    assert "--person patient" in problem
    remarks = {column["name"]: column["remark"] for column in found["columns"]}
    assert remarks["admitted"] == "holds dates"
    assert remarks["age"] == ""


@pytest.mark.parametrize(
    "ignore", [("--ignore", "row_id, admitted"), ("--ignore", "row_id", "--ignore", "admitted")]
)
def test_several_columns_are_left_out_by_commas(hospitals, capsys, ignore):
    words = [str(hospitals), "--target", "outcome", "--person", "patient", *ignore]
    assert run_command(["data", "check", *words]) == 0
    assert run_command(["data", "schema", *words]) == 0
    assert "Left out" not in capsys.readouterr().out
    schema = (hospitals / "schema.toml").read_text()
    assert 'ignore = ["row_id", "admitted"]' in schema
    assert 'person = "patient"' in schema


def test_nothing_but_identifiers_is_nothing_to_learn_from(tmp_path, capsys):
    rows = "".join(f"p{i},{'ab'[i % 2]}\n" for i in range(40))
    (tmp_path / "one.csv").write_text("name,outcome\n" + rows)
    assert run_command(["data", "schema", str(tmp_path), "--target", "outcome"]) == 2
    assert "'name', left out" in capsys.readouterr().err
    assert not (tmp_path / "schema.toml").exists()
