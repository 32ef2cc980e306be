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
from nbafl.cli.lines import wrapped


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


@pytest.mark.parametrize("group", ["ledger", "keys", "data"])
def test_the_list_of_subverbs_is_not_cut_short(group, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert run_command([group, "--help"]) == 0
    listed = capsys.readouterr().out.split("Commands:\n")[1].strip().splitlines()
    assert all(line.endswith(".") and "..." not in line and len(line) <= 80 for line in listed), listed


def test_help_fits_80_columns_and_fields_take_a_line_or_two(monkeypatch, capsys):
    from nbafl.fields import table

    monkeypatch.setenv("COLUMNS", "80")
    for words in EVERY:
        assert run_command([*words, "--help"]) == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= 80, words
    assert run_command(["plan", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--rounds INTEGER T, aggregations, each of them broadcast. [follows from the others]" in text
    assert "What the server sees: plain, secure. [plain]" in text
    assert all(
        field.entry.shown != "front" or f"--{name.replace('_', '-')}" in text
        for name, field in table().items()
    )


def test_nbafl_alone_shows_its_help(capsys):
    assert run_command([]) == 2
    assert capsys.readouterr().out.startswith("Usage: nbafl")


def test_sentences_are_wrapped_by_word_on_a_terminal_alone(tmp_path):
    import fcntl
    import pty
    import struct
    import termios

    def printed(*words: str) -> list[str]:
        child, terminal = pty.fork()
        if child == 0:
            os.environ.pop("COLUMNS", None)
            os.execv(sys.executable, [sys.executable, "-m", "nbafl", *words])
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        said = b""
        while True:
            try:
                more = os.read(terminal, 65536)
            except OSError:  # the other end was closed
                more = b""
            if not more:
                break
            said += more
        os.waitpid(child, 0)
        return said.decode().replace("\r", "").split("\n")

    out = tmp_path / ("a-long-name" * 8)
    small = ("--clients", "4", "--samples", "25", "--rounds", "1", "--preset", "paper", "--model", "softmax")
    lines = printed("run", *small, "--out", str(out), "--full")
    told = [line for line in lines if not any(word in line for word in (str(out), "━"))]
    assert max(map(len, told)) <= 80
    assert any(line.endswith(str(out)) for line in lines)  # a path stays whole
    assert any(line.startswith("  Adversary: ") for line in told)
    refused = printed("plan", "--adversary", "nobody")
    assert max(map(len, refused)) <= 80
    assert "colluders:COUNT, got 'nobody'." in " ".join(" ".join(refused).split())


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("Note: one two three four", ["Note: one two", "  three four"]),
        ("price        one two", ["price        one", "             two"]),
        ("    - one two three", ["    - one two", "      three"]),
        ("a-path/that/is/longer/than/that", ["a-path/that/is/longer/than/that"]),
        ("", [""]),
    ],
)
def test_later_lines_stand_under_the_first_word(line, parts):
    assert wrapped(line, 16) == parts
