"""The Plan page's words: what is promised, how much noise that takes, what to beware of, what it rests on.

Each function turns an Answer into HTML; numbers carry their full value in `data-value`, so that what the page shows
can be compared with `nbafl plan --json` digit by digit.
"""

from __future__ import annotations

from typing import Any

from nbafl.privacy import badges
from nbafl.privacy.badges import percent
from nbafl.privacy.scope import Scope
from nbafl.studio.answer import Answer
from nbafl.studio.wording import SCROLL, escape, short

SCALES = (
    ("sigma_uplink", "noise at each client", "σ<sub>U</sub>", "in every upload"),
    ("sigma_downlink", "noise at the server", "σ<sub>D</sub>", "in every broadcast"),
    ("sigma_aggregate", "noise in all", "σ<sub>A</sub>", "what training feels"),
)


def headline(answer: Answer) -> str:
    """The promise in one sentence, and whether the noise keeps it."""
    plan, claimed = answer.plan, answer.summary["claimed"]
    if not plan.noise:
        return _badge("bad", "no protection") + "<p>No noise is added: nothing is guaranteed.</p>"
    condition = f", <b>{escape(plan.rule.if_it_holds.strip())}</b>" if plan.rule.conditional else ""
    promise = (
        f"One {claimed['unit']} ({claimed['adjacency']}) is protected, by claim, with "
        f"<b>ε = {short(plan.epsilon)}</b> at δ = {short(plan.delta)} against <b>{escape(plan.adversary)}</b>{condition}."
    )
    marks = _marks(answer)
    if answer.kept:
        return f"{marks}<p>{promise}</p>"
    found = "no finite ε" if answer.epsilon is None else f"ε = {short(answer.epsilon)}"
    return f"{marks}<p>{promise} This noise gives <b>{found}</b>.</p>"


def _marks(answer: Answer) -> str:
    """Whether the claim is kept, and whether what holds is strong."""
    both = (badges.kept(answer.kept, answer.summary["conditional"]), badges.strength(answer.guess))
    return " ".join(_badge(each.kind, each.word) for each in both)


def compact(answer: Answer) -> str:
    """The same in one line, for a narrow screen while a slider is moved."""
    noise = answer.summary["noise"]["sigma_aggregate"]
    mark = "✕" if not answer.kept else "?" if answer.summary["conditional"] else "✓"
    scope = Scope.of(answer.plan)
    return (
        f"<b>{mark} ε {short(answer.epsilon)}</b> <span>{escape(answer.adversary.name)}, δ {short(answer.plan.delta)}, "
        f"{escape(scope.whom + scope.premise)}</span> <b>σ<sub>A</sub> {short(noise)}</b>"
    )


def scales(answer: Answer) -> str:
    """The three noise scales, beside what the paper's rule would have added for the same claim."""
    return f'<div class="facts">{"".join(_scale(answer, *each) for each in SCALES)}</div>'


def _scale(answer: Answer, key: str, where: str, symbol: str, about: str) -> str:
    ours, papers = answer.summary["noise"][key], answer.paper["noise"][key]
    compared = (
        "" if answer.plan.calibration == "paper" else f"; the paper’s rule: {_value('paper_' + key, papers)}"
    )
    value = f"<b>{_value(key, ours)}</b>"
    return f'<div class="fact"><small>{symbol} {where}</small>{value}<small>{about}{compared}</small></div>'


def scales_caption(answer: Answer) -> str:
    """What a noise scale is, and what it is measured against."""
    sensitivity, unit = answer.summary["sensitivity"], answer.summary["claimed"]["unit"]
    return (
        "Noise is Gaussian; each number is the standard deviation in one coordinate of the model. "
        f"One {unit} can move an upload by Δ<sub>U</sub> = {_value('uplink_sensitivity', sensitivity['uplink'])} and the "
        f"broadcast by Δ<sub>D</sub> = {_value('downlink_sensitivity', sensitivity['downlink'])}"
        f"{escape(',' + answer.plan.rule.if_it_holds) if answer.plan.rule.conditional else ''}."
    )


def _value(name: str, value: Any) -> str:
    exact = escape(value if isinstance(value, list) else repr(value))
    return f'<span data-number="{name}" data-value="{exact}">{short(value)}</span>'


def notices(answer: Answer) -> str:
    """Warnings, each as it stands in the plan."""
    weak = badges.strength(answer.guess) == badges.strength(None)
    if not answer.summary["warnings"] and weak:
        return (
            '<p class="notice warn">Even where the claim is kept it is no useful limit: the best guess can be right '
            f"{percent(answer.guess)} of the time.</p>"
        )
    if not answer.summary["warnings"]:
        return '<p class="soft">Nothing to warn of. What the numbers rest on stands below.</p>'
    return "".join(f'<p class="notice warn">{escape(warning)}</p>' for warning in answer.summary["warnings"])


def assumptions(answer: Answer) -> str:
    """What every ε on the page rests on."""
    return "<ul>" + "".join(f"<li>{escape(each)}</li>" for each in answer.summary["assumptions"]) + "</ul>"


def bars_caption(answer: Answer) -> str:
    """What the bars mean; no ε stands on the page without its δ, its unit and its premise."""
    claimed = answer.summary["claimed"]
    premise = (
        "outlined bars assume clipping alone (2C)"
        if answer.summary["conditional"]
        else "see what it rests on, below"
    )
    return (
        f"ε at δ = {short(answer.plan.delta)}, per {claimed['unit']} ({claimed['adjacency']}), over all "
        f"{answer.plan.rounds} rounds with L = {answer.plan.exposures}; logarithmic; {premise}."
    )


def prices(answer: Answer) -> str:
    """The same claim under both ways of aggregation: what each adversary gets where the server sees uploads, or sums."""
    told, plan = answer.summary["aggregation"], answer.plan
    if not plan.noise:
        return ""
    modes = {"plain": "server sees every upload", "secure": "server sees sums alone"}
    heads = "".join(
        f'<th scope="col">{mode} ({about}){", this plan" if told["mode"] == mode else ""}</th>'
        for mode, about in modes.items()
    )
    rows = [
        (escape(each.heading), [_price(told[mode], "guarantee", each.key) for mode in modes])
        for each in plan.adversaries()
    ]
    rows.append(("Anyone who opens single uploads", [_price(told[mode], "opened") for mode in modes]))
    rows.append(("σ<sub>A</sub>, noise in all", [_price(told[mode], "sigma_aggregate") for mode in modes]))
    body = "".join(
        f'<tr><th scope="row">{name}</th>{"".join(f"<td>{value}</td>" for value in values)}</tr>'
        for name, values in rows
    )
    refused = "".join(
        f'<p class="soft">{mode.capitalize()}: {escape(told[mode]["refused"])}</p>'
        for mode in modes
        if "refused" in told[mode]
    )
    return (
        f"<details><summary>The same claim under plain and secure aggregation</summary>{SCROLL}"
        f'<table class="compare"><thead><tr><th scope="col">ε against</th>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{refused}</details>"
    )


def _price(told: dict[str, Any], name: str, key: str = "") -> str:
    if "refused" in told:
        return "–"
    found = told[name][key] if key else told[name]
    return short(found["epsilon"] if isinstance(found, dict) else found)


def _badge(kind: str, text: str) -> str:
    mark = {"good": "✓", "perhaps": "?", "bad": "✕"}[kind]
    return f'<span class="badge {kind}"><i aria-hidden="true">{mark}</i> {text}</span>'
