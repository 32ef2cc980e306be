"""Places that nothing can be written to: exit code 2 and the option's name, before any work; nothing left behind."""

from __future__ import annotations

import errno
import os

import pytest

from nbafl import durable
from nbafl.cli import run_command

NO_FOLDER = "a file in a folder that exists ('nodir' does not), got 'nodir/x'"
PLACES = [
    (("predict", "no-run", "new.csv", "-o", "nodir/x"), f"out must be {NO_FOLDER}"),
    (("predict", "no-run", "--onnx", "nodir/x"), f"onnx must be {NO_FOLDER}"),
    (("plan", "--save", "nodir/x"), f"save must be {NO_FOLDER}"),
    (("plan", "--save", "there"), "save must be a file, not a folder, got 'there'"),
    (("plan", "--bounds", "--constants", "nodir/x"), f"constants must be {NO_FOLDER}"),
    (("evidence", "no-run", "--out", "nodir/x"), f"out must be {NO_FOLDER}"),
    (("ledger", "export", "no-ledger", "--out", "nodir/x"), f"out must be {NO_FOLDER}"),
    (("reproduce", "--jobs", "nodir/x"), f"jobs must be {NO_FOLDER}"),
    (("keys", "roster", "a.pub", "--out", "nodir/x"), f"out must be {NO_FOLDER}"),
    (("run", "--out", "file/run"), "out must be a folder"),
    (("run", "--out", "/proc/nbafl"), "out must be a folder that can be made and written to"),
    (("audit", "--out", "file/run"), "out must be a folder"),
    (("sweep", "--seeds", "2", "--out", "file/run"), "out must be a folder"),
    (("reproduce", "--out", "file/run"), "out must be a folder"),
    (("keys", "make", "north", "--out", "file/run"), "out must be a folder"),
    (("keys", "certificate", "fl.example.org", "--out", "file/run"), "out must be a folder"),
    (("serve", "--prepare", "--home", "file"), "home must be a folder"),
    (("serve", "--prepare", "--home", "file/run"), "home must be a folder"),
]


@pytest.mark.parametrize(("arguments", "said"), PLACES, ids=[" ".join(each) for each, _ in PLACES])
def test_a_bad_place_is_the_options_fault(arguments, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "file").write_text("kept")
    assert run_command(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"nbafl: {said}")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "there"]
    assert (tmp_path / "file").read_text() == "kept"


def test_a_good_place_is_left_as_it_was(tmp_path):
    durable.check_file("out", tmp_path / "new")
    durable.check_folder("out", tmp_path / "a" / "b")
    durable.check_file("out", None)
    durable.check_folder("out", None)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_not_the_options_fault_and_names_the_file(tmp_path, monkeypatch):
    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        durable.write_text(tmp_path / "answers.csv", "1\n")
    assert caught.value.filename == str(tmp_path / "answers.csv")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_goes_missing_meanwhile_is_named_and_not_the_temporary_file(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        durable.write_text(tmp_path / "gone" / "x.csv", "1\n")
    assert caught.value.filename == str(tmp_path / "gone" / "x.csv")
