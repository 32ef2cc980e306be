"""CSV folders: what comes out of them, and that every flaw is told with file and row."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbafl import Federation
from nbafl.data import tabular
from nbafl.errors import DataError, UsageError

NORTH = "age,town,income,label\n30,Oslo,1.5,yes\n41,Bergen,2.5,no\n"
SOUTH = "age,town,income,label\n52,Oslo,3.5,no\n"


def folder(path: Path, **files: str | bytes) -> Path:
    for name, content in files.items():
        target = path / f"{name}.csv"
        target.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_a_folder_becomes_a_federation(tmp_path: Path) -> None:
    federation = Federation.from_csv(folder(tmp_path, south=SOUTH, north=NORTH), target="label")
    assert tuple(federation.names) == ("north", "south")
    assert federation.sizes.tolist() == [2, 1]
    assert federation.classes == ("no", "yes")
    assert (federation.task, federation.outputs) == ("binary", 1)
    x, y = federation.client(0)
    assert x.tolist() == [[30, 0, 1, 1.5], [41, 1, 0, 2.5]]  # age, Bergen, Oslo, income
    assert y.tolist() == [1, 0]


def test_categories_are_those_of_all_clients_and_not_of_the_test_file(tmp_path: Path) -> None:
    data = folder(tmp_path, a="c,t\nx,0\ny,1\n", b="c,t\nz,1\n", test="c,t\nw,0\nx,1\n")
    federation = Federation.from_csv(data, target="t", test=data / "test.csv")
    assert federation.clients == 2  # the test file is no client, though it lies in the folder
    assert federation.x.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert federation.test is not None
    assert federation.test[0].tolist() == [[0, 0, 0], [1, 0, 0]]
    assert any("1 value of 'c' in no category of the schema" in remark for remark in federation.remarks)


def test_columns_may_stand_in_another_order(tmp_path: Path) -> None:
    federation = Federation.from_csv(folder(tmp_path, a="u,v,t\n1,2,0\n", b="t,v,u\n1,20,10\n"), target="t")
    assert federation.x.tolist() == [[1, 2], [10, 20]]


def test_numeric_classes_are_sorted_as_numbers(tmp_path: Path) -> None:
    federation = Federation.from_csv(
        folder(tmp_path, a="u,t\n1,10\n2,9\n3,9.0\n4,2\n"), target="t", task="classification"
    )
    assert federation.classes == ("2", "9", "10")
    assert federation.y.tolist() == [2, 1, 1, 0]


@pytest.mark.parametrize(
    ("values", "task", "expected"),
    [
        (["1.5", "2", "3"], None, "regression"),
        ([str(i) for i in range(20)], None, "classification"),
        ([str(i) for i in range(21)], None, "regression"),
        (["a", "1"], None, "binary"),
        (["a", "1"], "classification", "classification"),
        (["0", "1"], "regression", "regression"),
        (["0.5", "1.5"], "classification", "classification"),
    ],
)
def test_the_target_decides_the_task(
    tmp_path: Path, values: list[str], task: str | None, expected: str
) -> None:
    data = folder(tmp_path, a="u,t\n" + "".join(f"1,{value}\n" for value in values))
    federation = Federation.from_csv(data, target="t", task=task)
    assert federation.task == expected
    if expected == "regression":
        assert federation.y.tolist() == [float(value) for value in values]


def test_public_ranges_scale_and_cut_off(tmp_path: Path) -> None:
    data = folder(tmp_path, a="u,v,t\n5,1,0\n-1,2,1\n99,3,1\n")
    scaled = Federation.from_csv(data, target="t", scale={"u": (0, 10)})
    assert scaled.x.tolist() == [[0, 1], [-1, 2], [1, 3]]
    (data / "ranges.toml").write_text("u = [0, 10]\n")
    assert (Federation.from_csv(data, target="t").x == scaled.x).all()
    assert Federation.from_csv(data, target="t", scale={}).x[0, 0] == 5


@pytest.mark.parametrize(
    "scale",
    [{"nowhere": (0, 1)}, {"t": (0, 1)}, {"u": (1, 1)}, {"u": 3}, {"u": (0, "x")}, {"u": (0, np.inf)}],
)
def test_ranges_that_are_none_are_refused(tmp_path: Path, scale: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="scale must be"):
        Federation.from_csv(folder(tmp_path, a="u,t\n5,0\n6,1\n"), target="t", scale=scale)


def test_a_broken_ranges_file_is_named(tmp_path: Path) -> None:
    (folder(tmp_path, a="u,t\n5,0\n6,1\n") / "ranges.toml").write_text("u = [0,")
    with pytest.raises(DataError, match=r"ranges\.toml cannot be read as TOML"):
        Federation.from_csv(tmp_path, target="t")


def test_quotes_blank_lines_spaces_and_byte_order_marks_are_read(tmp_path: Path) -> None:
    content = '\ufeffu,"a, b",t\r\n\r\n 1 ,"x\ny", 0\r\n2,"z ""q""",1\r\n\r\n'
    federation = Federation.from_csv(folder(tmp_path, a=content), target="t")
    assert federation.x.tolist() == [[1, 1, 0], [2, 0, 1]]


