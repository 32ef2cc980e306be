"""Every code block of the documents is run, or parsed as what it says it is; none is without a language.

python: run, or where `<!-- not run -->` stands before it compiled, with every import and every name of nbafl looked up.
bash: every command is looked at: nbafl's by its own parser, targets of make, extras of pip, scripts that must be there.
toml, json: parsed. text: output, signatures, layouts; it may hold no command.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
import typer
from markdown_it import MarkdownIt

import nbafl
from nbafl.cli import app, help_texts

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
OTHERS = {"tensorboard", "mlflow", "ray", "flwr", "export", "srun", "for", "git", "uv"}
"""Commands of other projects: named here so that a typing error in one of ours is noticed."""
NOT_RUN = "<!-- not run -->"


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str
    run: bool

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """All code blocks, fenced or indented, as a Markdown parser sees them."""
    found, before = [], ""
    for token in MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8")):
        if token.type in ("fence", "code_block"):
            language = token.info.strip() if token.type == "fence" else "indented"
            found.append(Block(page, token.map[0] + 1, language, token.content, before.strip() != NOT_RUN))
        before = token.content
    return found


BLOCKS = [block for page in PAGES if page.is_file() for block in blocks(page)]
FORMULAS = {ROOT / "docs" / "math.md"}
"""Indented blocks there are formulas: tests/test_citations.py numbers them."""


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


def test_no_block_is_left_unchecked() -> None:
    known = {"python", "bash", "toml", "json", "text", "layers"}
    unchecked = [str(b) for b in BLOCKS if b.language not in known and b.page not in FORMULAS]
    assert unchecked == []
    assert len(BLOCKS) > 60


@pytest.mark.parametrize("block", [b for b in of("python") if b.run], ids=str)
def test_python_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block.text, str(block), "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("block", [b for b in of("python") if not b.run], ids=str)
def test_python_that_is_not_run_compiles_and_names_what_is_there(block: Block) -> None:
    tree = ast.parse(block.text, str(block))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                importlib.import_module(alias.name)
        elif isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module or "")
            assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)
        elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith("nbafl."):
            thing: object = nbafl
            for name in ast.unparse(node).split("(")[0].split(".")[1:]:
                thing = getattr(thing, name)


@pytest.mark.parametrize("block", of("toml", "json"), ids=str)
def test_configuration_parses(block: Block) -> None:
    assert (tomllib.loads if block.language == "toml" else json.loads)(block.text)


@pytest.mark.parametrize("block", of("text", "layers"), ids=str)
def test_text_holds_no_command(block: Block) -> None:
    assert not re.search(r"^(\$ |nbafl |make |pip )", block.text, re.MULTILINE), block.text


@pytest.mark.parametrize("block", of("bash"), ids=str)
def test_commands_are_ones_that_exist(block: Block) -> None:
    for line in block.text.replace("\\\n", " ").splitlines():
        filled = re.sub(r"\$\w+", "1", line).removesuffix(" &")
        words = shlex.split(filled, comments=True)
        if words:
            check_command(words)


def check_command(words: list[str]) -> None:
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):  # settings of the environment before a command
        words = words[1:]
    program, rest = words[0].removeprefix(".venv/bin/"), words[1:]
    if program == "nbafl":
        parsed(rest)
    elif program == "torchrun":
        parsed(rest[rest.index("nbafl") + 1 :])
    elif program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(rest) <= set(targets), words
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        for found in re.findall(r"nbafl\[([\w,]+)\]", " ".join(rest)):
            assert set(found.split(",")) <= extras.keys(), words
    elif program in ("python", "python3"):
        assert rest[0] == "-m" or (ROOT / rest[0]).is_file(), words
    else:
        assert program in OTHERS, f"what is {program!r}?"


def parsed(words: list[str]) -> None:
    """Parse `nbafl WORDS` as the command line would, without running it; raises click.UsageError."""
    command: click.Command = help_texts.readable(typer.main.get_command(app))
    context = click.Context(command, info_name="nbafl")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        assert found is not None, f"nbafl has no verb {words[0]!r}"
        command, words = found, words[1:]
    if isinstance(command, click.Group) or "--help" in words:
        return
    try:
        command.make_context("nbafl", [word for word in words if word != "…"], parent=context)
    except click.MissingParameter:
        if "…" not in words:  # the page gives only a part of the command
            raise


def test_a_wrong_command_is_noticed() -> None:
    for wrong in (["nbafl", "runn"], ["nbafl", "run", "--epsilom", "1"], ["make", "tests"], ["pip", "install", "nbafl[nix]"],
                  ["python", "benchmarks/none.py"], ["nbalf", "run"], ["nbafl", "run", "--rounds", "many"]):  # fmt: skip
        with pytest.raises((AssertionError, click.UsageError)):
            check_command(wrong)
