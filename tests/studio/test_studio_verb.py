"""`nbafl studio` as a command: its options are documented, and what it cannot do it says in a sentence."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from nbafl.cli import app, run_command

HOWTO = Path(__file__).parents[2] / "docs" / "howto-studio.md"


def test_every_option_stands_in_the_howto() -> None:
    verb = typer.main.get_command(app).commands["studio"]  # type: ignore[attr-defined]
    options = [option for parameter in verb.params for option in parameter.opts if option.startswith("--")]
    text = HOWTO.read_text(encoding="utf-8")
    assert len(options) >= 7
    for option in options:
        assert option == "--help" or re.search(rf"{option}\b", text), option


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--port", "0"], "port must be between 1 and 65535, got 0."),
        (["--host", "0.0.0.0"], "token must be given"),
        (["--token", "short"], "token must be at least 12 printable ASCII characters"),
        (["--runs", __file__], "runs must be a folder, there or to be made"),
        (["--constants", "/no/such/file"], "constants file '/no/such/file' cannot be read"),
    ],
)
def test_what_cannot_be_is_refused_with_exit_code_2(arguments: list[str], sentence: str, capsys) -> None:
    assert run_command(["studio", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_without_the_extra_the_command_says_what_to_install() -> None:
    hide = "import sys; sys.modules['nicegui'] = None; from nbafl.cli import run_command; "
    refused = subprocess.run(
        [sys.executable, "-c", hide + "sys.exit(run_command(['studio']))"], capture_output=True, text=True
    )
    assert refused.returncode == 1
    assert "nbafl[studio]" in refused.stderr
    assert "Traceback" not in refused.stderr
