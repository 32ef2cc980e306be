"""The Figures page: the paper's figures as `nbafl reproduce` made them, paper and exact side by side, with verdicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from nicegui import ui

from nbafl.folders import reproductions
from nbafl.folders.reproductions import ORDER, Figure, Verdict
from nbafl.studio import layout
from nbafl.studio.wording import SCROLL, escape, short

CAPTIONS = {
    "paper": "The paper’s rule, as printed",
    "separate": "The paper’s requirements, exact arithmetic",
    "exact": "Exact noise against the eavesdropper",
}
MARKS = {
    "holds": ("good", "✓"),
    "fails": ("bad", "✕"),
    "artefact": ("perhaps", "!"),
    "undecided": ("perhaps", "?"),
}
MEANING = (
    "<b>holds</b>: the runs show what the paper claims. <b>fails</b>: they show otherwise. <b>artefact</b>: it holds "
    "under the paper’s rule only because its noise is too small for the claimed ε. <b>undecided</b>: too few "
    "seeds to tell."
)


def build(folder: Path) -> None:
    """The page for what is in the folder now."""
    layout.heading("The paper’s figures", level=1).classes("visually-hidden")
    found = reproductions.visit(folder)
    if found.problem:
        ui.label(found.problem).classes("notice error")
    if not found.figures:
        _empty_state(folder)
        return
    with ui.element("div").classes("figure-grid"):
        with layout.card():
            layout.heading("Does the paper’s story hold?")
            layout.markup(_overview(found.figures))
            layout.markup(MEANING, tag="p").classes("caption")
        for figure in found.figures:
            layout.markup(_card(figure), tag="section").classes("card").props(f'id="figure-{figure.number}"')


def _empty_state(folder: Path) -> None:
    with layout.card("empty"):
        layout.heading("No figures yet")
        layout.markup(
            "<p>The paper’s ten result figures, reproduced with its own rule and with exact noise, with a verdict on each "
            f"claim. Make them with:</p><code>nbafl reproduce --out {escape(folder)}</code>"
            f"<p>A few figures only: <code>nbafl reproduce 2 3 --out {escape(folder)}</code>. Then open this page again.</p>"
        )


def _overview(figures: tuple[Figure, ...]) -> str:
    """Every claim with its verdicts, and the way to its figure."""
    rules = [
        rule for rule in ORDER if any(rule in _by_rule(claim) for each in figures for claim in _claims(each))
    ]
    heads = "".join(f'<th scope="col">{escape(rule)}</th>' for rule in rules)
    rows = "".join(_overview_row(figure, rules) for figure in figures)
    return (
        f'{SCROLL}<table class="compare overview"><thead><tr><th scope="col">Figure</th>'
        f'<th scope="col">Claim</th>{heads}'
        f"</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _overview_row(figure: Figure, rules: list[str]) -> str:
    link = f'<th scope="row"><a href="#figure-{figure.number}">Fig. {figure.number}</a></th>'
    if not figure.verdicts:
        return f'<tr>{link}<td colspan="{len(rules) + 1}">no verdict was written</td></tr>'
    rows = []
    for claim in _claims(figure):
        found = _by_rule(claim)
        cells = "".join(f"<td>{_badge(found[rule].verdict) if rule in found else '–'}</td>" for rule in rules)
        rows.append(f"<tr>{link}<td>{escape(claim[0].claim)}</td>{cells}</tr>")
    return "".join(rows)


def _claims(figure: Figure) -> list[list[Verdict]]:
    """The verdicts of a figure, one list for each claim."""
    grouped: dict[str, list[Verdict]] = {}
    for verdict in figure.verdicts:
        grouped.setdefault(verdict.claim, []).append(verdict)
    return list(grouped.values())


def _by_rule(verdicts: list[Verdict]) -> dict[str, Verdict]:
    return {verdict.calibration: verdict for verdict in verdicts}


def _card(figure: Figure) -> str:
    pictures = "".join(_picture(figure, rule, name) for rule, name in figure.pictures.items())
    claims = "".join(_claim(claim) for claim in _claims(figure))
    return f'<h2>Figure {figure.number}</h2><div class="pics">{pictures}</div>{claims}'


def _claim(verdicts: list[Verdict]) -> str:
    """A claim, and what became of it under each calibration."""
    rows = "".join(_verdict(verdict) for verdict in verdicts)
    return f'<h3>Claim: {escape(verdicts[0].claim)}</h3><ul class="verdicts">{rows}</ul>'


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
    evidence = escape(json.dumps(verdict.evidence, indent=1, ensure_ascii=False))
    more = f"<details><summary>evidence</summary><pre>{evidence}</pre></details>" if verdict.evidence else ""
    worth = _worth(verdict.evidence.get("privacy"))
    return f"<li>{_badge(verdict.verdict)}<b>{escape(verdict.calibration)}</b><div>{worth}{more}</div></li>"


def _badge(verdict: str) -> str:
    kind, sign = MARKS.get(verdict, ("", "?"))
    return f'<span class="badge {kind}"><i aria-hidden="true">{sign}</i> {escape(verdict)}</span>'


def _worth(privacy: Any) -> str:
    """What the noise of these runs claims and what it is worth, with all that an ε needs beside it."""
    if not isinstance(privacy, dict) or not isinstance(privacy.get("real_epsilon"), int | float):
        return ""
    claimed, real, delta = (privacy.get(name) for name in ("claimed_epsilon", "real_epsilon", "delta"))
    return (
        f"claims ε = {_number(claimed)}, is worth ε = {_number(real)} at δ = {_number(delta)} against "
        f"{escape(privacy.get('adversary'))} ({escape(privacy.get('assumption'))})"
    )


def _number(value: Any) -> str:
    return short(value) if isinstance(value, int | float) else escape(value)
