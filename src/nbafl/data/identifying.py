"""Columns whose values tell whom a record is about, or when: identifiers, persons, dates, text of many values.

Their values are private as they stand, so none of them becomes a category: a schema that is drafted leaves such a
column out and keeps its name alone, and a run without a schema refuses it until its owner says what it is.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from nbafl.data.tables import Table, number, values_of

NEAR_UNIQUE = 0.9
"""Text or whole numbers with more different values than this share of the records look like an identifier …"""
ENOUGH, ENOUGH_TEXT = 30, 10
"""… once there are so many whole numbers, or so many texts."""
FEW = 20
"""So many different values may be categories, however few rows there are."""
ROWS_PER_VALUE = 10
"""More than `FEW` texts are categories only where each stands in so many rows on average."""
_PERSON_NAMES = re.compile(
    r"(^|[^a-z])(id|ids|patient|person|subject|mrn|ssn|customer|user|case)([^a-z]|$)", re.I
)
_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DATE = re.compile(
    r"(\d{4}([-/.])\d{1,2}\2\d{1,2}"  # 2026-01-31
    r"|\d{1,2}([-/.])\d{1,2}\3(\d{2}|\d{4})"  # 31.01.2026
    rf"|\d{{1,2}}[-. ]*{_MONTH}[-, ]*\d{{2,4}}"  # 31 Jan 2026
    rf"|{_MONTH} *\d{{1,2}},? +\d{{4}})"  # Jan 31, 2026
    r"([T ].*)?",  # and the time of day
    re.I,
)
_COMPACT_DATE = re.compile(
    r"(18|19|20|21)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])([01]\d|2[0-3])?([0-5]\d){0,2}(\.0)?"
)
"""20260131, with or without hours, minutes and seconds: a number that measures nothing."""


@dataclass(frozen=True)
class Identifying:
    """A column that is not to be learned from as it stands, and why."""

    name: str
    looks: str
    """What it looks like, as the end of a sentence about it."""
    different: int
    rows: int
    """Rows that have a value."""
    persons: bool
    """Whether it may say whose row it is: its values repeat, and they are not dates."""
    categories: bool
    """Whether its values would become categories; otherwise they are numbers, of which a schema keeps the range."""

    def __str__(self) -> str:
        return f"{self.name!r} ({self.different} different values) {self.looks}"

    @property
    def refused(self) -> bool:
        """Whether a run without a schema refuses it; numbers that repeat may be a measurement and get a remark."""
        return self.categories or not self.persons


def identifying(tables: Sequence[Table], names: Sequence[str]) -> list[Identifying]:
    """Those of the columns that look like it, in their order."""
    return [found for name in names if (found := _judged(tables, name)) is not None]


def ways_out(found: Sequence[Identifying]) -> str:
    """What their owner can do about them other than to leave them out, with the options as they are typed."""
    persons = [each.name for each in found if each.persons]
    whose = f"say --person {shlex.quote(persons[0])} if it says whose row it is; " if persons else ""
    return f"{whose}describe a column in schema.toml, from what is known in public, if it is a measurement or a category"


def refusal(found: Sequence[Identifying]) -> str:
    """The sentence about columns that are not learned from before their owner has said what they are."""
    ignored = shlex.quote(",".join(each.name for each in found))
    return (
        f"{'; '.join(map(str, found))}: such values tell whom a record is about and nothing about others. Leave out with "
        f"--ignore {ignored}; otherwise {ways_out(found)}."
    )


def repeats_persons(tables: Sequence[Table], name: str) -> bool:
    """Whether a column is called like an identifier and holds each of its values for several rows."""
    return _called_like_persons(name, values_of(tables, name))


def _judged(tables: Sequence[Table], name: str) -> Identifying | None:
    values = values_of(tables, name)
    distinct, rows = len(set(values)), len(values)
    numbers = [number(value) for value in values]
    # Less text than numbers among them is a typing error, which is refused by its row.
    text = bool(values) and 2 * sum(each is None for each in numbers) >= rows
    whole = all(each is None or each.is_integer() for each in numbers)
    repeated = distinct <= NEAR_UNIQUE * rows
    if 2 * sum(bool((_DATE if text else _COMPACT_DATE).fullmatch(value)) for value in values) > rows:
        return Identifying(name, "holds dates", distinct, rows, False, text)
    if not repeated and (rows >= ENOUGH_TEXT if text else whole and rows >= ENOUGH):
        return Identifying(name, "looks like an identifier", distinct, rows, False, text)
    if _called_like_persons(name, values) and (text or whole):
        return Identifying(name, "looks like persons with several rows each", distinct, rows, True, text)
    if text and repeated and distinct > FEW and rows < ROWS_PER_VALUE * distinct:
        return Identifying(name, "has few rows for each of its values", distinct, rows, True, True)
    return None


def _called_like_persons(name: str, values: Sequence[str]) -> bool:
    return (
        bool(_PERSON_NAMES.search(name))
        and len(values) >= ENOUGH
        and FEW < len(set(values)) <= NEAR_UNIQUE * len(values)
    )
