"""A federation's rounds as evidence shows them: enough to compute every epsilon again, and not more than may be told.

Where whole clients are protected and K of N are drawn, the guarantee may rest on nobody knowing who was: then only the
number of answers is shown, and epsilon is that of any clients that may have answered, which is never less.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from nbafl.evidence.comparison import TOLERANCE, Finding, is_number
from nbafl.folders.facts import Facts
from nbafl.plan import Plan
from nbafl.privacy.dropouts import AnsweredRound, most_top_up


def is_secret(plan: Plan) -> bool:
    """Whether who was drawn must not be told."""
    return plan.drawn < plan.clients and plan.sensitivity_of().unit == "client"


def shown(plan: Plan, rounds: Sequence[AnsweredRound] | None) -> list[dict[str, Any]] | None:
    """The rounds as plain JSON; None for a simulation."""
    if rounds is None:
        return None
    secret = is_secret(plan)
    return [
        {
            "answered": each.answers if secret or isinstance(each.answered, int) else each.answered.tolist(),
            "extra_variance": float(each.extra_variance),
            "everyone_online": bool(each.everyone_online),
        }
        for each in rounds
    ]


def read(entries: list[dict[str, Any]] | None) -> list[AnsweredRound] | None:
    """The rounds from JSON."""
    if entries is None:
        return None
    return [
        AnsweredRound(_who(each["answered"]), float(each["extra_variance"]), bool(each["everyone_online"]))
        for each in entries
    ]


def _who(answered: int | list[int]) -> np.ndarray | int:
    return answered if isinstance(answered, int) else np.array(answered, dtype=np.int64)


def problems(entries: list[dict[str, Any]] | None, plan: Plan, facts: Facts | None) -> Iterator[Finding]:
    """Rounds that cannot have been: of no federation, fewer than planned, more answers than were drawn, too much noise."""
    federation = facts is not None and facts.where == "federation"
    if entries is None:
        if federation:
            yield Finding(
                "rounds", "are not told: a federation's epsilon follows from its rounds as they were"
            )
        return
    if facts is not None and not federation:
        yield Finding("rounds", "are those of a federation, and this was a simulation")
    if len(entries) != plan.rounds:
        yield Finding("rounds", f"are {len(entries)}, the plan has {plan.rounds}")
    for number, entry in enumerate(entries, 1):
        for wrong in _wrong(entry, plan):
            yield Finding(f"rounds[{number}]", wrong)


def _wrong(entry: dict[str, Any], plan: Plan) -> Iterator[str]:
    answered, extra, everyone = (entry[name] for name in ("answered", "extra_variance", "everyone_online"))
    if len(entry) != 3 or type(everyone) is not bool or not is_number(extra):
        yield "is not as this format has it"
        return
    members = list(range(answered)) if type(answered) is int else answered
    if any(type(each) is not int or not 0 <= each < plan.clients for each in members):
        yield "was answered by somebody who is no client"
    elif not 1 <= len(set(members)) == len(members) <= plan.drawn or (everyone and len(members) < plan.drawn):
        yield f"has {len(members)} answers, where {plan.drawn} clients were drawn"
    elif not 0 <= extra <= _most_extra(answered, plan) + TOLERANCE * plan.noise_scales().sigma_downlink ** 2:
        yield f"counts on more noise of the server ({math.sqrt(abs(extra)):.6g}) than it adds for clients that are missing"


def _most_extra(answered: int | list[int], plan: Plan) -> float:
    """The most variance that a server adds after these answers."""
    noise, who = plan.noise_scales(), _who(answered)
    most = most_top_up(plan.client_weights, noise.sigma_uplink, noise.sigma_downlink, plan.drawn, who)
    return most * (1 + TOLERANCE)
