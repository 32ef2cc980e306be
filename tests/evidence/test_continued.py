"""Evidence of a run that goes on with another one: the price of that one is the operator's word, and called so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.evidence.files import FOLDER, finished_run, small_federation, write
from tests.paper_setting import Plan

import nbafl
from nbafl.cli import run_command
from nbafl.evidence.sealed import open_file
from nbafl.flower.keys import make_client_key
from nbafl.folders.earlier import going_on


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    first = finished_run(tmp_path_factory.mktemp(FOLDER))
    folder = tmp_path_factory.mktemp(FOLDER)
    plan = Plan(**going_on(first / "run", epsilon=6.0))
    nbafl.simulate(plan, small_federation(), out=folder / "run", report=False)
    make_client_key("operator", folder)
    assert write(folder) == 0
    return folder


def test_what_the_run_before_cost_is_not_called_computed_again(made, capsys):
    """A plan.toml whose `cost` was set to 0 gave a file that was verified, "every epsilon computed again"."""
    file = made / "run" / "evidence.html"
    told = dict(open_file(file).content["summary"])["Taken on trust"]
    assert told.startswith("What the run before this one cost is the operator's word")
    assert "is the operator&#39;s word" in file.read_text()
    assert run_command(["evidence", "--verify", str(file)]) == 0
    said = capsys.readouterr().out
    assert f"Taken on trust: {told}\n" in said
    assert f"Not computed again: {told}\n" in said
    assert run_command(["evidence", "--verify", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["on_trust"] == told


def test_a_run_of_its_own_takes_nothing_on_trust(tmp_path, capsys):
    folder = finished_run(tmp_path, rounds=1)
    capsys.readouterr()
    assert run_command(["evidence", "--verify", str(folder / "run" / "evidence.html"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["on_trust"] is None
    assert "Taken on trust" not in found["summary"]
