"""`nbafl ledger`: what a data owner sees and decides."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from nbafl.cli import run_command
from nbafl.privacy.ledger import Charge, Ledger, Limits, Price, Request
from nbafl.privacy.units import Account


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NBAFL_ANCHORS", str(tmp_path / "anchors"))
    ledger = Ledger(tmp_path / "state" / "ledger.sqlite")
    ledger.set_limits(Limits(9.0, 1e-5))
    charge = Charge(4.0, lambda answers: 0.25 * answers)
    price = Price(Account.RECORD, dict.fromkeys(Account, charge), 10, "eavesdropper")
    ledger.record(Request("a" * 64, 1, "w"), b"secret upload", price)
    ledger.close()
    return tmp_path / "state"


def test_show_names_the_adversary_and_delta_of_each_epsilon(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["ledger", "show", str(state)]) == 0
    text = capsys.readouterr().out
    assert "1 releases, 0 resends" in text
    assert "at delta 1e-05 against eavesdropper" in text
    assert "against the server itself (every upload; sums" in text
    assert "limit for whatever unit a plan protects: epsilon 9 at delta 1e-05" in text
    assert "for all plans together, against the adversary that each plan names, any number" in text
    assert run_command(["ledger", "show", str(state / "ledger.sqlite"), "--json"]) == 0
    spent = json.loads(capsys.readouterr().out)["spent"]
    assert spent["releases"] == 1
    (record,) = [each for each in spent["sums"] if each["account"] == "record"]
    assert record["epsilon"] < record["epsilon_uploads"]


def test_show_says_a_limit_in_words(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--epsilon", "4", "--delta", "1e-5", "--unit", "record", "--max-releases", "9"]
    assert run_command(["ledger", "limit", str(state), *words]) == 0
    capsys.readouterr()
    assert run_command(["ledger", "show", str(state)]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "  limit     " in line]
    assert rows[-1].endswith(
        "limit     for a record (one record replaced): epsilon 4 at delta 1e-05 for all plans together, against the "
        "adversary that each plan names, at most 9 releases."
    )


def test_an_epsilon_over_plans_with_different_adversaries_says_who_sees_what_of_which(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two plans, each of epsilon 1, against broadcast and eavesdropper: the sum is about neither of them alone."""
    ledger = Ledger(state / "ledger.sqlite")
    prices = dict.fromkeys(Account, Charge(4.0, lambda answers: 0.25 * answers))
    for digest in "bc":
        ledger.record(Request(digest * 64, 1, "w"), b"other", Price(Account.RECORD, prices, 10, "broadcast"))
    ledger.close()
    assert run_command(["ledger", "show", str(state)]) == 0
    whom = "against somebody who is broadcast in plans bbbbbbbbbbbb…, cccccccccccc… and eavesdropper in plan aaaaaaaaaaaa…"
    assert f"at delta 1e-05 {whom}, as the plans assume it" in capsys.readouterr().out
    assert run_command(["ledger", "show", str(state), "--json"]) == 0
    for each in json.loads(capsys.readouterr().out)["spent"]["sums"]:
        assert each["adversaries"] == {
            "a" * 64: "eavesdropper",
            "b" * 64: "broadcast",
            "c" * 64: "broadcast",
        }


def test_export_holds_every_row_and_no_upload(state: Path, tmp_path: Path) -> None:
    assert run_command(["ledger", "export", str(state), "--out", str(tmp_path / "l.json")]) == 0
    text = (tmp_path / "l.json").read_text()
    assert [row["kind"] for row in json.loads(text)["rows"]] == ["opened", "limit", "release"]
    assert "secret upload" not in text


def test_verify_fails_after_tampering(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["ledger", "verify", str(state)]) == 0
    with sqlite3.connect(state / "ledger.sqlite") as connection:
        connection.execute("UPDATE rows SET cost = 0 WHERE number = 2")
    connection.close()
    assert run_command(["ledger", "verify", str(state)]) == 1
    assert "tampered with: row 2" in capsys.readouterr().err


def test_limits_are_governed_in_writing(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limit = ["ledger", "limit", str(state), "--delta", "1e-5", "--epsilon"]
    assert run_command([*limit, "20"]) == 1
    said = capsys.readouterr()
    assert "Nothing was changed: --epsilon 20 was not applied" in said.err
    assert f"nbafl ledger limit {state} --unit any --epsilon 20 --delta 1e-05 --loosen" in said.err
    assert said.out == ""
    assert Ledger(state / "ledger.sqlite").limits() == [Limits(9.0, 1e-5)]
    assert run_command([*limit, "20", "--loosen"]) == 0
    assert "epsilon 20 " in capsys.readouterr().out
    assert run_command([*limit, "8"]) == 0
    assert run_command([*limit, "8"]) == 0, "the same again changes nothing"
    assert run_command([*limit, "7", "--delta", "1e-4"]) == 1, "stricter in one and looser in the other"
    assert Ledger(state / "ledger.sqlite").limits() == [Limits(8.0, 1e-5)]
    assert run_command([*limit, "-1"]) == 2
    assert run_command(["ledger", "show", str(state / "missing")]) == 2


def test_loosening_without_a_unit_means_the_limit_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The documented command set a second limit beside the one that `join` had set, which stayed at 0.1."""
    monkeypatch.setenv("NBAFL_ANCHORS", str(tmp_path / "anchors"))
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.set_limits(Limits(0.1, 1e-5, 40, Account.PERSON, 2.0))
    limit = ["ledger", "limit", str(tmp_path), "--delta", "1e-5", "--epsilon"]
    assert run_command([*limit, "3", "--loosen"]) == 0
    assert "limit for a person" in capsys.readouterr().out
    assert ledger.limits() == [Limits(3.0, 1e-5, 40, Account.PERSON, 2.0)], "what was not named stays"
    assert run_command([*limit, "5", "--unit", "person"]) == 1
    assert "--epsilon 5 was not applied" in capsys.readouterr().err
    assert run_command([*limit, "5"]) == 0
    said = capsys.readouterr().out
    assert "limit for whatever unit a plan protects: epsilon 5" in said
    assert "also in force, as before: limit for a person" in said
    rows = ledger.rows()
    assert run_command([*limit, "9", "--loosen"]) == 2
    assert "several limits to loosen: --unit any or --unit person" in capsys.readouterr().err
    assert ledger.rows() == rows
    assert run_command([*limit, "9", "--loosen", "--unit", "any"]) == 0
    assert {each.account: each.epsilon for each in ledger.limits()} == {None: 9.0, Account.PERSON: 3.0}


def test_a_moved_ledger_is_adopted(state: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved.sqlite"
    (state / "ledger.sqlite").rename(moved)
    moved.write_bytes(moved.read_bytes())
    assert run_command(["ledger", "show", str(moved)]) == 1
    assert run_command(["ledger", "adopt", str(moved)]) == 0
    assert run_command(["ledger", "verify", str(moved)]) == 0
