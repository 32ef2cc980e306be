"""Help of every verb and subverb: whole sentences, defaults in brackets, nothing said twice or left unsaid."""

from __future__ import annotations

import os
import subprocess
import sys

import click
import pytest
import typer

import nbafl
from nbafl.cli import app, run_command


def _every(command: click.Command, words: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    below = command.commands if isinstance(command, click.Group) else {}
    return [words, *(path for name, each in below.items() for path in _every(each, (*words, name)))]


EVERY = _every(typer.main.get_command(app))


@pytest.mark.parametrize("words", EVERY, ids=lambda words: " ".join(words) or "nbafl")
def test_help_is_readable(words, capsys):
    assert run_command([*words, "--help"]) == 0
    text = capsys.readouterr().out
    assert "\\[" not in text
    assert text.count("rguments:\n") <= 1


def test_positional_arguments_are_explained(capsys):
    for words, sentence in (
        (["bench"], "W1 to W6.  [required]"),
        (["join"], "Where the server listens, as HOST:PORT.  [required]"),
        (["reproduce"], "Figures to make, 2 to 11. [all]"),
        (["ledger", "show"], "The ledger file, or the state folder it lies in.  [required]"),
    ):
        assert run_command([*words, "--help"]) == 0
        assert sentence in capsys.readouterr().out


def test_the_list_of_verbs_is_not_cut_short(capsys):
    assert run_command(["--help"]) == 0
    assert "..." not in capsys.readouterr().out.split("Commands:")[1]


@pytest.mark.parametrize("command", [["-m", "nbafl"], ["-m", "nbafl.cli"]])
def test_the_version_is_printed_by_every_way_in(command):
    said = subprocess.run([sys.executable, *command, "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == f"nbafl {nbafl.__version__}\n"


def test_options_stand_in_the_groups_of_the_table_of_fields(capsys):
    from nbafl.fields import table

    assert run_command(["run", "--help-all"]) == 0
    text = capsys.readouterr().out
    for group in {field.entry.group for field in table().values()}:
        assert f"\n{group}:\n" in text
    assert text.index("--epsilon") < text.index("\nOptions:\n") < text.index("--full")


def test_rare_options_wait_for_help_all(capsys):
    from nbafl.fields import table

    for verb in ("run", "plan", "audit", "sweep", "serve"):
        assert run_command([verb, "--help"]) == 0
        short = capsys.readouterr().out
        assert run_command([verb, "--help-all"]) == 0
        whole = capsys.readouterr().out
        assert f"nbafl {verb} --help-all" in short
        assert "--epsilon" in short
        assert "--server-momentum" not in short
        assert all(f"--{name.replace('_', '-')}" in whole for name in table() if name != "noise")


@pytest.mark.parametrize(
    ("preset", "badges"),
    [("private", "Claim: kept. Strength: strong"), ("paper", "Claim: not kept. Strength: no useful limit")],
)
def test_a_plan_says_whether_its_claim_is_kept_and_strong(preset, badges, capsys):
    assert run_command(["plan", "--preset", preset]) == 0
    assert badges in " ".join(capsys.readouterr().out.split())


def test_a_shell_completes_verbs():
    environment = {
        **os.environ,
        "_NBAFL_COMPLETE": "complete_bash",
        "COMP_WORDS": "nbafl evi",
        "COMP_CWORD": "1",
    }
    said = subprocess.run(
        [sys.executable, "-c", "from nbafl.cli import main; main()"],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert said.stdout.split() == ["evidence"]


def test_a_run_ends_in_three_lines_and_paths(tmp_path, capsys):
    plan = ("--clients", "4", "--samples", "25", "--rounds", "2", "--model", "softmax", "--preset", "paper")
    words = ["run", *plan, "--epsilon", "60", "--out"]
    assert run_command([*words, str(tmp_path / "a")]) == 0
    lines = capsys.readouterr().out.splitlines()
    heads = [line.split(":")[0] for line in lines]
    assert heads[:3] == ["Model", "Privacy", "Strength"]
    assert set(heads[3:-3]) == {"Warning"}
    assert heads[-3:] == ["", "Run folder", "Report"]
    assert "at delta 0.01 against" in lines[1]
    assert "per record (replace), if 2C/m holds" in lines[1]
    assert lines[2].startswith("Strength: no useful limit")
    assert run_command([*words, str(tmp_path / "b"), "--full"]) == 0
    assert "Privacy statement" in capsys.readouterr().out


def test_tables_cut_no_word_at_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert run_command(["plan", "--preset", "paper", "--epsilon", "60", "--per-round", "20"]) == 0
    text = capsys.readouterr().out
    assert "…" not in text
    assert text.count("curious-server ") == 2
    assert max(map(len, text.splitlines())) <= 80
