"""A plan under secure aggregation: its M and k, its grid, what it refuses, and the same plan under the other mode.

The grid depends on how many coordinates a model has, so such a plan knows its `dimension`: given, or that of the
built-in models on the embedded data. docs/howto-secure.md shows how to choose M and k.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from nbafl.data.reference import DIRECTIONS
from nbafl.errors import UsageError
from nbafl.privacy import adversary
from nbafl.privacy.integers import IntegerSums
from nbafl.privacy.release import Noise
from nbafl.privacy.secure_sums import SecureSums, noise_left
from nbafl.secure.counts import check_counts, threshold

if TYPE_CHECKING:
    from nbafl.plan import Plan

PLAIN, SECURE = "plain", "secure"
FIELDS = {"aggregation", "min_answers", "dimension"}
"""What only a secure plan promises: under plain aggregation they stay out of the digest."""
_INPUTS = {"raw": 784, "scattering": DIRECTIONS}
_CLASSES, _HIDDEN = 10, 256


def accomplices(plan: Plan) -> int:
    """k: how many clients may work with the server."""
    return adversary.parse(plan.adversary).accomplices


def fewest(plan: Plan) -> int:
    """M: given, or max(t, N - max(1, N/10)), so that a tenth of the clients may stay away."""
    if plan.min_answers is not None:
        return plan.min_answers
    needed = threshold(plan.clients, accomplices(plan))
    return max(needed, accomplices(plan) + 2, plan.clients - max(1, plan.clients // 10))


def dimension(plan: Plan) -> int | None:
    """d: given, or that of a built-in model on MNIST; None where only the data can tell."""
    if plan.dimension is not None or plan.dataset != "mnist":
        return plan.dimension
    return coordinates(plan.model, _INPUTS[plan.features], _CLASSES)


def coordinates(model: str, inputs: int, outputs: int) -> int | None:
    """How many numbers a built-in model has; None for a model of the user's own."""
    return {
        "softmax": (inputs + 1) * outputs,
        "mlp": (inputs + 1) * _HIDDEN + (_HIDDEN + 1) * outputs,
    }.get(model)


def weights(plan: Plan) -> np.ndarray:
    """q_i: fixed before the round, 1 for the largest client; their sum over those in a sum is divided out."""
    return plan.client_weights / plan.client_weights.max()


def radius(plan: Plan) -> float:
    """How far from its centre a coordinate of an upload can lie before its noise."""
    return plan.rule.reach(plan).radius


def check(plan: Plan) -> None:
    """Refuse in one sentence what secure aggregation cannot do."""
    if plan.aggregation == PLAIN:
        return
    for field, value, fine, allowed in (
        (
            "per_round",
            plan.per_round,
            plan.drawn == plan.clients,
            "unset (the server sees and chooses who takes part)",
        ),
        (
            "calibration",
            plan.calibration,
            plan.calibration == "exact",
            "exact (the server adds no noise of its own)",
        ),
        ("noise", plan.noise, plan.noise, "on"),
    ):
        if not fine:
            raise UsageError(field, value, f"{allowed} under secure aggregation")
    check_counts(plan.clients, accomplices(plan), fewest(plan))
    if dimension(plan) is None:
        raise UsageError(
            "dimension",
            None,
            "given under secure aggregation where nothing tells the model's number of coordinates",
        )
    sums_of(plan)


def sums_of(plan: Plan) -> SecureSums:
    """What a sum of this plan holds, on the grid that its epsilon needs."""
    release = plan.release()
    found = dimension(plan)
    assert found is not None
    sums = IntegerSums(weights(plan), release.uplink, radius(plan), found, plan.rounds)
    least, count = fewest(plan), accomplices(plan)
    honest = noise_left(adversary.parse(plan.adversary), least, count)
    return SecureSums(sums, sums.calibrate(plan.training_epsilon, plan.delta, honest), least, count)


def noise_of(plan: Plan, secure: SecureSums) -> Noise:
    """sigma_i = s gamma / q_i of each upload; the server adds nothing."""
    return Noise(secure.grid.spread * secure.grid.step / weights(plan), 0.0)


def masked(plan: Plan) -> str:
    """What is added to what an adversary sees."""
    return (
        ""
        if plan.aggregation == PLAIN
        else f"; uploads are masked, and only sums of at least {fewest(plan)} open"
    )


def assumptions(plan: Plan) -> Iterator[str]:
    """What the epsilon of a secure plan rests on beside the rest."""
    if plan.aggregation == PLAIN:
        return
    count, least = accomplices(plan), fewest(plan)
    yield (
        "The guarantee is computational: X25519, Ed25519, AES-256 and HKDF-SHA256 are not broken, now or later on recorded "
        "traffic; anyone who breaks them sees single uploads."
    )
    yield (
        f"At most k = {count} of the {plan.clients} clients work with the server (second names, stolen keys, restored "
        f"disks and clients that leave out their noise count), and every sum holds at least M = {least} uploads. With "
        f"{count + 1} or more the server may open single uploads."
    )
    yield "Every client compared the hash of the roster with the others over a channel that the server does not control."


def warnings(plan: Plan) -> Iterator[str]:
    """Where a secure plan is thin."""
    if plan.aggregation == SECURE and accomplices(plan) == 0:
        yield (
            "k = 0: a single client that works with the server may let it open single uploads; plan for one at least "
            "(adversary curious-server:1)."
        )


def side_by_side(plan: Plan) -> dict[str, Any]:
    """The same claim under both modes: noise and epsilon against each adversary, or why a mode cannot make it.

    `mode` is the plan's own. Each of `plain` and `secure` holds `sigma_aggregate`, `guarantee` (epsilon and delta by
    adversary; epsilon None where nothing holds) and `opened`, the epsilon of all uploads to whoever sees every single
    one of them: under secure aggregation a server with more than k accomplices; or it holds `refused`, a sentence.
    """
    return {
        "mode": plan.aggregation,
        **_terms(plan),
        **{mode: _mode(plan, mode) for mode in (PLAIN, SECURE)},
    }


def _terms(plan: Plan) -> dict[str, Any]:
    secure = plan.secure_sums()
    if secure is None:
        return {}
    return {
        "min_answers": secure.fewest,
        "accomplices": secure.accomplices,
        "threshold": threshold(plan.clients, secure.accomplices),
        "dimension": secure.sums.dimension,
        "grid": {"step": secure.grid.step, "spread": secure.grid.spread, "bits": secure.grid.bits},
        "price_of_rounding": secure.sums.price_of_rounding(secure.grid.step),
    }


def _mode(plan: Plan, mode: str) -> dict[str, Any]:
    try:
        other = plan if plan.aggregation == mode else plan.with_fields(aggregation=mode)
        noise, spent = other.noise_scales(), other.guarantees()
        return {
            "sigma_aggregate": noise.aggregate(other.release()),
            "guarantee": {name: _epsilon(value, plan.delta) for name, value in spent.items()},
            "opened": _epsilon(_opened(other, spent), plan.delta),
        }
    except UsageError as error:
        return {"refused": str(error)}


def _opened(plan: Plan, spent: dict[str, float]) -> float:
    """epsilon of all uploads to somebody who sees each of them."""
    secure = plan.secure_sums()
    if secure is None:
        return spent[adversary.CURIOUS_SERVER.key]
    return secure.sums.epsilon(plan.rounds * secure.cost_upload, plan.delta)


def _epsilon(value: float, delta: float) -> dict[str, float | None]:
    return {"epsilon": value if math.isfinite(value) else None, "delta": delta}
