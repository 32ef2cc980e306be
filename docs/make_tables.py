"""Write the tables of docs/reference.md from the tables in the code: python docs/make_tables.py

Each table stands between two comments, `<!-- NAME -->` and `<!-- /NAME -->`; a test fails where it is out of date.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from nbafl.fields import table
from nbafl.privacy import adversary

PAGE = Path(__file__).parent / "reference.md"


def adversaries() -> str:
    rows = [(f"`{each.pattern}`", each.title, each.sees.replace("one client that works", "COUNT clients that work"))
            for each in adversary.table()]  # fmt: skip
    return _table(("name", "in short", "sees"), rows)


def fields() -> str:
    rows = [
        (f"`{name}`", each.shown_default or "–", each.sentence.removesuffix("."))
        for name, each in table().items()
    ]
    return _table(("field", "default", "what it is"), rows)


TABLES: dict[str, Callable[[], str]] = {"fields": fields, "adversaries": adversaries}


def renewed(text: str) -> str:
    """The page with every table made anew."""
    for name, make in TABLES.items():
        between = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        text, count = re.subn(
            between, lambda found, table=make(): found[1] + table + found[2], text, flags=re.DOTALL
        )
        assert count == 1, f"docs/reference.md has no place for the table {name!r}"
    return text


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
