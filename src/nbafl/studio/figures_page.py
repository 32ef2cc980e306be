"""The Figures page: the paper's figures as `nbafl reproduce` made them, paper and exact side by side, with verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from nicegui import ui

from nbafl.studio import frame, gallery
from nbafl.studio.gallery import Figure, Verdict
from nbafl.studio.wording import escape, short

CAPTIONS = {
    "paper": "The paper’s rule, as printed",
    "separate": "The paper’s requirements, exact arithmetic",
    "exact": "Exact noise against the eavesdropper",
}
MARKS = {"holds": ("good", "✓"), "fails": ("bad", "✕"), "artefact": ("perhaps", "!")}
MEANING = (
    "<b>holds</b>: the runs show what the paper claims; <b>fails</b>: they show otherwise; <b>artefact</b>: it comes out "
    "under the paper’s rule only because that rule adds too little noise somewhere."
)


def build(folder: Path) -> None:
    """The page for what is in the folder now."""
    frame.heading("The paper’s figures", level=1).classes("visually-hidden")
    found = gallery.visit(folder)
    if found.problem:
        ui.label(found.problem).classes("notice error")
    if not found.figures:
        _empty_state(folder)
        return
    frame.markup(_jumps(found.figures), tag="nav").classes("jump").props('aria-label="Figures"')
    with ui.element("div").classes("figure-grid"):
        for figure in found.figures:
            frame.markup(_card(figure), tag="section").classes("card").props(f'id="figure-{figure.number}"')
    frame.markup(MEANING, tag="p").classes("soft")


def _empty_state(folder: Path) -> None:
    with frame.card("empty"):
        frame.heading("No figures yet")
        frame.markup(
            "<p>The paper’s ten result figures, made again with its own rule and with exact noise, and a verdict on each of "
            f"its claims. Make them with:</p><code>nbafl reproduce --out {escape(folder)}</code>"
            "<p>A few figures only: <code>nbafl reproduce 2 3</code>. Then open this page again.</p>"
        )


def _jumps(figures: tuple[Figure, ...]) -> str:
    return "".join(f'<a href="#figure-{figure.number}">Figure {figure.number}</a>' for figure in figures)


def _card(figure: Figure) -> str:
    pictures = "".join(_picture(figure, rule, name) for rule, name in figure.pictures.items())
    verdicts = "".join(_verdict(each) for each in figure.verdicts)
    listed = (
        f'<ul class="verdicts">{verdicts}</ul>' if verdicts else '<p class="soft">No verdict was written.</p>'
    )
    return f'<h2>Figure {figure.number}</h2><div class="pics">{pictures}</div>{listed}'


def _picture(figure: Figure, rule: str, name: str) -> str:
    address = f"/files/figures/{quote(name)}"
    data = figure.data.get(rule)
    link = f' · <a href="/files/figures/{quote(data)}" download>data</a>' if data else ""
    caption = CAPTIONS.get(rule, rule)
    return (
        f"<figure><figcaption>{escape(caption)}{link}</figcaption>"
        f'<a href="{address}" target="_blank" rel="noopener"><img src="{address}" loading="lazy" '
        f'alt="Figure {figure.number} under {escape(caption)}"></a></figure>'
    )


def _verdict(verdict: Verdict) -> str:
    kind, sign = MARKS.get(verdict.verdict, ("", "?"))
    evidence = "; ".join(
        f"{escape(name.replace('_', ' '))}: {_value(value)}" for name, value in verdict.evidence.items()
    )
    more = f"<details><summary>evidence</summary><small>{evidence}</small></details>" if evidence else ""
    return (
        f'<li><span class="badge {kind}"><i aria-hidden="true">{sign}</i> {escape(verdict.verdict)}</span>'
        f"<small>{escape(verdict.calibration)}</small><div>{escape(verdict.claim)}{more}</div></li>"
    )


def _value(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float | list | tuple | dict):
        return escape(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{escape(name)}: {_value(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(each) for each in value) + "]"
    return short(value)