BAD = {
    "": "b.csv is empty; its first row must name the columns.",
    "age,town,income,label\n": "b.csv has a header but no records",
    "age,town,income,label\n1,Oslo,2,yes\n1,Oslo,2\n": "Row 3 of .*b.csv has 3 values, its header 4.",
    "age,town,income,label\n1,Oslo,2,yes,\n": "Row 2 of .*b.csv has 5 values, its header 4.",
    "age,town,income,label\n1,Oslo,2,yes\n\n1,,2,no\n": "The value of 'town' in row 4 of .*b.csv is missing.",
    "age,town,income,label\n1,Oslo,NaN,yes\n": "The value of 'income' in row 2 of .*b.csv is missing.",
    "age,town,income,label\n1,Oslo,2,?\n": "The value of 'label' in row 2 of .*b.csv is missing.",
    "age,town,age,label\n1,Oslo,2,yes\n": "The column 'age' appears twice in the header of .*b.csv.",
    "age,town,,label\n1,Oslo,2,yes\n": "Column 3 of .*b.csv has no name in the header.",
    "age,town,label\n1,Oslo,yes\n": "The columns of .*b.csv differ from those of .*a.csv: it lacks 'income'.",
    "age,town,income,label,sex\n1,Oslo,2,yes,f\n": "The columns of .*b.csv differ .*: it has 'sex' besides.",
    "age,town,income,label\n1,Oslo,2o,yes\n": "The value '2o' of 'income' in row 2 of .*b.csv is not a number",
    "age,town,income,label\n1,Oslo,inf,yes\n": "The value 'inf' of 'income' in row 2 of .*b.csv is not a finite",
    "age,town,income,label\n1,Oslo,1e99,yes\n": "The value '1e99' of 'income' in row 2 of .*b.csv is not a finite",
    'age,town,income,label\n1,"Oslo,2,yes\n': "b.csv cannot be read as CSV",
    b"age,town,income,label\n1,Troms\x81,2,yes\n": r"b.csv is neither UTF-8 nor cp1252 text \(byte 29\).",
    b"age,town\0,income,label\n": "b.csv is not text",
}


