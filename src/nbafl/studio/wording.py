"""Numbers and times as people read them, and text made safe for a page."""

from __future__ import annotations

import math
from html import escape as _escape
from typing import Any

SCROLL = '<div class="scroll" tabindex="0" role="region" aria-label="A table that scrolls">'
"""Begins a box that a wide table scrolls in, also by keyboard."""
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def escape(text: object) -> str:
    """Text that cannot become markup."""
    return _escape(str(text))


def short(value: Any, digits: int = 4) -> str:
    """A number in a few digits; None is what has no finite value, a list is shown as its range."""
    if value is None:
        return "∞"
    if isinstance(value, list | tuple):
        low, high = min(value), max(value)
        return short(low, digits) if low == high else f"{short(low, digits)} – {short(high, digits)}"
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return _plain(float(value), digits)
    mantissa, exponent = f"{value:.{max(0, digits - 2)}e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    power = power_of_ten(int(exponent))
    return power if mantissa == "1" else f"{mantissa}×{power}"


def power_of_ten(exponent: int) -> str:
    """10 with its exponent, as text alone."""
    return f"10{str(exponent).translate(_SUPERSCRIPTS)}"


def _plain(value: float, digits: int) -> str:
    """Without an exponent: `digits` significant ones, but never fewer than the whole part has."""
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def duration(seconds: float) -> str:
    """A time span in at most two units."""
    if seconds < 1:
        return "less than a second"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest and minutes < 10 else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def listed(words: list[str]) -> str:
    """a, b and c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
