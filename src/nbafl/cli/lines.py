"""Sentences for people: wrapped by word on a terminal, whole lines in a file or a pipe, where they are searched."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from typing import TextIO

LABEL = re.compile(r"\s*\S+ {2,}|\s*- |\s*")
"""What later lines of a paragraph leave room for: a label and the gap after it, a dash, or the indent."""


def say(text: str, file: TextIO | None = None) -> None:
    """Print lines; a word longer than the terminal, such as a path, stays whole."""
    out = sys.stdout if file is None else file
    lines = text.split("\n")
    if out.isatty():
        width = shutil.get_terminal_size().columns
        lines = [part for line in lines for part in wrapped(line, width)]
    print("\n".join(lines), file=out, flush=True)


def wrapped(line: str, width: int) -> list[str]:
    """One line as those that fit."""
    found = LABEL.match(line)
    indent = len(found[0]) if found else 0
    later = " " * (indent if indent else 2)
    return textwrap.wrap(
        line,
        width,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    ) or [""]
