"""answers.jsonl of a federation's run: who was online, drawn and heard in each round, and the server's noise in it.

The privacy statement is made from this file, so a round that is missing in it counts as the worst that the plan allows.
Where only some clients are drawn, a line says that a round was begun before anybody is asked: a round that stops tells
who was drawn, and one that took several attempts is not one for which everybody was online.
"""

from __future__ import annotations

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
    found = {} if path is None else {line.get("number"): line for line in files.lines(path)}
    return [as_round(found.get(number), plan, path) for number in range(1, rounds + 1)]


def as_round(line: dict[str, Any] | None, plan: Plan, path: Path | None = None) -> AnsweredRound:
    """A line of the file as accounting takes it; None: nothing is known of the round."""
    if line is None:
        return AnsweredRound(1, 0.0, everyone_online=False)
    try:
        answered = np.array([int(client) for client in line["answered"]])
        extra = float(line["sigma_downlink"]) ** 2 - plan.noise_scales().sigma_downlink ** 2
        complete = (
            len(line.get("online", ())) == len(line.get("still_online", ())) == plan.clients
            and len(answered) == plan.drawn
            and line.get("attempts") == 1
        )
    except (KeyError, TypeError, ValueError):
        raise files.damaged(path or Path(FILE), "a line in it says nothing of a round") from None
    return AnsweredRound(answered, max(0.0, extra), everyone_online=complete)
