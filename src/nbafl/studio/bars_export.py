"""The bars of ε taken along: as SVG, as PNG (the browser paints the SVG), or as CSV with every digit.

A picture leaves the page that explains it, so it carries what its numbers are about: δ, unit, rounds and assumptions.
"""

from __future__ import annotations

import csv
import io
import json
import textwrap
from dataclasses import dataclass

from nicegui import Client, ui

from nbafl.privacy.adversary import Adversary
from nbafl.studio import plot
from nbafl.studio.answer import Answer
from nbafl.studio.bars import Axis, Series, claim_of, mark, series_of, tick_label
from nbafl.studio.wording import escape, short

NAME = "What each adversary could learn"
FILE = "epsilon-per-adversary"
NAMES, PLOT, NUMBER, ROW, MARGIN = 260, 400, 76, 56, 20
"""Widths of the three columns (a number for each series), height of a row, and the margin, in pixels."""
LETTERS = 46
"""Of the small font in the column of names."""
STYLE = """text{font-family:Roboto,"Segoe UI","Helvetica Neue","Liberation Sans",sans-serif;font-size:13px;fill:#14202e}
.title{font-size:16px;font-weight:bold}.who{font-weight:bold}.soft{font-size:11px;fill:#556273}
.mark{font-size:11px;font-weight:bold;fill:#0072b2}.number{text-anchor:end}.number.plan{font-weight:bold;fill:#0072b2}
.number.paper{fill:#8a5f00}.number.clip{fill:#556273}.tick{text-anchor:middle;font-size:11px;fill:#556273}"""
HATCH = (
    '<pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="7" height="7" fill="#f6d48b"/><rect width="4" height="7" fill="#e69f00"/></pattern>'
)
PAINT = {
    "plan": 'fill="#0072b2"',
    "paper": 'fill="url(#hatch)"',
    "clip": 'fill="#ffffff" stroke="#7b8794" stroke-width="1.5"',
}
CLAIM = 'stroke="#b84a00" stroke-width="2" stroke-dasharray="5 3"'


class BarsExport:
    """The buttons below the bars; they take along what is on the page."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.answer: Answer | None = None

    def build(self) -> None:
        with plot.tools(NAME):
            for kind, action in (("svg", self._svg), ("png", self._png), ("csv", self._csv)):
                plot.tool(NAME, kind.upper(), action, kind)

    def _svg(self) -> None:
        if self.answer is not None:
            ui.download.content(as_svg(self.answer), f"{FILE}.svg", "image/svg+xml")

    def _png(self) -> None:
        if self.answer is not None:
            told = f"{json.dumps(as_svg(self.answer))}, {json.dumps(FILE + '.png')}"
            self.client.run_javascript(f"window.studioPng({told})")

    def _csv(self) -> None:
        if self.answer is not None:
            ui.download.content(as_csv(self.answer), f"{FILE}.csv", "text/csv")


def as_csv(answer: Answer) -> str:
    """A row for each series and adversary, with all that its ε is about; an ε that is not finite is `inf`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["series", "adversary", "epsilon", "delta", "unit", "adjacency", "rounds", "exposures", "assumptions"]
    )
    plan, claimed = answer.plan, answer.summary["claimed"]
    about = [plan.delta, claimed["unit"], claimed["adjacency"], plan.rounds, plan.exposures]
    rests = " ".join(answer.summary["assumptions"])
    for series in series_of(answer):
        for who in plan.adversaries():
            value = series.values[who.key]
            writer.writerow([series.label, who.name, "inf" if value is None else repr(value), *about, rests])
    return text.getvalue()


def as_svg(answer: Answer) -> str:
    """The same picture as on the page, with text that stays text, and below it what it rests on."""
    drawing = _Drawing(answer, series_of(answer))
    top = drawing.legend()
    bottom = drawing.rows(top)
    end = drawing.words(bottom + 34)
    width = drawing.width
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{end}" viewBox="0 0 {width} {end}">'
        f"<title>{NAME}</title><style>{STYLE}</style><defs>{HATCH}</defs>"
        f'<rect width="{width}" height="{end}" fill="#ffffff"/>{"".join(drawing.parts)}</svg>'
    )


@dataclass
class _Drawing:
    """An SVG that grows from top to bottom; each method returns where it ended."""

    answer: Answer
    series: list[Series]

    def __post_init__(self) -> None:
        self.parts: list[str] = []
        self.claim = claim_of(self.answer)
        values = [value for each in self.series for value in each.values.values()]
        self.axis = Axis.around([self.claim, *values])
        self.left = MARGIN + NAMES
        self.width = self.left + PLOT + NUMBER * len(self.series) + MARGIN

    def legend(self) -> int:
        self._text(MARGIN, 30, NAME, "title")
        y = 54
        for each in self.series:
            self.parts.append(f'<rect x="{MARGIN}" y="{y - 9}" width="22" height="10" {PAINT[each.key]}/>')
            self._text(MARGIN + 30, y, each.label)
            y += 19
        if self.claim is not None:
            self._line(MARGIN + 11, y - 12, y + 3, CLAIM)
            self._text(MARGIN + 30, y, f"the claim, ε = {short(self.claim)}")
            y += 19
        return y

    def rows(self, top: int) -> int:
        plan = self.answer.plan
        bottom = top + ROW * len(plan.adversaries())
        for at in self.axis.ticks():
            x = self.left + PLOT * (at - self.axis.low) / (self.axis.high - self.axis.low)
            self._line(x, top, bottom, 'stroke="#dce2e9"')
            self._text(x, bottom + 16, tick_label(at), "tick")
        for number, who in enumerate(plan.adversaries()):
            self._row(who, top + ROW * number)
        if self.claim is not None:
            self._line(self._x(self.claim), top, bottom, CLAIM)
        return bottom

    def _row(self, who: Adversary, top: int) -> None:
        said = mark(self.answer, who)
        seen = [(line, "soft") for line in textwrap.wrap(f"sees {who.short}", LETTERS)]
        for place, (line, kind) in enumerate(
            [(who.heading, "who"), *seen, *([(said, "mark")] if said else [])]
        ):
            self._text(MARGIN, top + 15 + 13 * place, line, kind)
        y = top + (ROW - 16 * len(self.series)) / 2
        for rank, each in enumerate(self.series):
            value = each.values[who.key]
            long = self._x(value) - self.left
            self.parts.append(
                f'<rect x="{self.left}" y="{y + 16 * rank:.1f}" width="{long:.2f}" height="11" {PAINT[each.key]}/>'
            )
            x = self.left + PLOT + NUMBER * (rank + 1)
            self._text(x, top + ROW // 2 + 5, short(value), f"number {each.key}")

    def words(self, y: int) -> int:
        """What the numbers are about, and what they rest on."""
        plan, claimed = self.answer.plan, self.answer.summary["claimed"]
        about = (
            f"ε at δ = {short(plan.delta)}, per {claimed['unit']} ({claimed['adjacency']}), over all {plan.rounds} rounds "
            f"with L = {plan.exposures}; logarithmic. It rests on:"
        )
        letters = (self.width - 2 * MARGIN) // 6
        for sentence in (about, *self.answer.summary["assumptions"]):
            for line in textwrap.wrap(sentence, letters):
                self._text(MARGIN, y + 6, line, "soft")
                y += 15
        return y + MARGIN

    def _x(self, value: float | None) -> float:
        return self.left + PLOT * self.axis.share(value) / 100

    def _text(self, x: float, y: float, words: str, kind: str = "") -> None:
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(words)}</text>')

    def _line(self, x: float, top: float, bottom: float, paint: str) -> None:
        self.parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}" {paint}/>')
