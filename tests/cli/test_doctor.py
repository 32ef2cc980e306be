"""`nbafl doctor` names what is there and what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nbafl.cli import doctor, run_command


def test_a_sound_machine_passes_and_every_extra_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["doctor", "--json"]) == 0
    found = {each["what"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["torch"]["ok"]
    assert found["torch"]["needed"]
    assert {f"extra {name}" for name in doctor.EXTRAS} <= found.keys()


def test_a_missing_core_package_fails_and_a_missing_extra_does_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "EXTRAS", {"moon": ("going to the moon", ("no_such_module",))})
    assert run_command(["doctor"]) == 0
    assert "pip install 'nbafl[moon]'" in capsys.readouterr().out
    monkeypatch.setattr(doctor, "CORE", ("no-such-package",))
    assert run_command(["doctor"]) == 1
    assert "no-such-package" in capsys.readouterr().out


def test_a_folder_that_cannot_be_written_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    assert not doctor._folder("runs folder", tmp_path / "runs").ok
