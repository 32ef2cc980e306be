"""Who is in the roster after another, and what is refused; and a handout that comes late."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nbafl.errors import DataError, UsageError
from nbafl.flower import beginning
from nbafl.flower.keys import make_client_key, read_identity
from nbafl.flower.roster import Roster
from nbafl.flower.succession import successors
from nbafl.plan import Plan

PLAN = Plan(
    clients=2, samples=50, rounds=1, sensitivity="gradient", features="raw", model="softmax", delta=1e-5
)


def keys(folder: Path, *names: str, records: int | None = 50) -> Path:
    for name in names:
        make_client_key(name, folder, records)
    return folder


def roster(folder: Path) -> Roster:
    return Roster.of([read_identity(file) for file in sorted(folder.glob("*.pub"))])


def test_old_ones_keep_their_order_and_new_ones_follow(tmp_path: Path) -> None:
    old = roster(keys(tmp_path / "old", "b", "c"))
    added = keys(tmp_path / "new", "a")
    shutil.copy(tmp_path / "old" / "c.pub", added)  # a folder of everybody's key files is as good
    found = successors(old, (), added, PLAN)
    assert found.names == ["b", "c", "a"]
    assert [member.number for member in found.members] == [1, 2, 3]
    assert successors(old, ("b",), None, PLAN).names == ["c"]


def test_whoever_says_another_number_of_records_now_has_that(tmp_path: Path) -> None:
    old = roster(keys(tmp_path / "old", "a", "b"))
    file = tmp_path / "old" / "b.pub"
    text = file.read_text()
    assert text.count("records 50") == 1
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "b.pub").write_text(text.replace("records 50", "records 75"))
    assert successors(old, (), tmp_path / "new", PLAN).sizes == (50, 75)


def test_a_revoked_client_comes_back_with_new_keys_only(tmp_path: Path) -> None:
    old = roster(keys(tmp_path / "old", "a", "b"))
    with pytest.raises(UsageError, match="new keys for a client that was revoked"):
        successors(old, ("b",), tmp_path / "old", PLAN)
    assert successors(old, ("b",), keys(tmp_path / "new", "b"), PLAN).names == ["a", "b"]
    with pytest.raises(UsageError, match="another name"):
        successors(old, (), tmp_path / "new", PLAN)
    with pytest.raises(DataError, match="no client is left"):
        successors(old, ("a", "b"), None, PLAN)


def test_a_handout_is_waited_for_until_all_of_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handout, said, now = tmp_path / "handout", [], [0.0]
    coming = iter((*beginning.NEEDED, "schema.toml"))

    def sleep(seconds: float) -> None:
        """A file arrives; another one had its last name by the time somebody looked at it."""
        now[0] += seconds
        handout.mkdir(exist_ok=True)
        if (name := next(coming, None)) is not None:
            (handout / name).write_text(name)
            (handout / f".{name}.part").symlink_to("gone")

    monkeypatch.setattr(beginning.time, "sleep", sleep)
    monkeypatch.setattr(beginning.time, "monotonic", lambda: now[0])
    beginning.begin(tmp_path / "north", handout, 30, 30.0, said.append)
    assert (handout / "schema.toml").exists()
    assert read_identity(tmp_path / "north.pub").records == 30
    assert ["keys made" in said[0], "waiting" in said[1]] == [True, True]
    private = (tmp_path / "north").read_bytes()
    beginning.begin(tmp_path / "north", handout, None, 30.0, said.append)
    assert (tmp_path / "north").read_bytes() == private, "keys are made once"
    assert len(said) == 2


def test_a_handout_that_does_not_come_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beginning, "LOOK", 0.01)
    with pytest.raises(UsageError, match=r"plan\.toml, ca\.crt, roster\.toml within 0.05 s"):
        beginning.begin(tmp_path / "north", tmp_path / "handout", 30, 0.05, lambda _: None)
    with pytest.raises(UsageError, match="handout"):
        beginning.begin(tmp_path / "north", None, 30, 0.05, lambda _: None)
