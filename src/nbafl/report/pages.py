"""What the pages of this room share: their templates and the way they show numbers; their look is style.html."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, select_autoescape

from nbafl.privacy.adversary import name_of
from nbafl.report.numbers import epsilon, number


def environment() -> Environment:
    """Templates of this folder."""
    made = Environment(loader=PackageLoader("nbafl", "report"), autoescape=select_autoescape())
    made.filters.update(number=number, epsilon=epsilon, adversary=name_of)
    return made
