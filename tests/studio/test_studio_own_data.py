"""The folder of own data: its schema is the one `nbafl data schema` writes, and one that is there stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from nbafl.cli import run_command
from nbafl.data.schema_file import read_schema
from nbafl.errors import DataError, UsageError
from nbafl.studio.own_data import write_schema


def _tables(folder: Path) -> Path:
    folder.mkdir()
    rows = "".join(f"{age},{age % 2}\n" for age in range(20, 50))
    for party in ("ann", "bob"):
        (folder / f"{party}.csv").write_text(f"age,ill\n{rows}")
    return folder


def test_the_studio_writes_the_schema_of_the_command_line(tmp_path: Path) -> None:
    ours, theirs = _tables(tmp_path / "ours"), _tables(tmp_path / "theirs")
    said = write_schema(str(ours), "ill", None, None)
    assert run_command(["data", "schema", str(theirs), "--target", "ill"]) == 0
    assert (ours / "schema.toml").read_bytes() == (theirs / "schema.toml").read_bytes()
    assert said.startswith(f"Wrote {ours / 'schema.toml'}: 1 column, 1 feature, task binary.")
    assert not read_schema(ours / "schema.toml").public


def test_a_schema_that_is_there_stays(tmp_path: Path) -> None:
    folder = _tables(tmp_path / "data")
    (folder / "schema.toml").write_text("agreed")
    with pytest.raises(UsageError, match="schema must be a file that is not there yet"):
        write_schema(str(folder), "ill", None, None)
    assert (folder / "schema.toml").read_text() == "agreed"


def test_without_a_target_or_a_folder_nothing_is_written(tmp_path: Path) -> None:
    folder = _tables(tmp_path / "data")
    with pytest.raises(UsageError, match="target must be the name of the column"):
        write_schema(str(folder), None, None, None)
    with pytest.raises(DataError):
        write_schema(str(tmp_path / "nowhere"), "ill", None, None)
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["ann.csv", "bob.csv", "data"]
