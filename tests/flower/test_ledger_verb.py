"""`nbafl ledger`: what a data owner sees and decides."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from nbafl.cli import run_command
from nbafl.privacy.ledger import Ledger, Limits, Price, Request


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NBAFL_ANCHORS", str(tmp_path / "anchors"))
    ledger = Ledger(tmp_path / "state" / "ledger.sqlite")
    ledger.set_limits(Limits(9.0, 1e-5))
    price = Price(4.0, lambda answers: 0.25 * answers, 10, "eavesdropper")
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
    assert "against whoever sees every upload (curious-server)" in text
    assert "limit: epsilon 9 at delta 1e-05" in text
    assert run_command(["ledger", "show", str(state / "ledger.sqlite"), "--json"]) == 0
    spent = json.loads(capsys.readouterr().out)["spent"]
    assert spent["releases"] == 1
    assert spent["epsilon"] < spent["epsilon_curious_server"]


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
    assert run_command([*limit, "20"]) == 0
    assert "epsilon 9 " in capsys.readouterr().out
    assert run_command([*limit, "20", "--loosen"]) == 0
    assert "epsilon 20 " in capsys.readouterr().out
    assert run_command([*limit, "-1"]) == 2
    assert run_command(["ledger", "show", str(state / "missing")]) == 2


def test_a_moved_ledger_is_adopted(state: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved.sqlite"
    (state / "ledger.sqlite").rename(moved)
    moved.write_bytes(moved.read_bytes())
    assert run_command(["ledger", "show", str(moved)]) == 1
    assert run_command(["ledger", "adopt", str(moved)]) == 0
    assert run_command(["ledger", "verify", str(moved)]) == 0
