"""Formal combinations of vectors and mask streams, and what is left of them when the streams cancel."""

from __future__ import annotations

from typing import Any

FIELD = 2**61 - 1
Row = dict[Any, int]


def free_of_masks(rows: list[Row]) -> list[Row]:
    """A reduced basis of the combinations of rows in which only z's are left (modulo a large prime)."""
    names = {name for row in rows for name in row}
    order = sorted(names, key=lambda name: (name.startswith("z"), name))
    work = [dict(row) for row in rows]
    reduced: list[Row] = []
    for name in order:
        pivot = next((row for row in work if row.get(name, 0)), None)
        if pivot is None:
            continue
        work = [row for row in work if row is not pivot]
        inverse = pow(pivot[name], -1, FIELD)
        pivot = {each: value * inverse % FIELD for each, value in pivot.items()}
        work = [_cleared(row, pivot, name) for row in work]
        reduced = [_cleared(row, pivot, name) for row in reduced]
        reduced.append(pivot)
    return [row for row in reduced if all(name.startswith("z") for name in row)]


def _cleared(row: Row, pivot: Row, name: str) -> Row:
    factor = row.get(name, 0)
    if not factor:
        return row
    result = dict(row)
    for each, value in pivot.items():
        left = (result.get(each, 0) - factor * value) % FIELD
        if left:
            result[each] = left
        else:
            result.pop(each, None)
    return result
