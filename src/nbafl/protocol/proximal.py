"""The `proximal` rule: a linear model on bounded features, its local problem solved or approached in S plain steps.

Classes are learned by softmax regression, two of them by logistic regression with one output, numbers by linear regression
with Huber's loss: r²/2 of the residual up to |r| = 1 and linear beyond, since the squared loss alone has no bounded slope.
Every record's loss is then convex and G-Lipschitz (G = √2·R for softmax and R for the other two, for features with
|(x, 1)| ≤ R; times the largest class weight where classes have weights), so the minimiser of
J(w) = F_i(w) + (mu/2)|w − w̃|² moves by at most 2G/(m·mu) when one record is replaced. What is uploaded is not the
minimiser but a point where |∇J| ≤ tau, which is within tau/mu of it: the public constant tau enters the bound, and one
that might be missed on some data set is refused before any is looked at (math.md (2.2), (2.8)). S plain steps of size
eta ≤ 2/(rho + 2·mu) have a bound of their own. Both functions work on a stack of clients at once, one row each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from nbafl.errors import Refused, UsageError
from nbafl.privacy.sensitivity import HUBER_THRESHOLD, constants_of
from nbafl.privacy.solving import MOST_ITERATIONS, Solve
from nbafl.protocol.aggregation import clip
from nbafl.protocol.layers import hold_all, ordinary, unwrapped
from nbafl.protocol.losses import BUILT_IN, CROSS_ENTROPY, LOGISTIC, Loss, weighted
from nbafl.protocol.training import Training

INSIDE = 1 - 2.0**-10
"""Share of the tolerance at which a solve ends: what a computed gradient is off by is less than the rest."""


@dataclass(frozen=True)
class Stack:
    """The data of several clients, padded to the largest: x with a 1 for the bias, classes, and each row's share."""

    x: Tensor
    """(clients, rows, features + 1)"""
    y: Tensor
    """(clients, rows)"""
    share: Tensor
    """1/|D_i| (times the weight of the class) on real rows, 0 on padding, (clients, rows)"""


def proximal_upload(model: nn.Module, x: Tensor, y: Tensor, start: Tensor, training: Training) -> Tensor:
    """What one client uploads before its noise."""
    share = torch.full((1, len(x)), 1 / len(x), dtype=start.dtype, device=start.device)
    return uploads(model, x[None], y[None], share, start, training)[0]


def uploads(
    model: nn.Module, x: Tensor, y: Tensor, share: Tensor, start: Tensor, training: Training
) -> Tensor:
    """What each client of a stack uploads before its noise, clipped to norm C: one row per client.

    `start` is the broadcast, or one row per client where each has its own (an audit runs many federations at once).
    The arithmetic is in double precision, so that the tolerance that was promised is the tolerance that was met.
    """
    share = weighted(share.double(), y, training.class_weights)
    stack = Stack(bounded(x.flatten(2), training.feature_norm).double(), y, share)
    centre = _as_matrix(start.double(), check_linear(model, training.loss))
    solved = (
        _steps(stack, centre, training) if training.tolerance is None else _solve(stack, centre, training)
    )
    return clip(_as_vector(solved), training.clip).to(start.dtype)


def check_linear(model: nn.Module, loss: Loss) -> nn.Linear:
    """The one layer of a linear model; any other model is refused: its loss is not known to be convex."""
    if loss not in BUILT_IN:
        raise UsageError(
            "loss", loss, "unset under sensitivity proximal, whose losses are known to be convex"
        )
    layers = unwrapped(model)
    layer = layers[-1] if layers else None
    flat = all(ordinary(other, (nn.Flatten,)) for other in layers[:-1])
    if not isinstance(layer, nn.Linear) or not (
        flat and ordinary(layer, (nn.Linear,)) and hold_all([layer], model)
    ):
        raise UsageError(
            "model", type(model).__name__, "softmax (or linear) regression under sensitivity proximal"
        )
    fits = layer.out_features >= 2 if loss == CROSS_ENTROPY else layer.out_features == 1
    if layer.bias is None or not fits:
        allowed = "one with a bias and an output per class (one for a binary task or numbers), under proximal"
        raise UsageError("model", f"a linear layer of {layer.out_features} outputs", allowed)
    return layer


def bounded(x: Tensor, feature_norm: float | None) -> Tensor:
    """(x, 1) with x scaled down, if need be, so that |(x, 1)| ≤ R; the bound holds because of this line."""
    if feature_norm is None or not 1 < feature_norm < math.inf:
        raise UsageError(
            "feature_norm", feature_norm, "above 1 and finite, since it bounds the norm of (x, 1)"
        )
    return functional.pad(clip(x, math.sqrt(feature_norm**2 - 1)), (0, 1), value=1.0)


