"""The federation of a plan as the attacker of one client sees it: the worst target, and the others' weights and noise."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from nbafl.audit.game import VOICES
from nbafl.audit.views import GameSetting
from nbafl.plan import Plan
from nbafl.privacy import adversary
from nbafl.protocol import Training
from nbafl.protocol.losses import CROSS_ENTROPY, LOGISTIC


def worst_target(plan: Plan) -> int:
    """The client against whom the plan's adversary learns most."""
    release, noise = plan.release(), plan.noise_scales()
    if release.equal and np.ptp(noise.sigma_uplink) == 0:
        return 0
    seen = adversary.parse(plan.adversary)
    rounds = np.array([float(plan.rounds)])
    uploads, taps, rest = (float(view[0]) for view in seen.views(plan.exposures, rounds, np.ones(1)))
    own = (release.weights * noise.sigma_uplink) ** 2
    share = (release.weights * release.uplink) ** 2
    aggregate = noise.aggregate(release) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        learned = np.nan_to_num(uploads * share / own) + taps * share / (own + noise.sigma_downlink**2)
        learned = learned + rest * share / aggregate
    return int(np.argmax(np.nan_to_num(learned)))


def training_of(plan: Plan) -> Training:
    """The plan's training as a problem needs it: each problem brings a loss of its own, and its heaviest class."""
    found = plan.training(classes=plan.weighted_classes)
    return found if found.loss == LOGISTIC else replace(found, loss=CROSS_ENTROPY)


def setting_of(plan: Plan, target: int) -> GameSetting:
    """The federation from the target's side: the others' weights and noise, those with most noise first."""
    release, noise = plan.release(), plan.noise_scales()
    weights, sigmas = release.weights, noise.sigma_uplink
    if not release.everyone:
        weights = np.full(plan.drawn, 1 / plan.drawn)
        sigmas = sigmas[: plan.drawn]
    others = np.delete(np.arange(len(weights)), target)
    others = others[np.argsort(-(weights * sigmas)[others], kind="stable")]
    # Of the colluders only those count who are certain to be drawn together with the target: the others may be elsewhere.
    certain = max(0, adversary.parse(plan.adversary).colluders - (plan.clients - plan.drawn))
    grouped = voices(weights[others], sigmas[others], certain)
    return GameSetting(
        rounds=plan.rounds,
        exposures=plan.exposures,
        drawn=plan.drawn / plan.clients,
        weight=float(weights[target]),
        sigma=float(sigmas[target]),
        other_weights=grouped[0],
        other_sigmas=grouped[1],
        colluding=grouped[2],
        sigma_downlink=noise.sigma_downlink,
    )


def voices(
    weights: np.ndarray, sigmas: np.ndarray, colluders: int, most: int = VOICES
) -> tuple[np.ndarray, np.ndarray, int]:
    """Not too many other clients: beyond `most` several speak as one, whose noise is exactly their weighted sum.

    Colluders come first and never share a voice with others; the last number says how many voices are theirs.
    """
    if len(weights) <= most:
        return weights, sigmas, colluders
    theirs, others = min(colluders, most // 2), len(weights) - colluders
    parts = np.array_split(np.arange(colluders), theirs) if theirs else []
    parts += np.array_split(np.arange(colluders, len(weights)), min(most - theirs, others)) if others else []
    joint = np.array([weights[part].sum() for part in parts])
    spread = np.array([math.sqrt(np.sum((weights[part] * sigmas[part]) ** 2)) for part in parts]) / joint
    return joint, spread, theirs
