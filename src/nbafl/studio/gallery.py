"""What `nbafl reproduce` left in its folder: pictures by figure and calibration, and the verdict on each claim.

Read again whenever the page is opened. A folder that is half-written shows what is there; a list of verdicts that
cannot be read is said in a sentence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PICTURE = re.compile(r"fig(?P<number>\d+)_(?P<calibration>[a-z]+)\.(?P<kind>png|svg|csv)")
ORDER = ("paper", "separate", "exact")
VERDICTS = ("holds", "fails", "artefact")


@dataclass(frozen=True)
class Verdict:
    """What became of one claim of the paper under one calibration."""

    figure: int
    claim: str
    calibration: str
    verdict: str
    evidence: dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """One figure of the paper, under every calibration it was made for."""

    number: int
    pictures: dict[str, str]
    """The picture's file name by calibration, the paper's first."""
    data: dict[str, str]
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True)
class Gallery:
    """All figures of a folder, and what could not be read."""

    figures: tuple[Figure, ...]
    problem: str | None = None


def visit(folder: Path) -> Gallery:
    """Everything that is there."""
    pictures, data = _files(folder)
    verdicts, problem = _verdicts(folder)
    numbers = sorted({number for number, _ in pictures} | {verdict.figure for verdict in verdicts})
    return Gallery(tuple(_figure(number, pictures, data, verdicts) for number in numbers), problem)


def _files(folder: Path) -> tuple[dict[tuple[int, str], str], dict[tuple[int, str], str]]:
    """File names of pictures (an SVG before a PNG) and of data, by figure and calibration."""
    pictures: dict[tuple[int, str], str] = {}
    data: dict[tuple[int, str], str] = {}
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    for name in names:
        found = PICTURE.fullmatch(name)
        if found:
            shelf = data if found["kind"] == "csv" else pictures
            shelf[int(found["number"]), found["calibration"]] = name
    return pictures, data


def _figure(
    number: int,
    pictures: dict[tuple[int, str], str],
    data: dict[tuple[int, str], str],
    verdicts: list[Verdict],
) -> Figure:
    return Figure(
        number,
        {rule: pictures[number, rule] for rule in _rules(number, pictures)},
        {rule: data[number, rule] for rule in _rules(number, data)},
        tuple(verdict for verdict in verdicts if verdict.figure == number),
    )


def _rules(number: int, files: dict[tuple[int, str], str]) -> list[str]:
    found = [rule for figure, rule in files if figure == number]
    return sorted(found, key=lambda rule: (ORDER.index(rule) if rule in ORDER else len(ORDER), rule))


def _verdicts(folder: Path) -> tuple[list[Verdict], str | None]:
    path = folder / "verdicts.json"
    if not path.is_file():
        return [], None
    try:
        return list(_read(json.loads(path.read_text(encoding="utf-8")))), None
    except (OSError, ValueError, KeyError, TypeError):
        return [], f"The verdicts in {str(path)!r} cannot be read; make them again with nbafl reproduce."


def _read(content: Any) -> Iterator[Verdict]:
    for each in content:
        yield Verdict(
            int(each["figure"]),
            str(each["claim"]),
            str(each["calibration"]),
            str(each["verdict"]),
            dict(each.get("evidence") or {}),
        )
