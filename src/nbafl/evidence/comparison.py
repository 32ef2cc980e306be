"""What a file says beside what was computed again: every difference is a finding with its place."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

TOLERANCE = 1e-6
SHOWN, BEFORE = 80, 30
"""Characters of a text that are shown, and how many of them before the place where two texts part."""
OF_THE_MACHINE = ("versions", "sentences")
"""Parts of a statement that say what computed it, or that `wording` compares."""
PROSE = ("sees", "premise", "accountant", "assumptions", "not_covered", "sentence", "assumption")
"""Parts of a statement that another version of nbafl may word otherwise; every other text is a name, and names stay."""


@dataclass(frozen=True)
class Finding:
    """Something that does not fit, and where."""

    place: str
    what: str

    def __str__(self) -> str:
        return f"{self.place}: {self.what}."


def differences(said: Any, again: Any, place: str, words: bool = True) -> Iterator[Finding]:
    """Where two JSON values differ; numbers beyond rounding, prose only where `words` are to be compared."""
    if isinstance(again, dict) and isinstance(said, dict):
        left_out = OF_THE_MACHINE if words else (*OF_THE_MACHINE, *PROSE)
        for name in sorted(said.keys() | again.keys()):
            if name in left_out:
                continue
            if name not in said or name not in again:
                yield Finding(f"{place}.{name}", "is missing" if name in again else "does not belong there")
            else:
                yield from differences(said[name], again[name], f"{place}.{name}", words)
    elif isinstance(again, list) and isinstance(said, list) and len(said) == len(again):
        for number, (one, other) in enumerate(zip(said, again, strict=True)):
            yield from differences(one, other, f"{place}[{number}]", words)
    elif is_number(said) and is_number(again):
        if not math.isclose(said, again, rel_tol=TOLERANCE, abs_tol=1e-300):
            yield Finding(place, f"says {said:.8g}, computed again it is {again:.8g}")
    elif said != again:
        one, other = _apart(said, again)
        yield Finding(place, f"says {one}, computed again it is {other}")


def is_number(value: object) -> bool:
    """A number, and not a truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _apart(said: object, again: object) -> tuple[str, str]:
    """Both as text; long ones from shortly before they part, so that what differs is seen."""
    one, other = repr(said), repr(again)
    common = sum(
        1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    )
    start = max(0, common - BEFORE) if max(len(one), len(other)) > SHOWN else 0
    return _cut(one, start), _cut(other, start)


def _cut(text: str, start: int) -> str:
    head = "..." if start else ""
    end = start + SHOWN - len(head)
    return head + (text[start:] if len(text) <= end else f"{text[start : end - 3]}...")
