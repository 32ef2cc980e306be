"""Numbers as pages show them."""

from __future__ import annotations

from typing import Any


def epsilon(value: float | None) -> str:
    """An epsilon; where none is finite it must not read as if nothing were lost."""
    return "∞" if value is None else number(value)


def apart(first: float, second: float, kind: str) -> tuple[str, str]:
    """Two different numbers with as many digits as they need to look different, at least one (`kind`: % or g)."""
    fewest = {"%": 1, "g": 4}[kind]
    for digits in range(fewest, 18):
        shown = f"{first:.{digits}{kind}}", f"{second:.{digits}{kind}}"
        if shown[0] != shown[1]:
            break
    return shown


def number(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(number(each) for each in value[:8]) + (" …" if len(value) > 8 else "")
    if isinstance(value, int | float):
        return f"{value:,.0f}" if 1e6 <= abs(value) < 1e12 else f"{value:.6g}"
    return str(value)
