"""What training noticed about itself: worse than a constant, a loss that rises, noise longer than the signal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from nbafl.report import numbers

RISE = 0.05
"""A loss is called rising when it ends this share above its lowest value …"""
ROUNDS_AFTER = 3
"""… and so many measured rounds came after that."""
CLEAR = 0.5
"""A model is clearly better than the constant predictor with at most this share of its errors (squared, for numbers)."""


def notices(
    lines: Sequence[dict[str, Any]],
    scores: dict[str, Any] | None,
    noise_norm: float,
    weighted: bool = False,
) -> list[str]:
    """Sentences about a finished training; `noise_norm` is the expected length of all noise in the final model.

    With class weights (`weighted`) a model gives accuracy away for a rare class, and the losses of the rounds, which are not
    weighted, may rise: it is then held against the constant predictor by balanced accuracy.
    """
    measure = "balanced_accuracy" if weighted else "accuracy"
    rising = [] if weighted else _rising(lines)
    # In many dimensions noise longer than the signal can be nearly orthogonal to every record: a model that is clearly
    # better than the constant, and whose loss does not rise, is not harmed by it.
    unharmed = _clearly_better(scores, measure) and not rising
    return [
        *_worse_than_constant(scores, measure),
        *rising,
        *([] if unharmed else _noise_too_long(lines, noise_norm)),
        *_silent_class(scores),
    ]


def accumulated_noise(
    sigma_aggregate: float, parameters: int, rounds: int, momentum: float | None
) -> list[float]:
    """Expected length of the noise in the model after 1, 2, … rounds, if training takes none of it back.

    Round s adds sigma_A sqrt(d), and server momentum b carries it on: after t rounds its factor is
    (1 - b^(t-s+1)) / (1 - b) (math.md (12.2) sums this to Lambda 2 sqrt(d)/(M mu*)).
    Where the server rescales every step (momentum None: Adam) it is not known, and the list is empty.
    """
    if momentum is None:
        return []
    total, lengths = 0.0, []
    for age in range(1, rounds + 1):
        total += ((1 - momentum**age) / (1 - momentum)) ** 2
        lengths.append(sigma_aggregate * math.sqrt(parameters * total))
    return lengths


def _worse_than_constant(scores: dict[str, Any] | None, measure: str) -> list[str]:
    if scores is None:
        return []
    constant = scores["constant"]
    if "rmse" in scores:
        if scores["rmse"] <= constant["rmse"]:
            return []
        ours, theirs = numbers.apart(scores["rmse"], constant["rmse"], "g")
        return [
            f"The model is worse than always answering {constant['prediction']:.4g}: root mean square error "
            f"{ours} against {theirs}. More records, a larger epsilon or fewer features help."
        ]
    if scores[measure] >= constant[measure]:
        return []
    told = measure.replace("_", " ")
    ours, theirs = numbers.apart(scores[measure], constant[measure], "%")
    return [
        f"The model is worse than always answering {constant['prediction']!r}: {told} {ours} against "
        f"{theirs}. More records, a larger epsilon or fewer features help."
    ]


def _clearly_better(scores: dict[str, Any] | None, measure: str) -> bool:
    if scores is None:
        return False
    constant = scores["constant"]
    if "rmse" in scores:
        return bool(scores["rmse"] ** 2 <= CLEAR * constant["rmse"] ** 2)
    return bool(1 - scores[measure] <= CLEAR * (1 - constant[measure]))


def _silent_class(scores: dict[str, Any] | None) -> list[str]:
    """97% accuracy with a class that is never found is the trap of lopsided data."""
    never = [name for name, recall in (scores or {}).get("recall", {}).items() if recall == 0.0]
    if not never or len(never) > 5:
        return []
    named = " and ".join(repr(name) for name in never)
    return [
        f"The model never finds {named} (recall 0), whatever its accuracy of {(scores or {})['accuracy']:.1%} says."
    ]


def _rising(lines: Sequence[dict[str, Any]]) -> list[str]:
    for name, what in (("test_loss", "test"), ("train_loss", "training")):
        known = [(line["round"], line[name]) for line in lines if line.get(name) is not None]
        if len(known) <= ROUNDS_AFTER:
            continue
        lowest = min(range(len(known)), key=lambda i: known[i][1])
        last, least = known[-1][1], known[lowest][1]
        if len(known) - 1 - lowest >= ROUNDS_AFTER and last > least * (1 + RISE):
            return [
                f"The {what} loss has been rising since round {known[lowest][0]} (from {least:.3g} to {last:.3g}): fewer "
                "rounds or a smaller step size leave less noise in the model."
            ]
        return []
    return []


def _noise_too_long(lines: Sequence[dict[str, Any]], noise_norm: float) -> list[str]:
    norms = [line["broadcast_norm"] for line in lines if line.get("broadcast_norm") is not None]
    if not norms or noise_norm == 0:
        return []
    signal = math.sqrt(max(norms[-1] ** 2 - noise_norm**2, 0.0))
    if noise_norm <= signal:
        return []
    return [
        f"The noise in the model is longer than what it learned (about {noise_norm:.3g} of a length of {norms[-1]:.3g}): a "
        "smaller lr times rounds, more records or a larger epsilon would help."
    ]
