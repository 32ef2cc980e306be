"""JSON files and JSON lines as they really come: missing, half-written, damaged, deleted a moment ago.

A file that is missing is None (or no lines); one that is damaged is a DataError of one sentence.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from nbafl.durable import write_text
from nbafl.errors import DataError

Line = dict[str, Any]
TAIL = 16_384
"""Bytes read from the end of a file of lines when only the newest matter."""


def write_json(path: Path, content: object) -> None:
    """One JSON document, whole or not at all; NaN and infinity are refused."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any | None:
    """A JSON document; None where there is no such file."""
    content = read_bytes(path)
    if content is None:
        return None
    try:
        return json.loads(content)
    except ValueError:
        raise damaged(path, "it is not JSON") from None


def read_object(path: Path) -> dict[str, Any] | None:
    """A JSON object; None where there is no such file."""
    content = read_json(path)
    if content is not None and not isinstance(content, dict):
        raise damaged(path, "it is not a JSON object")
    return content


def as_line(entry: Line) -> str:
    """A line of a .jsonl file; numbers beyond what a float holds are null, as JSON knows no infinity."""
    finite = {name: None if _endless(value) else value for name, value in entry.items()}
    return json.dumps(finite, allow_nan=False) + "\n"


def lines(path: Path) -> Iterator[Line]:
    """All whole lines; the one that was being written when its process ended has no newline and is left out."""
    for raw in (read_bytes(path) or b"").split(b"\n")[:-1]:
        yield parse_line(raw, path)


def last_lines(path: Path) -> list[Line]:
    """The newest whole lines, as many as lie in the last 16 kB."""
    return [parse_line(raw, path) for raw in _tail(path)]


def keep_lines(path: Path, wanted: Callable[[Line], bool]) -> None:
    """Drop all other lines, and one that was not finished."""
    if path.is_file():
        write_lines(path, filter(wanted, lines(path)))


def write_lines(path: Path, entries: Iterable[Line]) -> None:
    """Replace all lines in one step."""
    write_text(path, "".join(map(as_line, entries)))


def parse_line(raw: bytes, path: Path) -> Line:
    """One line of a .jsonl file; NaN and infinity, which other programs may have written, read as null."""
    try:
        parsed = json.loads(raw)
    except ValueError:
        raise damaged(path, "a line in it is not JSON") from None
    if not isinstance(parsed, dict):
        raise damaged(path, "a line in it is not a JSON object")
    return {name: None if _endless(value) else value for name, value in parsed.items()}


def read_bytes(path: Path) -> bytes | None:
    """A file's bytes; None where there is none, also when its folder was deleted a moment ago."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{path.name} of {path.parent.name!r} cannot be read: {error.strerror}.") from None


def damaged(path: Path, why: str) -> DataError:
    """The sentence about a file that cannot be what it should be."""
    return DataError(f"{path.name} of {path.parent.name!r} is damaged: {why}.")


def _endless(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _tail(path: Path) -> list[bytes]:
    """Raw whole lines from the end; one cut by the window is left out."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL))
            pieces = file.read().split(b"\n")
    except FileNotFoundError:
        return []
    whole = pieces[:-1] if size <= TAIL else pieces[1:-1]
    return [line for line in whole if line.strip()]
