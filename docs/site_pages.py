"""Pages of the site that are made from the code whenever it is built, so that they cannot be out of date.

A hook of mkdocs: verbs.md from the command line, messages.md from every refusal in the source, files.md from the modules
that know a folder, changelog.md, and one page for each notebook, with the pictures in it.
"""

from __future__ import annotations

import ast
import inspect
import re
from base64 import b64decode
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import nbformat
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "nbafl"
FOLDERS = {
    "A run": "nbafl.folders.runs",
    "A sweep": "nbafl.sweeps.folder",
    "The home of a federation": "nbafl.folders.homes",
    "An audit": "nbafl.folders.audits",
    "A reproduction of the paper": "nbafl.folders.reproductions",
    "The roster of a federation": "nbafl.flower.roster",
    "The ledger of a client": "nbafl.privacy.ledger.book",
}
"""Who knows which folder or file."""
KINDS = ("UsageError", "DataError", "Refused")
"""The errors whose sentences are listed; others say what a library said."""

MESSAGES = """# Messages and exit codes

A failure is one sentence on the error stream: the field, the value, what is allowed. Nothing is half-written.

| exit code | when |
| --- | --- |
| 0 | done; a server that was drained; `evidence --verify`: everything fits |
| 1 | refused or failed: a spent budget, a broken premise, too few clients, an audit that refutes, wrong evidence |
| 2 | bad usage: an option, a plan, a file or data that cannot be used as asked; a missing tracker |
| 130 | Ctrl-C; finished rounds are kept |
"""


def on_files(files: Files, config: Any) -> Files:
    """Called by mkdocs: add the pages."""
    pages = {
        "verbs.md": verbs(),
        "messages.md": messages(),
        "files.md": folders(),
        "changelog.md": changelog(),
    }
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        for name, content in notebook(path).items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


# --- verbs -----------------------------------------------------------------------------------------------------


def verbs() -> str:
    """Every verb with its help, and its own options; those of a plan are in the reference."""
    commands = command().commands  # type: ignore[attr-defined]
    parts = [
        "# Verbs\n",
        "What `nbafl VERB --help` says. Options that are fields of a plan are left out: "
        "see [the fields](reference.md#a-plans-fields).\n",
    ]
    for name, each in sorted(commands.items()):
        parts += _verb(f"nbafl {name}", each)
    return "\n".join(parts)


def command() -> click.Group:
    """The whole command line."""
    import typer

    from nbafl.cli import app, help_texts

    return help_texts.readable(typer.main.get_command(app))  # type: ignore[return-value]


def _verb(name: str, each: click.Command, level: int = 2) -> list[str]:
    said, _, examples = (each.help or each.short_help or "").replace("\b\n", "").partition("Examples:\n")
    parts = [f"{'#' * level} `{name}`\n", f"{said.strip()}\n"]
    if examples:
        parts.append(f"```bash\n{inspect.cleandoc(examples)}\n```\n")
    if isinstance(each, click.Group):
        for inner, below in sorted(each.commands.items()):
            parts += _verb(f"{name} {inner}", below, level + 1)
        return parts
    rows = [_option(parameter) for parameter in each.params if not _of_plan(parameter)]
    shared = len(rows) < len(each.params)
    if rows:
        parts.append("| option | what it does |\n| --- | --- |\n" + "\n".join(rows) + "\n")
    if shared:
        parts.append("And every [field of a plan](reference.md#a-plans-fields).\n")
    return parts


def _of_plan(parameter: click.Parameter) -> bool:
    from nbafl.fields import table

    return isinstance(parameter, click.Option) and parameter.name in table()


def _option(parameter: click.Parameter) -> str:
    context = click.Context(click.Command("x"))
    record = parameter.get_help_record(context)
    if record is None:
        return f"| `{parameter.human_readable_name}` | |"
    names, told = (re.sub(r"\s+", " ", part).strip() for part in record)
    return f"| `{names}` | {_cell(told)} |".replace("`|", "` |")


# --- messages --------------------------------------------------------------------------------------------------


def messages() -> str:
    """Exit codes, the kinds of refusal, and every sentence by room."""
    from nbafl import errors

    parts = [MESSAGES]
    parts.append("| kind | exit code | what it means |\n| --- | --- | --- |")
    for name, each in vars(errors).items():
        if isinstance(each, type) and issubclass(each, Exception):
            parts.append(f"| `{name}` | {each.exit_code} | {_cell(inspect.getdoc(each) or '')} |")
    parts.append("\n## Every sentence\n\nBy room, as the code has them; `{…}` stands for a value.\n")
    rooms: dict[str, list[tuple[str, str]]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        rooms.setdefault(room, []).extend(_sentences(path))
    for room, found in rooms.items():
        if found:
            parts.append(f"### {room}\n\n| kind | sentence |\n| --- | --- |")
            parts += [f"| {kind} | {_cell(text)} |" for kind, text in dict.fromkeys(found)]
            parts.append("")
    return "\n".join(parts)


def _sentences(path: Path) -> list[tuple[str, str]]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS):
            continue
        told = [_text(argument) for argument in node.args]
        if node.func.id == "UsageError" and len(told) == 3:
            found.append(("UsageError", f"{told[0]} must be {told[2]}, got {{…}}."))
        elif len(told) == 1 and told[0] != "{…}":
            found.append((node.func.id, told[0]))
    return found


def _text(node: ast.expr) -> str:
    """A string as it stands in the code, with {…} for what is filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return "{…}"


# --- folders, changelog, notebooks -----------------------------------------------------------------------------


def folders() -> str:
    """What lies where, as the modules that write it say."""
    parts = [
        "# Files and folders\n\nEvery format is known to one module; this is what it says. "
        "Files are written whole or not at all.\n"
    ]
    for title, module in FOLDERS.items():
        parts.append(f"## {title}\n\n{_fenced(inspect.getdoc(import_module(module)) or '')}\n")
    return "\n".join(parts)


def _fenced(text: str) -> str:
    """Indented parts of a docstring as blocks of text."""
    return re.sub(
        r"(?:^ {4}.*\n?)+",
        lambda part: f"```text\n{inspect.cleandoc(part[0])}\n```\n",
        text,
        flags=re.MULTILINE,
    )


def changelog() -> str:
    return (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")


def notebook(path: Path) -> dict[str, str | bytes]:
    """One page, and the pictures in it: cells in order, each with what it printed and drew."""
    parts: list[str] = []
    pictures: dict[str, str | bytes] = {}
    for cell in nbformat.read(path, as_version=4).cells:
        code = cell.cell_type == "code"
        parts.append(f"```python\n{cell.source}\n```" if code else cell.source)
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{path.stem}-{len(pictures) + 1}.png"
                pictures[name] = b64decode(data["image/png"])
                parts.append(f"![What the cell above drew]({name})")
            elif output.get("name") != "stderr":
                told = output.get("text") or data.get("text/plain", "")
                parts.append(f"```text\n{told.rstrip()}\n```")
    return {f"{path.stem}.md": "\n\n".join(parts) + "\n", **pictures}


def _cell(text: str) -> str:
    """Text that fits in a cell of a table."""
    return (
        re.sub(r"\s+", " ", text)
        .strip()
        .replace("|", "\\|")
        .replace("<", "&lt;")
        .replace("{", "&#123;")
        .replace("[", "\\[")
    )
