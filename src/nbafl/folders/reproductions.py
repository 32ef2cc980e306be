"""What `nbafl reproduce` leaves: pictures by figure and calibration, and the verdict on each claim.

    OUT/fig02_paper.png ...   each figure under each calibration, also .svg and .csv
        verdicts.json         a list: figure, claim, calibration, verdict, evidence
        index.html            both on one page
        data/                 cached results, and the pilot of figures 8 and 9

A half-written folder shows what is there; verdicts that cannot be read are said in a sentence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from nbafl.durable import write_text
from nbafl.errors import DataError
from nbafl.folders import files

VERDICT_LIST = "verdicts.json"
PAGE = "index.html"
DATA = "data"
RESULTS = "results.json"
PICTURE = re.compile(r"fig(?P<number>\d+)_(?P<calibration>[a-z]+)\.(?P<kind>png|svg|csv)")
ORDER = ("paper", "separate", "exact")


@dataclass(frozen=True)
class Verdict:
    """What became of one claim of the paper under one calibration."""

    figure: int
    claim: str
    calibration: str
    verdict: str
    evidence: dict[str, Any] = field(default_factory=dict)


_VERDICTS = TypeAdapter(list[Verdict])


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
            kind = data if found["kind"] == "csv" else pictures
            kind[int(found["number"]), found["calibration"]] = name
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


def _rules(number: int, names: dict[tuple[int, str], str]) -> list[str]:
    found = [rule for figure, rule in names if figure == number]
    return sorted(found, key=lambda rule: (ORDER.index(rule) if rule in ORDER else len(ORDER), rule))


def _verdicts(folder: Path) -> tuple[list[Verdict], str | None]:
    try:
        return read_verdicts(folder), None
    except DataError as error:
        return [], f"{error} Make it again with nbafl reproduce."


def read_verdicts(folder: Path) -> list[Verdict]:
    """The verdicts in a folder, none where there is no list of them; DataError where it is not one of ours."""
    path = folder / VERDICT_LIST
    try:
        return _VERDICTS.validate_python(files.read_json(path) or [])
    except ValidationError:
        raise files.damaged(path, "it is not a list of verdicts") from None


def write_verdicts(folder: Path, entries: Sequence[dict[str, Any]]) -> None:
    """Keep the verdicts, as `nbafl reproduce --json` prints them."""
    write_text(folder / VERDICT_LIST, json.dumps(entries, indent=2) + "\n")


def picture_name(figure: int, calibration: str) -> str:
    """The name of a picture's files, without the suffix."""
    return f"fig{figure:02d}_{calibration}"
