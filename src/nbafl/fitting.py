"""Settings that fit: rounds, step size, record clip and momentum of the `gradient` rule from public numbers alone.

What noise leaves in a model trained with clipped mean gradients depends, to first order, on one number,
Lambda = lr T G / (1 - momentum): after T rounds each weight carries noise of standard deviation Lambda/z, where
z = sqrt(T)/sigma_A for lr = G = 1 is what the records, epsilon and the adversary are worth (about M mu*/2 against
`broadcast`). So the rule has one choice to make. Records are |(x, 1)| about R long, so Lambda R/z is the noise in an output;
the best Lambda keeps it at about 1.4 for classes and 0.16 for numbers, whatever the data: found on eight tables and on
held-out digits, at epsilon 1, 3 and 8 and against two adversaries (docs/howto-choose.md, benchmarks/newcomer.py).

Only N, the clients' sizes, epsilon, delta, the adversary, the rounds it may tap and the bound on a record's norm enter.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from nbafl.tasks import BINARY, REGRESSION

CLASSES = 1.4
"""Standard deviation of the noise in an output that a classifier bears …"""
NUMBERS = 0.16
"""… and a regression whose target lies in [-1, 1] …"""
FARTHEST_FOR_NUMBERS = 10.0
"""… and for which weights beyond a few units have no use."""
RECORD_CLIP = 0.2
"""G: so small that nearly every gradient is clipped, which costs little and lets the bound follow the direction alone."""
DIFFERENCE = math.sqrt(2)
"""One output of a binary model stands for the difference of two outputs of a softmax model: the two train alike, noise
included, where the one output has the step size doubled and G divided by this, so Lambda multiplied by it."""
LEAST_ROUNDS, MOST_ROUNDS = 100, 600
TAPPED = 3.0
"""Rounds for each f of sqrt(1 + f/T), the price of uploads an eavesdropper sees: at T = 3 f it is 15%."""
LONGEST_STEP = 40.0
"""Lambda/T: beyond it a round moves the model so far that it never settles."""
TYPICAL_OF_BOUND = 0.4
"""Records are about so long as a part of the bound on their norm, when that comes from ranges of many columns."""
UNKNOWN_NORM = 2.0
"""Typical |(x, 1)| where nothing is known about the features."""


def fitted_rounds(clients: int, exposures: int, taps_uploads: bool) -> int:
    """T: enough for the uploads an adversary taps to be few among them; their number is all that depends on T.

    f = (N + r)(L + L'/(1 + r)) - L - L' with r = max(0, sqrt(L'(N - 1)/L) - 1) (math.md (5.6)), L' = L.
    """
    if not taps_uploads:
        return max(LEAST_ROUNDS, exposures)
    r = max(0.0, math.sqrt(clients - 1) - 1)
    f = (clients + r) * (exposures + exposures / (1 + r)) - 2 * exposures
    return max(exposures, min(MOST_ROUNDS, max(LEAST_ROUNDS, math.ceil(TAPPED * f / 10) * 10)))


def fitted_reach(worth: float, norm: float, rounds: int, task: str | None) -> float:
    """Lambda, from z (`worth`) and the typical |(x, 1)| of a record."""
    if task == REGRESSION:
        return min(NUMBERS * worth / norm, FARTHEST_FOR_NUMBERS)
    reach = min(CLASSES * worth / norm, LONGEST_STEP * rounds)
    return DIFFERENCE * reach if task == BINARY else reach


def typical_norm(bound: float | None, features: str) -> float:
    """How long a record usually is, from what is public about its features."""
    if features == "scattering":
        return math.hypot(4.0, 1.0)  # every record is scaled to norm 4, and the bias's input is 1
    return UNKNOWN_NORM if bound is None else max(1.0, TYPICAL_OF_BOUND * bound)


def fit(
    given: dict[str, float],
    *,
    clients: int,
    exposures: int,
    taps_uploads: bool,
    norm: float,
    task: str | None,
    largest_weight: float,
    worth_of: Callable[[int], float],
) -> dict[str, float]:
    """rounds, lr, record_clip and server_momentum: those given as they are, the others so that Lambda fits.

    `worth_of(T)` is z for a plan of T rounds; class weights multiply steps and noise alike, so Lambda is divided by the
    largest of them.
    """
    momentum = given.get("server_momentum", 0.0)
    usual = _short(RECORD_CLIP / DIFFERENCE) if task == BINARY else RECORD_CLIP
    clip = given.get("record_clip", usual)
    rounds = int(given.get("rounds", fitted_rounds(clients, exposures, taps_uploads)))
    reach = fitted_reach(worth_of(rounds), norm, rounds, task) / largest_weight
    if "lr" in given and "rounds" not in given:
        step, distance = given["lr"] * clip, reach * (1 - momentum)
        rounds = MOST_ROUNDS if step * MOST_ROUNDS <= distance else round(distance / step)
        rounds = max(exposures, 1, rounds)
    lr = given.get("lr", _short(reach * (1 - momentum) / (rounds * clip)))
    return {"rounds": rounds, "lr": lr, "record_clip": clip, "server_momentum": momentum}


def _short(value: float) -> float:
    """Three digits: a number people can read and type."""
    return float(f"{value:.3g}")
