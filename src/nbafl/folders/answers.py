"""answers.jsonl of a federation's run: who was online, drawn and heard in each round, and the server's noise in it.

The privacy statement is made from this file, so a round that is missing in it counts as the worst that the plan allows.
Where only some clients are drawn, a line says that a round was begun before anybody is asked: a round that stops tells
who was drawn, and one that took several attempts is not one for which everybody was online. Nor is one near which somebody
who was drawn gave nothing: all that were drawn may have answered because it was not among them.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np

from nbafl.folders import files
from nbafl.folders.facts import Facts
from nbafl.plan import Plan
from nbafl.privacy.dropouts import AnsweredRound

FILE = "answers.jsonl"


BEGUN = "begun"


def begin(path: Path, number: int) -> None:
    """Write down that a round is begun, on disk before anybody is asked."""
    add(path, {BEGUN: number})


def keep(path: Path, done: int) -> int:
    """Keep the rounds done and what was begun of the next; how often that was."""
    files.keep_lines(path, lambda line: line.get(BEGUN) == done + 1 or 1 <= line.get("number", 0) <= done)
    return sum(line.get(BEGUN) == done + 1 for line in files.lines(path))


def add(path: Path, entry: dict[str, Any]) -> None:
    """Write down a round, on disk before its broadcast may leave."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(files.as_line(entry))
        file.flush()
        os.fsync(file.fileno())


def read(folder: Path, plan: Plan) -> list[AnsweredRound] | None:
    """The plan's rounds as they were, the worst that may be where a federation lost the file; None for a simulation."""
    path, facts = folder / FILE, Facts.load(folder)
    federation = path.is_file() or (facts is not None and facts.where == "federation")
    return first(path, plan, plan.rounds) if federation else None


def first(path: Path | None, plan: Plan, rounds: int) -> list[AnsweredRound]:
    """So many of the first rounds as they were; None: they were not written down."""
    lines = lines_of(path, rounds)
    before, after = _doubts(lines), _doubts(lines[::-1])[::-1]
    return [
        as_round(line, plan, path, doubted=one or other)
        for line, one, other in zip(lines, before, after, strict=True)
    ]


def lines_of(path: Path | None, rounds: int) -> list[dict[str, Any] | None]:
    """The line of each of the first rounds; None where there is none."""
    found = {} if path is None else {line.get("number"): line for line in files.lines(path)}
    return [found.get(number) for number in range(1, rounds + 1)]


def unable_after(line: dict[str, Any] | None, unable: frozenset[int]) -> frozenset[int]:
    """Which clients gave no usable upload when they were last drawn: there, perhaps, and yet not able to answer.

    Until it has answered again nobody can tell such a client from one that is away: a round without it counts as one whose
    draw is known, and so does a round since its last answer before.
    """
    if line is None:
        return unable
    try:
        drawn, answered = (frozenset(map(int, line.get(name, ()))) for name in ("drawn", "answered"))
    except (TypeError, ValueError):  # `as_round` says so
        return unable
    return (unable | drawn) - answered


def _doubts(lines: list[dict[str, Any] | None]) -> list[bool]:
    """Whether somebody was not able to answer when last drawn, after each round."""
    states = itertools.accumulate(
        lines, lambda unable, line: unable_after(line, unable), initial=frozenset[int]()
    )
    return [bool(unable) for unable in itertools.islice(states, 1, None)]


def as_round(
    line: dict[str, Any] | None, plan: Plan, path: Path | None = None, doubted: bool = False
) -> AnsweredRound:
    """A line of the file as accounting takes it; None: nothing is known of the round.

    `doubted`: some client may not have been able to answer, had it been drawn.
    """
    if line is None:
        return AnsweredRound(1, 0.0, everyone_online=False)
    try:
        answered = np.array([int(client) for client in line["answered"]])
        extra = float(line["sigma_downlink"]) ** 2 - plan.noise_scales().sigma_downlink ** 2
        complete = (
            len(line.get("online", ())) == len(line.get("still_online", ())) == plan.clients
            and len(answered) == plan.drawn
            and line.get("attempts") == 1
            and not doubted
        )
    except (KeyError, TypeError, ValueError):
        raise files.damaged(path or Path(FILE), "a line in it says nothing of a round") from None
    return AnsweredRound(answered, max(0.0, extra), everyone_online=complete)
