"""How far the data of one record, or of one whole client, can move what a client uploads.

Four models give Δ_U (math.md, section 2). Three are theorems whose premises are checked here; `paper` is
the paper's own 2C/m, which general losses do not satisfy, and is marked conditional wherever it goes.
Each model returns one Δ_U per client, because clients of unequal size move by unequal amounts. Sizes are
public, so the adjacency of records is replacement: one record of one client becomes any other record.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nbafl.errors import UsageError

Sizes = Sequence[int] | np.ndarray
HUBER_THRESHOLD = 1.0
"""Residual beyond which the loss of a number grows linearly under `proximal`."""


@dataclass(frozen=True)
class Sensitivity:
    """Δ_U of every client, what it protects, and the premise it stands on."""

    model: str
    unit: str
    adjacency: str
    uplink: np.ndarray
    conditional: bool
    premise: str

    def __post_init__(self) -> None:
        """Costs are squares of ratios to it: beyond these numbers they would overflow, or vanish."""
        beyond = self.uplink[~((self.uplink >= 1e-100) & (self.uplink <= 1e100))]
        if len(beyond):
            allowed = "from 1e-100 to 1e100; it follows from clip, record_clip, lr, mu and the sizes"
            raise UsageError("the sensitivity of an upload", float(beyond[0]), allowed)

    @property
    def clients(self) -> int:
        """N."""
        return len(self.uplink)


def paper(clip: float, sizes: Sizes) -> Sensitivity:
    """The paper's Δ_U = 2C/|D_i| (its eq. 4 and Lemma on the uplink): true only under the premise it states."""
    check_positive("clip", clip)
    premise = (
        "The local solution is the mean of per-record solutions (the paper's equation 4) and each of those has norm at "
        f"most C = {clip:g}; general losses do not satisfy this, so the guarantee is conditional."
    )
    return Sensitivity("paper", "record", "replace", 2 * clip / _checked(sizes), True, premise)


def unconditional(clip: float, sizes: Sizes) -> Sensitivity:
    """What clipping alone gives for any training: two vectors of norm at most C differ by at most 2C."""
    check_positive("clip", clip)
    premise = f"Every uploaded vector is clipped to norm C = {clip:g}; nothing is assumed of the training."
    bound = np.full(len(_checked(sizes)), 2.0 * clip)
    return Sensitivity("unconditional", "record", "replace", bound, False, premise)


def proximal(
    clip: float,
    sizes: Sizes,
    lipschitz: float,
    mu: float,
    tolerance: float | None = None,
    steps: int | None = None,
    lr: float | None = None,
    smoothness: float | None = None,
) -> Sensitivity:
    """Convex, G-Lipschitz record losses with a proximal term: solved to `tolerance`, or `steps` plain steps.

    The final clip to norm C is a projection, so it moves no two solutions further apart, and 2C holds as well.
    """
    check_positive("clip", clip)
    check_positive("lipschitz", lipschitz)
    records = _checked(sizes)
    if tolerance is not None and steps is None:
        bound, premise = _solved(records, lipschitz, mu, tolerance)
    elif steps is not None and tolerance is None:
        bound, premise = _stepped(records, lipschitz, mu, steps, lr or 0.0, smoothness or 0.0)
    else:
        raise UsageError("tolerance", tolerance, "given for a solve, or left out where `steps` are given")
    return Sensitivity("proximal", "record", "replace", np.minimum(2 * clip, bound), False, premise)


def gradient(record_clip: float, sizes: Sizes, lr: float, largest_weight: float = 1.0) -> Sensitivity:
    """One local step on the mean of per-record gradients clipped to norm G: Δ_U = 2ηG/|D_i|, for any model.

    With public class weights of at most W, which multiply what is left after clipping, it is 2ηGW/|D_i|: the sum is still
    divided by the number of records, so no record changes the share of another.
    """
    check_positive("record_clip", record_clip)
    check_positive("lr", lr)
    check_positive("largest_weight", largest_weight)
    weighing = f" and multiplied by the public weight of its class, at most {largest_weight:g}"
    premise = (
        f"Each client takes exactly one step of size {lr:g} on the mean over all its records of their gradients, each "
        f"clipped to norm G = {record_clip:g}{weighing if largest_weight != 1 else ''}; the model may be any."
    )
    bound = 2 * lr * record_clip * largest_weight / _checked(sizes)
    return Sensitivity("gradient", "record", "replace", bound, False, premise)


def of_persons(record: Sensitivity) -> Sensitivity:
    """The `gradient` bound where the rows of a person are averaged before clipping: the same number, for a person.

    A person's mean gradient has norm at most G once clipped, whatever the number of rows, so one of |D_i| persons
    replaced moves the mean over persons by at most 2G/|D_i| (the sizes count persons).
    """
    premise = record.premise.replace(
        "the mean over all its records of their gradients, each clipped",
        "the mean over all its persons of the average gradient of their rows, each average clipped",
    )
    return replace(record, unit="person", premise=premise)


