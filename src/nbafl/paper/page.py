"""One page with every figure, `paper` and `exact` side by side, and the verdicts under them. Nothing is linked: the
page can be mailed."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment

TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Figures 2 to 11, reproduced</title><style>
body{font:15px/1.5 system-ui,sans-serif;max-width:1280px;margin:2em auto;padding:0 1em;color:#222}
h1{font-size:1.5em} h2{font-size:1.15em;margin:2em 0 .4em;border-top:1px solid #ccc;padding-top:1em}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:1em;align-items:start} .pair img{width:100%}
@media (max-width:760px){.pair{grid-template-columns:1fr}}
table{border-collapse:collapse;width:100%} th,td{border:1px solid #ccc;padding:.35em .6em;text-align:left;vertical-align:top}
.holds{background:#d7ecd9} .fails{background:#f6d5cf} .artefact{background:#fbeab8} .undecided{background:#e4e7eb}
pre{white-space:pre-wrap;font-size:12px;margin:.3em 0} summary{cursor:pointer}
</style></head><body>
<h1>Figures 2 to 11 of the paper, reproduced</h1>
<p>{{ setting }}. {% if seeds > 1 %}{{ seeds }} seeds; a band is one standard deviation to either
side of the mean.{% else %}One seed: there are no bands, and no claim about training can be decided.{% endif %}</p>
<p><b>paper</b>: noise as the paper prints it. <b>exact</b>: noise that keeps the claimed ε against the paper's own
eavesdropper (every broadcast, up to L uploads of one client, and all others' in up to L further rounds in which that
client takes part), per record (replace), granting the sensitivity 2C/m.
A claim is an <b>artefact</b> where it holds under the first only because that noise is too small for the claimed ε, and
fails once the noise is large enough; it is <b>undecided</b>
where the seeds are too few to tell.</p>
<table><tr><th>figure</th><th>claim</th><th>paper</th><th>exact</th></tr>
{% for row in overview %}<tr><td>{{ row.figure }}</td><td>{{ row.claim }}</td>
<td class="{{ row.paper }}">{{ row.paper }}</td><td class="{{ row.exact }}">{{ row.exact }}</td></tr>{% endfor %}</table>
{% for figure in figures %}
<h2 id="fig{{ figure.number }}">Figure {{ figure.number }}</h2>
<div class="pair">{% for image in figure.images %}
<img alt="{{ image.title }}" src="data:image/png;base64,{{ image.data }}">{% endfor %}</div>
{% for entry in figure.verdicts %}<details><summary><b>{{ entry.calibration }}</b>: {{ entry.claim }} —
<span class="{{ entry.verdict }}">{{ entry.verdict }}</span>. {{ entry.evidence.sentence }}.
Claimed ε = {{ "%g"|format(entry.evidence.privacy.claimed_epsilon) }}, real ε =
{{ "%.3g"|format(entry.evidence.privacy.real_epsilon) }} at δ = {{ entry.evidence.privacy.delta }} against the eavesdropper
(N = {{ entry.evidence.privacy.clients }}, K = {{ entry.evidence.privacy.per_round }},
T = {{ entry.evidence.privacy.rounds }}, 2C/m granted).</summary><pre>{{ entry.text }}</pre></details>{% endfor %}
{% endfor %}
<h2>How this was tested</h2>
<p>Runs of different settings share data, initial weights and noise stream seed by seed; comparisons are one-sided paired
t-tests at level {{ level }}, divided by the number of comparisons a claim needs. An optimum exists where the smallest mean
lies inside the grid and both ends are higher; its place between grid points is the vertex of a parabola in log T.
Grids: T in {{ round_grid }}; K in {{ drawn_grid }}; N in {{ client_grid }}.</p>
</body></html>
"""


def render(
    setting: str,
    seeds: int,
    level: float,
    grids: Mapping[str, Sequence[int]],
    images: Mapping[int, Sequence[tuple[str, Path]]],
    entries: Sequence[Mapping[str, Any]],
) -> str:
    """The page; `images` holds (title, PNG file) of every figure."""
    figures = [
        {
            "number": number,
            "images": [{"title": title, "data": _inline(path)} for title, path in pair],
            "verdicts": [
                {**entry, "text": json.dumps(entry["evidence"], indent=1)}
                for entry in entries
                if entry["figure"] == number
            ],
        }
        for number, pair in sorted(images.items())
    ]
    template = Environment(autoescape=True).from_string(TEMPLATE)
    lists = {name: ", ".join(str(x) for x in grid) for name, grid in grids.items()}
    return template.render(
        setting=setting, seeds=seeds, level=level, figures=figures, overview=overview(entries), **lists
    )


def overview(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each claim of each figure, its verdicts in columns."""
    rows: dict[tuple[int, str], dict[str, Any]] = {}
    for entry in entries:
        key = (entry["figure"], entry["claim"])
        row = rows.setdefault(key, {"figure": entry["figure"], "claim": entry["claim"]})
        row[entry["calibration"]] = entry["verdict"]
    return list(rows.values())


def _inline(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
