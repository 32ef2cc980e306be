"""Help of every verb and subverb: whole sentences, defaults in brackets, nothing said twice or left unsaid."""

from __future__ import annotations

import click
import pytest
import typer

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
        (["bench"], "W1, W2, W3 or W4.  [required]"),
        (["join"], "Where the server listens, as HOST:PORT.  [required]"),
        (["reproduce"], "Figures to make, 2 to 11. [all]"),
        (["ledger", "show"], "The ledger file, or the state folder it lies in.  [required]"),
    ):
        assert run_command([*words, "--help"]) == 0
        assert sentence in capsys.readouterr().out


def test_the_list_of_verbs_is_not_cut_short(capsys):
    assert run_command(["--help"]) == 0
    assert "..." not in capsys.readouterr().out.split("Commands:")[1]
