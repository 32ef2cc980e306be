"""The public schema: written, read back, and encoding each record by itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbafl import Federation
from nbafl.data import tabular
from nbafl.data.inference import Wanted
from nbafl.data.schema import Column, Schema
from nbafl.data.schema_file import parse_schema, read_schema
from nbafl.data.tables import Table, from_frame
from nbafl.errors import DataError, UsageError

names = st.text(min_size=1, max_size=8).map(str.strip).filter(lambda name: name and "\x7f" not in name)
finite = st.floats(-1e6, 1e6, allow_nan=False)
ranges = st.tuples(finite, finite).filter(lambda pair: pair[0] < pair[1])
words = st.text("abcdefgh", min_size=1, max_size=5)


@st.composite
def columns(draw: st.DrawFn, name: str) -> Column:
    if draw(st.booleans()):
        categories = tuple(draw(st.lists(words, min_size=1, max_size=5, unique=True)))
        return Column(name, "category", None, categories, draw(st.sampled_from([None, *categories])))
    bounds = draw(st.none() | ranges)
    return Column(name, "number", bounds, (), draw(st.none() | finite))


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    taken = draw(st.lists(names, min_size=3, max_size=6, unique=True))
    target, ignored, *features = taken
    task = draw(st.sampled_from(["binary", "classification", "regression"]))
    count = {"binary": 2, "classification": 3, "regression": 0}[task]
    return Schema(
        target=target,
        task=task,
        columns=tuple(draw(columns(name)) for name in features),
        classes=tuple(f"class {i}" for i in range(count)) if count else None,
        target_range=draw(st.none() | ranges) if task == "regression" else None,
        ignore=(ignored,),
        public=draw(st.booleans()),
    )


@settings(derandomize=True, deadline=None, max_examples=150)
@given(schemas())
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, schema: Schema) -> None:
    path = tmp_path_factory.mktemp("schema") / "schema.toml"
    path.write_text(schema.to_toml(), encoding="utf-8")
    assert read_schema(path) == schema


@st.composite
def cells(draw: st.DrawFn, column: Column) -> str:
    kinds = [words, finite.map(repr)] if column.kind == "category" else [finite.map(repr)]
    if column.kind == "category":
        kinds.append(st.sampled_from(column.categories))
    if column.fill is not None:
        kinds.append(st.just(""))
    return draw(st.one_of(kinds))


@st.composite
def tables(draw: st.DrawFn, schema: Schema, rows: int) -> Table:
    values = {column.name: [draw(cells(column)) for _ in range(rows)] for column in schema.columns}
    goal = st.sampled_from(schema.classes) if schema.classes else finite.map(repr)
    values[schema.target] = [draw(goal) for _ in range(rows)]
    return Table("t", values, range(1, rows + 1))


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.data())
def test_one_record_never_changes_another_ones_features(data: st.DataObject) -> None:
    """Value, category, missingness, target: with a schema given, shape and every other record stay as they were."""
    schema = data.draw(schemas())
    rows = data.draw(st.integers(2, 6))
    before, other = data.draw(tables(schema, rows)), data.draw(tables(schema, 1))
    changed = data.draw(st.integers(0, rows - 1))
    after = Table(
        "t",
        {
            name: [other.columns[name][0] if row == changed else value for row, value in enumerate(column)]
            for name, column in before.columns.items()
        },
        before.rows,
    )
    assert schema.problems(before) == schema.problems(after) == []
    x, z = schema.encode(before), schema.encode(after)
    assert x.shape == z.shape == (rows, schema.features)
    keep = np.arange(rows) != changed
    assert (x[keep] == z[keep]).all()
    assert (schema.targets(before)[keep] == schema.targets(after)[keep]).all()
    assert (schema.encode(other)[0] == z[changed]).all()  # alone or among others, a record is the same


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.data())
def test_the_norm_bound_of_a_schema_holds_for_every_record(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    x = schema.encode(data.draw(tables(schema, 5)))
    if schema.norm_bound is not None:
        assert np.sqrt((x.astype(float) ** 2).sum(axis=1) + 1).max() <= schema.norm_bound * (1 + 1e-6)


def test_a_missing_number_is_a_constant_beside_an_indicator_and_a_missing_category_its_own() -> None:
    schema = Schema(
        "t",
        "binary",
        (
            Column("age", "number", (0.0, 100.0), (), 50.0),
            Column("sex", "category", None, ("f", "m", "missing"), "missing"),
        ),
        ("no", "yes"),
    )
    table = from_frame({"age": [25, None], "sex": ["f", None], "t": ["no", "yes"]}, "frame")
    assert schema.encode(table).tolist() == [[-0.5, 0, 1, 0, 0], [0, 1, 0, 0, 1]]
    assert schema.feature_names == ("age", "age is missing", "sex=f", "sex=m", "sex=missing")


def test_with_a_schema_a_new_category_leaves_the_model_its_shape(tmp_path: Path) -> None:
    """Issue 10, point 4: one record with a value nobody else has made the weight matrix (2, 5) instead of (2, 4)."""
    rows = "age,town,label\n30,Oslo,yes\n41,Bergen,no\n52,Oslo,no\n"
    (tmp_path / "a.csv").write_text(rows)
    before = Federation.from_csv(tmp_path, target="label")
    schema = tabular.draft_schema([tabular.read_table(tmp_path / "a.csv")], Wanted("label"))
    (tmp_path / "a.csv").write_text(rows.replace("52,Oslo", "52,Voss"))
    assert Federation.from_csv(tmp_path, target="label").shape != before.shape  # read from the data
    assert Federation.from_csv(tmp_path, schema=schema).shape == before.shape
    (tmp_path / "schema.toml").write_text(schema.to_toml())
    read = Federation.from_csv(tmp_path)
    assert read.shape == before.shape
    assert any("1 value of 'town' in no category" in remark for remark in read.remarks)


def test_until_a_person_declares_it_public_a_schema_counts_as_read_from_data(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,town,label\n30,Oslo,yes\n41,Bergen,no\n")
    schema = tabular.draft_schema([tabular.read_table(tmp_path / "a.csv")], Wanted("label"))
    (tmp_path / "schema.toml").write_text(schema.to_toml())
    read = Federation.from_csv(tmp_path)
    assert any("not declared public: no guarantee covers" in remark for remark in read.remarks)
    assert read.schema is not None
    assert "the categories of 'town'" in read.schema.used()
    (tmp_path / "schema.toml").write_text(schema.to_toml().replace("public = false", "public = true"))
    public = Federation.from_csv(tmp_path)
    assert public.schema is not None
    assert public.schema.used() == []
    assert not any("guarantee" in remark for remark in public.remarks)


def test_all_problems_of_a_folder_are_told_at_once_with_counts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("u,v,t\n1,,yes\n2,,no\n3,4,yes\n")
    (tmp_path / "b.csv").write_text("u,v,t\n1,2,no\n,2,\n")
    with pytest.raises(DataError) as refusal:
        Federation.from_csv(tmp_path, target="t")
    said = str(refusal.value)
    assert said.startswith("3 problems: ")
    assert "of 'v' in row 2 of" in said
    assert "(2 such values)" in said
    assert "of 'u' in row 3 of" in said
    assert "of 't' in row 3 of" in said
    assert "nbafl data schema" in said


BAD = {
    "public": "public must be true or false",
    "task": "task must be one of binary, classification, regression",
    "classes": "classes must list at least two different names",
    "columns": "at least one column",
}


@pytest.mark.parametrize("field", BAD)
def test_every_mistake_in_a_schema_is_told(field: str) -> None:
    good = {
        "public": True,
        "target": "t",
        "task": "binary",
        "classes": ["a", "b"],
        "columns": {"u": {"kind": "number", "range": [0, 1]}},
    }
    assert parse_schema(good, "s").public
    with pytest.raises(DataError, match=BAD[field]):
        parse_schema({**good, field: {} if field == "columns" else None}, "s")


def test_mistakes_of_a_schema_are_told_together() -> None:
    columns = {"u": {"kind": "number", "range": [1, 0], "fill": "x"}, "w": {"kind": "date"}}
    with pytest.raises(DataError) as told:
        parse_schema({"public": True, "target": "u", "task": "regression", "odd": 1, "columns": columns}, "s")
    for part in (
        "'odd' is not a field",
        "range must be two numbers",
        "fill must be a number",
        "kind must be",
        "also target",
    ):
        assert part in str(told.value)
    assert told.value.exit_code == 2


def test_an_option_cannot_contradict_the_schema(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("u,t,s\n1,yes,1\n2,no,2\n")
    schema = Schema("t", "binary", (Column("u", "number"),), ("no", "yes"), ignore=("s",), public=True)
    for said in (
        {"target": "u"},
        {"task": "regression"},
        {"ignore": ["u"]},
        {"person": "u"},
        {"scale": {"u": (0, 1)}},
    ):
        with pytest.raises(UsageError):
            Federation.from_csv(tmp_path, schema=schema, **said)
