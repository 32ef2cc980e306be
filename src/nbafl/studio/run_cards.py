"""What the Runs page says about runs: rows of the list, facts of one run, and several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from nbafl.folders.audits import PICTURES
from nbafl.plan import Plan
from nbafl.privacy import badges
from nbafl.privacy.adversary import name_of
from nbafl.privacy.scope import Scope
from nbafl.studio import charts
from nbafl.studio.run_folders import Entry
from nbafl.studio.wording import SCROLL, duration, escape, short

STATES = {
    "starting": ("live", "…", "starting"),
    "running": ("live", "●", "running"),
    "finished": ("good", "✓", "finished"),
    "stopped": ("", "❚❚", "stopped"),
    "failed": ("bad", "✕", "failed"),
    "damaged": ("bad", "✕", "damaged"),
    "audit": ("", "◎", "audit"),
    "sweep": ("", "▦", "sweep"),
    "federation": ("", "⇄", "federation"),
}
RESULTS = (
    ("test_accuracy", "test accuracy"),
    ("test_loss", "test loss"),
    ("train_accuracy", "training accuracy"),
    ("train_loss", "training loss"),
)
PROMISED = ("noise", "epsilon", "delta", "adversary", "calibration")
"""Told in one line, because an ε alone says nothing."""
IRRELEVANT = ("sizes", "test", "target", "device", "engine", "eval_every")
COMPARED = tuple(name for name in Plan.model_fields if name not in PROMISED + IRRELEVANT)


def badge(state: str) -> str:
    """A state in word and sign, coloured as well."""
    return _badge(*STATES[state])


def _badge(kind: str, sign: str, word: str) -> str:
    return f'<span class="badge {kind}"><i aria-hidden="true">{sign}</i> {word}</span>'


def marks(entry: Entry) -> str:
    """Whether the claim of a finished run is kept, and whether it is strong."""
    if entry.plan is None or entry.kept is None:
        return ""
    signs = {"good": "✓", "perhaps": "?", "bad": "✕"}
    both = (badges.kept(entry.kept, entry.plan.rule.conditional), badges.strength(entry.guess))
    return " ".join(_badge(each.kind, signs[each.kind], each.word) for each in both)


def promise(entry: Entry) -> str:
    """The promise in short, and what it is worth where that is less; never an ε without all that belongs to it."""
    plan = entry.plan
    if entry.state == "sweep":
        return _sweep_in_short(entry)
    if plan is None:
        return "a federation of real parties" if entry.state == "federation" else ""
    if not plan.noise:
        return "no noise, no promise"
    scope = Scope.of(plan)
    to_whom = (
        f"at δ {short(plan.delta)}, {plan.adversary}, per {scope.whom}, {plan.calibration}{scope.premise}"
    )
    if entry.kept:
        return f"ε {short(plan.epsilon)} {to_whom}"
    worth = f", worth ε {short(entry.epsilon)}," if entry.kept is False else ""
    return f"claims ε {short(plan.epsilon)}{worth} {to_whom}"


def _sweep_in_short(entry: Entry) -> str:
    runs = (entry.made or {}).get("runs") or []
    return f"a sweep of {len(runs)} runs" if runs else "a sweep that is not finished"


def row(entry: Entry, failed: str | None = None) -> dict[str, Any]:
    """An entry as the list shows it; plain values only, so that the list can sort by them."""
    plan = entry.plan
    accuracy = (entry.last or {}).get("test_accuracy")
    loss = (entry.last or {}).get("train_loss")
    state = "failed" if failed and entry.state == "stopped" else entry.state
    return {
        "name": entry.name,
        "state": state,
        "badge": badge(state),
        "about": entry.problem or promise(entry),
        "done": entry.rounds_done,
        "rounds": plan.rounds if plan else 0,
        "progress": progress(entry),
        "share": round(100 * entry.rounds_done / plan.rounds) if plan else 0,
        "accuracy": accuracy,
        "result": result(accuracy, loss),
        "changed": round(entry.changed),
        "when": f"{datetime.fromtimestamp(entry.changed):%d %b %H:%M}",
    }


def starting_row(name: str, plan_about: str, failed: str | None) -> dict[str, Any]:
    """A run that was started a moment ago and has no folder yet."""
    now = datetime.now()
    state = "failed" if failed else "starting"
    return {
        "name": name, "state": state, "badge": badge(state), "about": failed or plan_about, "done": 0, "rounds": 0,
        "progress": "", "share": 0, "accuracy": None, "result": "", "changed": round(now.timestamp()),
        "when": f"{now:%d %b %H:%M}", "label": name, "claimed": None, "claimed_text": "", "real": None, "real_text": "",
        "delta": None, "delta_text": "", "adversary": "", "unit": "", "seconds": None, "duration": "", "audit": "",
        "tag": "", "note": "", "archived": False, "marks": "",
    }  # fmt: skip


def result(accuracy: float | None, loss: float | None) -> str:
    """The newest accuracy, or the loss where there are no classes."""
    if accuracy is not None:
        return f"{accuracy:.1%}"
    return f"loss {short(loss)}" if loss is not None else ""


def progress(entry: Entry) -> str:
    """Rounds done, and while it goes how long it will take."""
    if entry.plan is None or entry.state == "audit":
        return ""
    text = f"{entry.rounds_done} of {entry.plan.rounds} rounds"
    left = entry.seconds_left
    return f"{text}, about {duration(left)} left" if left is not None else text


def facts(entry: Entry) -> str:
    """The newest measurements of a run and its promise, as a row of boxes."""
    last = entry.last or {}
    boxes = [
        _fact(_measured(name, last[name]), label) for name, label in RESULTS if last.get(name) is not None
    ]
    if entry.plan is not None:
        boxes = [*_rounds_box(entry, entry.plan), *boxes, _promise_box(entry, entry.plan)]
    return f'<div class="facts">{"".join(boxes)}</div>'


def _rounds_box(entry: Entry, plan: Plan) -> list[str]:
    if entry.state == "audit":
        return []
    share = 100 * entry.rounds_done / plan.rounds
    return [_fact(f"{entry.rounds_done} / {plan.rounds}", _rounds_label(entry), meter=share)]


def _promise_box(entry: Entry, plan: Plan) -> str:
    if not plan.noise:
        return _fact("no noise", "no promise")
    scope = Scope.of(plan)
    to_whom = f"at δ {short(plan.delta)}, {plan.adversary}, per {scope.whom}{scope.premise}"
    if entry.kept is False:
        return _fact(f"ε {short(entry.epsilon)}", f"delivered, ε {short(plan.epsilon)} claimed, {to_whom}")
    return _fact(f"ε {short(plan.epsilon)}", f"{'kept' if entry.kept else 'claimed'} {to_whom}")


def _rounds_label(entry: Entry) -> str:
    left = entry.seconds_left
    return f"rounds, about {duration(left)} left" if left is not None else "rounds"


def _measured(name: str, value: float) -> str:
    return f"{value:.1%}" if name.endswith("accuracy") else short(value)


def _fact(value: str, label: str, meter: float | None = None) -> str:
    bar = (
        f'<div class="meter" aria-hidden="true"><i style="width:{meter:.1f}%"></i></div>'
        if meter is not None
        else ""
    )
    return f'<div class="fact"><b>{escape(value)}</b>{bar}<small>{escape(label)}</small></div>'


def written(entry: Entry) -> str:
    """What people wrote on the folder."""
    tags = "".join(f'<span class="tag">{escape(tag)}</span>' for tag in entry.label.tags)
    note = f'<p class="note-text">{escape(entry.label.note)}</p>' if entry.label.note else ""
    return f'<div class="written">{note}{tags}</div>' if note or tags else ""


def statement(privacy: dict[str, Any] | None, entry: Entry) -> str:
    """The privacy statement of a finished run, or what the plan claims until there is one."""
    if privacy is not None:
        sentences = [str(sentence) for sentence in privacy.get("sentences", [])]
        return '<div class="statement">' + "".join(f"<p>{escape(each)}</p>" for each in sentences) + "</div>"
    return (
        '<p class="soft">The privacy statement is written when the run finishes. '
        f"Until then: {escape(promise(entry))}.</p>"
    )


def audit(found: dict[str, Any] | None, entry: Entry) -> str:
    """What attacks could prove, beside what was claimed; or how to have them made."""
    if found is None:
        return (
            '<p class="soft">No audit was made of this run. Attack its plan with: '
            f"<code>nbafl audit --config {escape(entry.path / 'plan.toml')} --out {escape(entry.path)}</code></p>"
        )
    refuted = found.get("verdict") == "refuted"
    mark = _badge("bad", "✕", "refuted") if refuted else _badge("good", "✓", "consistent")
    claim = (
        f"ε = {_shown(found.get('claimed_epsilon'))} at δ = {_shown(found.get('delta'))} against "
        f"{escape(found.get('adversary'))}"
    )
    return (
        f"<p>{mark} Attacks on the mechanism, {_shown(found.get('trials'))} runs in each of two neighbouring worlds: the "
        f"claim {claim} is {'refuted' if refuted else 'not contradicted'}. What was proved holds with confidence "
        f"{_shown(found.get('confidence'))}.</p>{_attacks(found)}{_pictures(entry)}"
    )


def _pictures(entry: Entry) -> str:
    """What the attacks mean, where they were drawn."""
    there = [(name, about) for name, about in PICTURES.items() if (entry.path / name).is_file()]
    return "".join(
        f'<figure class="audit-picture"><img loading="lazy" src="/files/runs/{quote(entry.name)}/picture/{name}" '
        f'alt="{escape(about)}"><figcaption>{escape(about)}</figcaption></figure>'
        for name, about in there
    )


def _attacks(found: dict[str, Any]) -> str:
    """The ε each adversary could prove, beside what the accountant allows it."""
    attacks = {name_of(key): attack for key, attack in (found.get("attacks") or {}).items()}
    attacks = attacks or {str(found.get("adversary")): {"proved_epsilon": found.get("proved_epsilon")}}
    rows = "".join(_attack_row(name, attack) for name, attack in attacks.items())
    heads = ("adversary", "proved at least", "without assuming Gaussian noise", "accounted at most")
    cells = "".join(f'<th scope="col">{head}</th>' for head in heads)
    return (
        f'{SCROLL}<table class="compare"><thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table></div>'
        f'<p class="caption">ε at δ = {_shown(found.get("delta"))}; a lower bound may not pass what is accounted.</p>'
    )


def _attack_row(name: str, attack: dict[str, Any]) -> str:
    proved = attack.get("proved_epsilon") or {}
    values = (proved.get("gaussian"), proved.get("distribution_free"), attack.get("accounted_epsilon"))
    return _compare_row(name, [_shown(value) for value in values])


def _shown(value: Any) -> str:
    """A number of somebody else's file; what it does not hold is a dash."""
    return short(value) if isinstance(value, int | float) else "–" if value is None else escape(value)


