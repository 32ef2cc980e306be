"""A federation's rounds as evidence shows them: enough to compute every epsilon again, and not more than may be told.

Where whole clients are protected and K of N are drawn, the guarantee may rest on nobody knowing who was: then only the
number of answers is shown, and epsilon is that of any clients that may have answered, which is never less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nbafl.plan import Plan
from nbafl.privacy.dropouts import AnsweredRound


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