@pytest.mark.parametrize(("content", "message"), BAD.items())
def test_every_flaw_is_told_with_file_and_row(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(DataError, match=message) as refusal:
        Federation.from_csv(folder(tmp_path, a=NORTH, b=content), target="label")
    assert "\n" not in str(refusal.value)
    assert str(refusal.value).endswith(".")


def test_a_missing_target_column_lists_the_columns(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"The target column 'y' is not in .*a\.csv; its columns are 'age', 'town'"
    ):
        Federation.from_csv(folder(tmp_path, a=NORTH), target="y")


def test_there_must_be_files_features_and_classes(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist or is not a folder"):
        Federation.from_csv(tmp_path / "nowhere", target="t")
    (tmp_path / "notes.txt").write_text("t\n1\n")
    with pytest.raises(DataError, match="has no CSV or Parquet files"):
        Federation.from_csv(tmp_path, target="t")
    with pytest.raises(DataError, match="nothing to learn from"):
        Federation.from_csv(folder(tmp_path, a="t\n1\n2\n"), target="t")
    with pytest.raises(DataError, match="only the one value '1'"):
        Federation.from_csv(folder(tmp_path, a="u,t\n1,1\n2,1\n"), target="t")
    with pytest.raises(DataError, match=r"gone\.csv does not exist"):
        Federation.from_csv(folder(tmp_path, a="u,t\n1,1\n2,0\n"), target="t", test=tmp_path / "gone.csv")
    with pytest.raises(UsageError, match="task must be"):
        Federation.from_csv(tmp_path, target="t", task="ranking")
    with pytest.raises(DataError, match=r"The value 'x' of 't' in row 3 of .*a.csv is not a number"):
        Federation.from_csv(folder(tmp_path, a="u,t\n1,1\n2,x\n"), target="t", task="regression")


def test_a_schema_from_elsewhere_refuses_classes_it_does_not_know(tmp_path: Path) -> None:
    """In a deployment a client has the schema but not the other files."""
    read = tabular.read_folder(folder(tmp_path, a=NORTH), target="label")
    assert read.schema.features == read.schema.encode(read.clients[0]).shape[1]
    mine = tabular.read_table(folder(tmp_path, b="age,town,income,label\n1,Voss,2,maybe\n") / "b.csv")
    with pytest.raises(
        DataError, match=r"'maybe' of 'label' in row 2 of .*b\.csv is not one of the classes 'no', 'yes'"
    ):
        tabular.check_by(read.schema, [mine])


def test_a_local_test_part_of_csv_clients(tmp_path: Path) -> None:
    rows = "".join(f"{i},{i % 2}\n" for i in range(10))
    federation = Federation.from_csv(folder(tmp_path, a="u,t\n" + rows), target="t", local_test=0.3)
    assert federation.sizes.tolist() == [7]
    assert np.shape(federation.local_records()) == (1, 3)


words = st.text("abcXYZ ,\"'øß\n;|", min_size=1, max_size=6).map(lambda w: "w" + w.strip() + "w")
numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    rows=st.lists(st.tuples(numbers, words, numbers, words), min_size=2, max_size=9),
    cut=st.integers(1, 8),
)
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[float, str, float, str]], cut: int
) -> None:
    """Any numbers and any text, written by the csv module and split over two files; too few rows to look like persons."""
    cut = min(cut, len(rows) - 1)
    path = tmp_path_factory.mktemp("csv")
    for name, part in (("0", rows[:cut]), ("1", rows[cut:])):
        with (path / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("n", "w", "m", "t"), *part])
    if len({row[3] for row in rows}) < 2:
        with pytest.raises(DataError, match="only the one value"):
            Federation.from_csv(path, target="t")
        return
    federation = Federation.from_csv(path, target="t")
    categories = sorted({row[1] for row in rows})
    assert federation.sizes.tolist() == [cut, len(rows) - cut]
    assert federation.x[:, 0].tolist() == [np.float32(row[0]) for row in rows]
    assert federation.x[:, -1].tolist() == [np.float32(row[2]) for row in rows]
    assert [categories[i] for i in federation.x[:, 1:-1].argmax(axis=1)] == [row[1] for row in rows]
    assert (federation.x[:, 1:-1].sum(axis=1) == 1).all()
    assert federation.classes is not None
    assert [federation.classes[i] for i in federation.y] == [row[3] for row in rows]


def test_columns_too_large_to_train_on_are_remarked_on_until_they_have_a_public_range(tmp_path: Path) -> None:
    where = folder(tmp_path, north=NORTH, south=SOUTH)
    remark = next(
        each for each in Federation.from_csv(where, target="label").remarks if "Numbers beyond" in each
    )
    assert "'age'" in remark
    assert "'income'" not in remark
    assert f"nbafl data schema {where} --target label" in remark
    (where / "ranges.toml").write_text("age = [0, 100]\n")
    remarks = Federation.from_csv(where, target="label").remarks
    assert not any("Numbers beyond" in each for each in remarks)
    assert any("ranges.toml is read as before" in each for each in remarks)
