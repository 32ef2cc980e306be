"""The audit in an evidence file: about this claim, and nothing in it proves more than was accounted for.

A plain audit lists attacks by adversary, and looks; one of secure aggregation has looks alone, two of them the servers'.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nbafl.evidence.comparison import TOLERANCE, Finding, differences, is_number
from nbafl.plan import Plan

VERDICTS = ("consistent", "refuted")


def problems(content: dict[str, Any], plan: Plan) -> Iterator[Finding]:
    """What does not fit in the audit, or speaks against the claim."""
    found = content["audit"]
    if found is None:
        return
    claimed = {"adversary": plan.adversary, "claimed_epsilon": plan.epsilon, "delta": plan.delta}
    for name, value in claimed.items():
        yield from differences(found[name], value, f"audit.{name}")
    if not is_number(found["confidence"]) or not 0 < found["confidence"] < 1:
        yield Finding("audit.confidence", "is not a number between 0 and 1")
    if not is_number(found["trials"]) or found["trials"] < 1:
        yield Finding("audit.trials", "is not a number of trials")
    yield from _verdict(found, plan)
    secure = plan.secure_sums() is not None
    for name, attack in ({} if secure else found["attacks"]).items():
        yield from _attack(f"audit.attacks.{name}", attack, _stated(content, name))
    for look in found["looks"] if secure else found.get("looks", []):
        yield from _look(look)


def _verdict(found: dict[str, Any], plan: Plan) -> Iterator[Finding]:
    if found["verdict"] not in VERDICTS:
        yield Finding("audit.verdict", f"is neither {VERDICTS[0]} nor {VERDICTS[1]}")
    if found["verdict"] == "refuted" or found["refuted_by"]:
        yield Finding("audit", f"refutes the claim ({', '.join(found['refuted_by'])})")
    proved = _proved(found)
    if proved > plan.epsilon * (1 + TOLERANCE):
        yield Finding("audit", f"proves epsilon {proved:.6g}, claimed {plan.epsilon:.6g}")


def _attack(place: str, attack: dict[str, Any], stated: float | None) -> Iterator[Finding]:
    accounted, proved = attack["accounted_epsilon"], _proved(attack)
    for most, whose in ((accounted, "accounted"), (stated, "the statement has")):
        if most is not None and proved > most * (1 + TOLERANCE):
            yield Finding(place, f"proves epsilon {proved:.6g}, {whose} {most:.6g}")


def _look(look: dict[str, Any]) -> Iterator[Finding]:
    """One comparison: no account is none that can be passed, no proof one beyond all numbers."""
    account, proof = look["account"], look["proof"]
    if account is not None and (proof is None or proof > account * (1 + TOLERANCE)):
        shown = "beyond all numbers" if proof is None else f"{proof:.6g}"
        yield Finding("audit.looks", f"{look['name']} measured {shown}, at most {account:.6g} is sound")


def _stated(content: dict[str, Any], name: str) -> float | None:
    """The statement's epsilon against an adversary, where it is about the rounds as planned, as an audit is."""
    if content["rounds"] is not None:
        return None
    epsilon: float | None = content["statement"]["guarantee"].get(name, {}).get("epsilon")
    return epsilon


def _proved(found: dict[str, Any]) -> float:
    """The larger of the bounds; 0 where there is none."""
    return max((each for each in found["proved_epsilon"].values() if each is not None), default=0.0)
