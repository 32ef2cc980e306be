"""The part of an evidence file that people read. It is made from the content alone, so that it can be made again."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape

from nbafl import fields
from nbafl.evidence.questions import covered
from nbafl.privacy.adversary import name_of
from nbafl.report.numbers import epsilon, number


def render(content: dict[str, Any]) -> str:
    """The page up to where the content begins."""
    environment = Environment(
        loader=PackageLoader("nbafl", "evidence"), autoescape=select_autoescape(default=True)
    )
    environment.filters.update(number=number, epsilon=epsilon, adversary=name_of, covered=covered)
    sentences = {name: field.sentence for name, field in fields.table().items()}
    return environment.get_template("page.html").render(**content, about=sentences)