def smoothness(training: Training) -> float:
    """rho of one record's loss, its class's weight included."""
    assert training.feature_norm is not None
    return training.largest_weight * constants_of(str(training.loss), training.feature_norm)[1]


def _gradient(stack: Stack, weights: Tensor, centre: Tensor, training: Training) -> Tensor:
    """∇J of every client, (clients, outputs, features + 1)."""
    output = stack.x @ weights.mT
    if training.loss == CROSS_ENTROPY:
        slope = torch.softmax(output, dim=-1) - functional.one_hot(stack.y, weights.shape[-2])
    elif training.loss == LOGISTIC:
        slope = torch.sigmoid(output) - stack.y[:, :, None]
    else:
        slope = (output - stack.y[:, :, None]).clamp(-HUBER_THRESHOLD, HUBER_THRESHOLD)
    return (slope * stack.share[:, :, None]).mT @ stack.x + training.mu * (weights - centre)


def _steps(stack: Stack, centre: Tensor, training: Training) -> Tensor:
    """S steps w ← w − eta·∇J(w) from the broadcast."""
    largest = 2 / (smoothness(training) + 2 * training.mu)
    if training.lr > largest:
        raise UsageError("lr", training.lr, f"at most 2/(rho + 2 mu) = {largest:.6g} under proximal")
    weights = centre.expand(len(stack.x), -1, -1)
    for _ in range(training.steps):
        weights = weights - training.lr * _gradient(stack, weights, centre, training)
    return weights


def _solve(stack: Stack, centre: Tensor, training: Training) -> Tensor:
    """Nesterov's method for a mu-strongly convex function, until every client has |∇J| ≤ tau.

    With L = rho + mu the error falls by at least 1 − sqrt(mu/L) a step, whatever the data: how many steps are made may
    depend on the data, that the tolerance is met does not.
    """
    assert training.tolerance is not None
    if training.mu <= 0:
        raise UsageError("mu", training.mu, "positive, to solve the local problem under proximal")
    if not bool(stack.x.isfinite().all() and centre.isfinite().all()):
        raise Refused(
            "The local problem has weights or features that are not finite, so nothing is released."
        )
    _check_tolerance(stack, centre, training)
    largest = smoothness(training) + training.mu
    root = math.sqrt(training.mu / largest)
    momentum = (1 - root) / (1 + root)
    weights = ahead = centre.expand(len(stack.x), -1, -1)
    solved = torch.full_like(ahead, math.nan)
    for _ in range(MOST_ITERATIONS):
        gradient = _gradient(stack, ahead, centre, training)
        # A client's answer is the first point that meets the tolerance, so that it does not depend on the others.
        done = gradient.flatten(1).norm(dim=1) <= training.tolerance * INSIDE
        solved = torch.where(solved.isnan() & done[:, None, None], ahead, solved)
        if not bool(solved.isnan().any()):
            return solved
        following = ahead - gradient / largest
        ahead = following + momentum * (following - weights)
        weights = following
    raise Refused(
        "a local problem was not solved in the iterations that (2.8) allows: that is a mistake in nbafl."
    )


def _check_tolerance(stack: Stack, centre: Tensor, training: Training) -> None:
    """Refuse what might not be solved; who is refused follows from sizes and the broadcast alone."""
    assert training.tolerance is not None
    assert training.feature_norm is not None
    weight, norm = training.largest_weight, training.feature_norm
    lipschitz, curvature = (weight * each for each in constants_of(str(training.loss), norm))
    solve = Solve(lipschitz, curvature, training.mu, training.tolerance)
    records, features = stack.x.shape[1:]
    start = float(centre.flatten(-2).norm(dim=-1).max())
    solve.check(solve.rounding(records, features, norm, weight, start))


def _as_matrix(vector: Tensor, layer: nn.Linear) -> Tensor:
    """Weights (..., classes, features + 1), the bias last, from flat vectors."""
    weight, bias = vector.split([layer.weight.numel(), layer.out_features], dim=-1)
    return torch.cat([weight.unflatten(-1, layer.weight.shape), bias[..., None]], dim=-1)


def _as_vector(weights: Tensor) -> Tensor:
    """The flat vector of each client's weights, in the model's own order."""
    return torch.cat([weights[..., :-1].flatten(-2), weights[..., -1]], dim=-1)
