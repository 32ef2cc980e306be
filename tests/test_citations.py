"""Every equation that code and tests cite is there: in docs/math.md, or in the paper."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MATH = (ROOT / "docs" / "math.md").read_text(encoding="utf-8")
EQUATIONS = re.findall(r"^ {4}.*\((\d+\.\d+)\)$", MATH, re.MULTILINE)
SECTIONS = re.findall(r"^## (\d+)\. ", MATH, re.MULTILINE)
NUMBER = r"\((\d+\.\d+)\)"
OURS = re.compile(rf"math\.md(?P<where>(?:,? (?:and |to )?{NUMBER})+|, section \d+)?")
PAPERS = re.compile(
    r"(?P<other>\d{4}, )?\b(?P<kind>[Tt]heorem|[Ll]emma|[Aa]ssumption|Algorithm|eq\.|[Ee]quation)s? "
    r"\(?(?P<number>\d+)\b(?!\.\d)"
)


def sources() -> list[Path]:
    here = Path(__file__).name
    return [
        path for room in ("src", "tests") for path in sorted((ROOT / room).rglob("*.py")) if path.name != here
    ]


def paper() -> set[tuple[str, str]]:
    """What math.md says is cited of the paper: (kind, number)."""
    listed = re.search(r"Cited of the paper: (.*?)\n\n", MATH, re.DOTALL)
    assert listed is not None
    plain = re.sub(r"\(.*?\)", "", listed[1], flags=re.DOTALL)
    return {
        (part.split()[0].rstrip("s").lower(), number)
        for part in plain.split(";")
        for number in re.findall(r"\b\d+\b", part)
    }


def unresolved(text: str, equations: set[str], sections: set[str], known: set[tuple[str, str]]) -> list[str]:
    """The citations in a text that lead nowhere."""
    text, lost = re.sub(r"\s+#?\s*", " ", text), []
    lost += re.findall(r"\bMATH\b.{20}", text)
    for found in OURS.finditer(text):
        where = found["where"] or ""
        numbers = re.findall(NUMBER, where)
        section = re.findall(r"section (\d+)", where)
        if set(numbers) - equations or set(section) - sections:
            lost.append(text[found.start() : found.end() + 20])
    for found in PAPERS.finditer(text):
        kind = {"eq.": "equation"}.get(found["kind"].lower(), found["kind"].lower())
        if not found["other"] and (kind, found["number"]) not in known:
            lost.append(found[0])
    return lost


def test_equations_are_numbered_in_order_within_their_sections() -> None:
    assert [int(number) for number in SECTIONS] == list(range(1, len(SECTIONS) + 1))
    expected: dict[str, int] = {}
    for equation in EQUATIONS:
        section, _, number = equation.partition(".")
        expected[section] = expected.get(section, 0) + 1
        assert section in SECTIONS
        assert int(number) == expected[section], equation
    assert len(EQUATIONS) > 40


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_citation_leads_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert unresolved(text, set(EQUATIONS), set(SECTIONS), paper()) == []


def test_a_citation_that_leads_nowhere_is_noticed() -> None:
    known = {("theorem", "2"), ("equation", "1")}
    for wrong in (
        "MATH section 3 says so, and more of it",
        "see math.md (99.9)",
        "see math.md (1.1) and (99.9)",
        "math.md, section 99",
        "Theorem 7",
        "eq. 12",
    ):
        assert unresolved(wrong, {"1.1"}, {"1"}, known), wrong
    for right in ("math.md (1.1)", "math.md, section 1", "Theorem 2", "eq. 1", "(Balle 2018, Theorem 9)"):
        assert not unresolved(right, {"1.1"}, {"1"}, known), right