def client(clip: float, clients: int, adjacency: str = "replace") -> Sensitivity:
    """A whole client's clipped update: Δ_U = 2C when it is replaced, C when it is dropped, for any training."""
    check_positive("clip", clip)
    check_count("clients", clients)
    if adjacency not in ("replace", "drop"):
        raise UsageError("adjacency", adjacency, "replace or drop")
    premise = f"Each client's update is clipped to norm C = {clip:g} and its weight does not depend on how much data it has"
    if adjacency == "drop":
        premise += "; an absent client is still drawn and still sends noise, and the weights stay"
    size = 2.0 * clip if adjacency == "replace" else float(clip)
    return Sensitivity("client", "client", adjacency, np.full(clients, size), False, premise + ".")


def downlink(uplink: np.ndarray, weights: np.ndarray) -> float:
    """Δ_D = max_i p_iΔ_U(i): how far one client's change moves the average."""
    return float(np.max(np.asarray(weights) * np.asarray(uplink)))


def softmax_constants(feature_norm: float) -> tuple[float, float]:
    """(G, ρ) of cross-entropy softmax regression on features with ‖(x, 1)‖ ≤ R: √2·R and R²/2."""
    check_positive("feature_norm", feature_norm)
    return math.sqrt(2) * feature_norm, feature_norm**2 / 2


def logistic_constants(feature_norm: float) -> tuple[float, float]:
    """(G, ρ) of logistic regression with one output on features with ‖(x, 1)‖ ≤ R: R and R²/4.

    The gradient of a record is (σ(z) − y)·(x, 1) with |σ − y| ≤ 1, the Hessian σ'(z)·(x, 1)(x, 1)ᵀ with σ' ≤ 1/4.
    """
    check_positive("feature_norm", feature_norm)
    return feature_norm, feature_norm**2 / 4


def huber_constants(feature_norm: float, threshold: float, outputs: int = 1) -> tuple[float, float]:
    """(G, ρ) of linear regression with the Huber loss summed over outputs: threshold·R·√outputs and R².

    The squared loss has no such G: its gradient grows with the residual, so `proximal` cannot be had for it.
    """
    check_positive("feature_norm", feature_norm)
    check_positive("threshold", threshold)
    check_count("outputs", outputs)
    return threshold * feature_norm * math.sqrt(outputs), feature_norm**2


def constants_of(loss: str, feature_norm: float) -> tuple[float, float]:
    """(G, ρ) of one record's loss under `proximal`, by the name of the loss; numbers are learned with Huber's."""
    if loss == "squared":
        return huber_constants(feature_norm, HUBER_THRESHOLD)
    return {"cross_entropy": softmax_constants, "logistic": logistic_constants}[loss](feature_norm)


def check_positive(field: str, value: float) -> None:
    """Refuse anything but a finite number above 0."""
    if not (value > 0 and math.isfinite(value)):
        raise UsageError(field, value, "a finite number above 0")


def check_count(field: str, value: int) -> None:
    """Refuse anything but a whole number of at least 1."""
    if isinstance(value, bool) or value != int(value) or value < 1:
        raise UsageError(field, value, "a whole number of at least 1")


def _checked(sizes: Sizes) -> np.ndarray:
    records = np.asarray(sizes, dtype=float)
    if records.ndim != 1 or len(records) == 0:
        raise UsageError("sizes", sizes, "a list with the number of records of each client")
    if not np.all((records >= 1) & np.isfinite(records)):
        raise UsageError("sizes", float(records.min()), "at least one record for each client")
    return records


def _solved(records: np.ndarray, lipschitz: float, mu: float, tolerance: float) -> tuple[np.ndarray, str]:
    """2G/(mμ) between the two exact minimisers of the μ-strongly convex J, and τ/μ from each to what is released."""
    check_positive("mu", mu)
    if not (tolerance >= 0 and math.isfinite(tolerance)):
        raise UsageError("tolerance", tolerance, "a finite number of at least 0")
    premise = (
        f"Each record's loss is convex and Lipschitz with G = {lipschitz:g}; the local problem with proximal term "
        f"mu = {mu:g} is solved until its gradient has norm at most {tolerance:g} on every data set, or nothing is released."
    )
    return 2 * lipschitz / (records * mu) + 2 * tolerance / mu, premise


def _stepped(
    records: np.ndarray, lipschitz: float, mu: float, steps: int, lr: float, smoothness: float
) -> tuple[np.ndarray, str]:
    """S plain steps from w̃: each contracts by 1 − ημ and adds at most 2ηG/m."""
    check_count("steps", steps)
    check_positive("lr", lr)
    check_positive("smoothness", smoothness)
    if not (mu >= 0 and math.isfinite(mu)):
        raise UsageError("mu", mu, "a finite number of at least 0")
    largest = 2 / (smoothness + 2 * mu)
    if lr > largest:
        raise UsageError(
            "lr", lr, f"at most 2/(smoothness + 2 mu) = {largest:.6g}, or the steps do not contract"
        )
    # Σ_{s<S} (1−ημ)^s, which is S at μ = 0 and (1−(1−ημ)^S)/(ημ) otherwise; expm1 keeps small ημ exact.
    growth = steps if mu == 0 else -math.expm1(steps * math.log1p(-lr * mu)) / (lr * mu)
    premise = (
        f"Each record's loss is convex, Lipschitz with G = {lipschitz:g} and smooth with rho = {smoothness:g}; each "
        f"client takes exactly {steps} full-batch steps of size {lr:g} with mu = {mu:g} from the broadcast model."
    )
    return 2 * lr * lipschitz * growth / records, premise
