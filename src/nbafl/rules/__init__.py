"""What clients do and what follows from it: one object per rule, one file per object.

A rule ties together what must not drift apart: what a client uploads, how far one record (or client) can move that, what
a plan under it may say, how it is computed fast, how it is attacked in an audit, and what is said of it. `find` gives the
rule of a name. A rule is added by a file in this folder that holds a `RULE`, or by another package (`nbafl.plugins`).
Looking at rules never loads torch; what needs it is loaded when it is called.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from nbafl import plugins
from nbafl.errors import UsageError
from nbafl.rules.base import Reach, Rule

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from nbafl.protocol.training import Training

__all__ = ["Reach", "Rule", "find", "needing", "register", "table", "upload", "using"]

_TABLE: dict[str, Rule] = {}


def register(rule: Rule) -> None:
    """Add a rule: plan, command line, training, audit, statement and studio take it from there."""
    _TABLE[rule.name] = rule


@cache
def _load() -> None:
    for module in pkgutil.iter_modules(__path__):
        if module.name != "base":
            register(import_module(f"{__name__}.{module.name}").RULE)


def table() -> tuple[Rule, ...]:
    """Every rule there is; first the safest to start from."""
    _load()
    plugins.load()
    return tuple(sorted(_TABLE.values(), key=lambda rule: (rule.conditional, rule.name)))


def find(name: str) -> Rule:
    """The rule of that name."""
    known = {rule.name: rule for rule in table()}
    if name not in known:
        raise UsageError("sensitivity", name, "one of " + ", ".join(known))
    return known[name]


def using(field: str) -> tuple[Rule, ...]:
    """The rules that a field is for; none where it is for all."""
    return tuple(rule for rule in table() if field in rule.uses)


def needing(field: str) -> tuple[Rule, ...]:
    """The rules under which a field must be set."""
    return tuple(rule for rule in table() if field in rule.needs)


def upload(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    start: Tensor,
    training: Training,
    order: Tensor | None = None,
    persons: np.ndarray | None = None,
) -> Tensor:
    """What a client uploads before its noise, whatever the rule: the one call a deployment makes.

    `order` holds minibatches (`client_batches`) for the rules that know them; `persons` says how many rows each person
    has, where persons are protected.
    """
    rule = find(training.rule)
    if persons is not None and not rule.persons:
        raise UsageError("person", training.rule, "used with a sensitivity that protects persons")
    if persons is not None:
        return rule.upload_persons(model, x, y, start, training, persons)
    return rule.upload(model, x, y, start, training, order)
