"""The Plan page's words: what is promised, how much noise that takes, what to beware of, what it rests on.

Each function turns an Answer into HTML; numbers carry their full value in `data-value`, so that what the page shows
can be compared with `nbafl plan --json` digit by digit.
"""

from __future__ import annotations

from typing import Any

from nbafl.studio.answer import Answer
from nbafl.studio.wording import escape, short

SCALES = (
    ("sigma_uplink", "at each client", "σ<sub>U</sub>", "added to every upload"),
    ("sigma_downlink", "at the server", "σ<sub>D</sub>", "added to every broadcast"),
    ("sigma_aggregate", "in the broadcast", "σ<sub>A</sub>", "all of it together, what training feels"),
)


def headline(answer: Answer) -> str:
    """The promise in one sentence, and whether the noise keeps it."""
    plan, claimed = answer.plan, answer.summary["claimed"]
    if not plan.noise:
        return _badge("bad", "no protection") + "<p>No noise is added: nothing is promised to anybody.</p>"
    condition = ", <b>if 2C/m holds</b>" if answer.summary["conditional"] else ""
    promise = (
        f"One {claimed['unit']} ({claimed['adjacency']}) is claimed to be protected with "
        f"<b>ε = {short(plan.epsilon)}</b> at δ = {short(plan.delta)} against <b>{escape(plan.adversary)}</b>{condition}."
    )
    if answer.kept:
        return _badge("good", "claim kept") + f"<p>{promise}</p>"
    found = "no finite ε" if answer.epsilon is None else f"ε = {short(answer.epsilon)}"
    return _badge("bad", "claim not kept") + f"<p>{promise} This noise is worth <b>{found}</b> there.</p>"


def compact(answer: Answer) -> str:
    """The same in one line, for a narrow screen while a slider is moved."""
    noise = answer.summary["noise"]["sigma_aggregate"]
    mark = "✓" if answer.kept else "✕"
    return (
        f"<b>{mark} ε {short(answer.epsilon)}</b> <span>{escape(answer.adversary.name)}, δ {short(answer.plan.delta)}"
        f"{', if 2C/m' if answer.summary['conditional'] else ''}</span> <b>σ<sub>A</sub> {short(noise)}</b>"
    )


def noise_table(answer: Answer) -> str:
    """The three scales, beside what the paper's rule would have added for the same claim."""
    rows = "".join(_scale_row(answer, *each) for each in SCALES)
    sensitivity = answer.summary["sensitivity"]
    return (
        '<table class="scales"><thead><tr><th scope="col">standard deviation of each coordinate</th>'
        '<th scope="col">this plan</th><th scope="col">paper’s rule</th><th scope="col">ratio</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
        f'<p class="soft">One {answer.summary["claimed"]["unit"]} can move an upload by Δ<sub>U</sub> = '
        f"{_value('uplink_sensitivity', sensitivity['uplink'])} and the broadcast by Δ<sub>D</sub> = "
        f"{_value('downlink_sensitivity', sensitivity['downlink'])}.</p>"
    )


def _scale_row(answer: Answer, key: str, where: str, symbol: str, about: str) -> str:
    ours, papers = answer.summary["noise"][key], answer.paper["noise"][key]
    return (
        f'<tr><th scope="row"><b>{symbol}</b> {where}<small>{about}</small></th>'
        f"<td>{_value(key, ours)}</td><td>{_value('paper_' + key, papers)}</td><td>{_ratio(ours, papers)}</td></tr>"
    )


def _ratio(ours: Any, papers: Any) -> str:
    if isinstance(ours, list) or isinstance(papers, list) or not papers:
        return "–"
    return f"{short(ours / papers, 3)}×"


def _value(name: str, value: Any) -> str:
    exact = escape(value if isinstance(value, list) else repr(value))
    return f'<span data-number="{name}" data-value="{exact}">{short(value)}</span>'


def notices(answer: Answer) -> str:
    """Warnings, each as it stands in the plan."""
    return "".join(f'<p class="notice warn">{escape(warning)}</p>' for warning in answer.summary["warnings"])


def assumptions(answer: Answer) -> str:
    """What every ε on the page rests on."""
    return "<ul>" + "".join(f"<li>{escape(each)}</li>" for each in answer.summary["assumptions"]) + "</ul>"


def bars_caption(answer: Answer) -> str:
    """What the bars mean; no ε stands on the page without its δ, its unit and its premise."""
    claimed = answer.summary["claimed"]
    premise = (
        "the outlined bars grant nothing but clipping (2C)"
        if answer.summary["conditional"]
        else "see what it rests on, below"
    )
    return (
        f"ε at δ = {short(answer.plan.delta)}, per {claimed['unit']} ({claimed['adjacency']}), over all "
        f"{answer.plan.rounds} rounds with L = {answer.plan.exposures}; logarithmic; {premise}."
    )


def _badge(kind: str, text: str) -> str:
    mark = "✓" if kind == "good" else "✕"
    return f'<span class="badge {kind}"><i aria-hidden="true">{mark}</i> {text}</span>'
