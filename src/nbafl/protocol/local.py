"""Local training of one client, step by step: the path that the fast engines are tested against."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from nbafl.errors import UsageError
from nbafl.protocol.aggregation import clip
from nbafl.protocol.randomness import batches
from nbafl.protocol.training import Training
from nbafl.protocol.vector import unflatten


def record_losses(output: Tensor, target: Tensor, loss: str) -> Tensor:
    """The loss of every record: -log p(y) for classes, (output - y)^2 for numbers."""
    if loss == "cross_entropy":
        return functional.cross_entropy(output, target, reduction="none")
    return (output.reshape(target.shape) - target).square()


def client_batches(seed: int, round: int, client: int, records: int, training: Training) -> Tensor | None:
    """Minibatches of one client, shape (steps, batch), -1 where a batch is short; None for the full batch."""
    if training.batch is None or training.batch >= records:
        return None
    who, size = torch.tensor([client]), torch.tensor([records])
    return batches(seed, round, who, size, training.steps, training.batch)[0]


def descend(
    model: nn.Module, x: Tensor, y: Tensor, start: Tensor, training: Training, order: Tensor | None = None
) -> Tensor:
    """S steps w <- w - eta (grad F_i(w) + mu (w - start)) from `start`, the broadcast the client received."""
    weights = start.clone()
    for step in range(training.steps):
        rows = slice(None) if order is None else order[step][order[step] >= 0]
        weights.requires_grad_(True)
        output = functional_call(model, unflatten(weights, model), (x[rows],))
        loss = record_losses(output, y[rows], training.loss).mean()
        (gradient,) = torch.autograd.grad(loss, weights)
        weights = weights.detach()
        weights = weights - training.lr * (gradient + training.mu * (weights - start))
    return weights


def train_locally(
    model: nn.Module, x: Tensor, y: Tensor, start: Tensor, training: Training, order: Tensor | None = None
) -> Tensor:
    """What a client uploads before its noise: trained from `start` and clipped by the rule.

    `order` holds the minibatches (`client_batches`); None trains on the full batch.
    """
    if training.rule not in ("paper", "client"):
        raise UsageError(
            "rule", training.rule, "paper or client here (other rules have modules of their own)"
        )
    trained = descend(model, x, y, start, training, order)
    if training.rule == "paper":
        return clip(trained, training.clip)
    return start + clip(trained - start, training.clip)