def compare(entries: Sequence[Entry]) -> str:
    """Several runs side by side: results, promises, and every other field in which their plans differ."""
    known = [entry for entry in entries if entry.plan is not None]
    heads = "".join(
        f'<th scope="col"><i class="swatch" style="border-color:{charts.colour(i)};border-top-style:{_style(i)}"></i>'
        f"{escape(entry.name)}</th>"
        for i, entry in enumerate(known)
    )
    plans = [entry.plan for entry in known if entry.plan is not None]
    settings = [(name, _values(plans, name)) for name in COMPARED]
    rest: list[tuple[str, list[str]]] = [
        ("promise", [promise(entry) for entry in known]),
        *((label, [_newest(entry, name) for entry in known]) for name, label in RESULTS),
        ("rounds done", [progress(entry) for entry in known]),
        ("state", [entry.state for entry in known]),
    ]
    differing = [each for each in (*settings, *rest) if len(set(each[1])) > 1]
    rows = [_compare_row(*each) for each in (*differing, *(each for each in rest if each not in differing))]
    return (
        f'{SCROLL}<table class="compare"><thead><tr><th scope="col">Run</th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def legend(names: Sequence[str]) -> str:
    """Which line is which run."""
    return "".join(
        f'<span class="legend-item"><i class="swatch" style="border-color:{charts.colour(i)};border-top-style:{_style(i)}">'
        f"</i>{escape(name)}</span> "
        for i, name in enumerate(names)
    )


def _newest(entry: Entry, name: str) -> str:
    value = (entry.last or {}).get(name)
    return "–" if value is None else _measured(name, value)


def _style(index: int) -> str:
    return {"solid": "solid", "dot": "dotted"}.get(charts.dash(index), "dashed")


def _values(plans: Sequence[Plan], name: str) -> list[str]:
    if name == "per_round":
        return [str(plan.drawn) for plan in plans]
    return [short(value) if isinstance(value := getattr(plan, name), float) else str(value) for plan in plans]


def _compare_row(label: str, values: Sequence[str]) -> str:
    cells = "".join(f"<td>{escape(value)}</td>" for value in values)
    return f'<tr><th scope="row">{escape(label.replace("_", " "))}</th>{cells}</tr>'
