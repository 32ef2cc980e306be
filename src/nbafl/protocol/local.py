"""Local training of one client, step by step: the path that the fast engines are tested against."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nbafl.protocol.independence import fresh
from nbafl.protocol.losses import record_losses, weighted
from nbafl.protocol.randomness import batches
from nbafl.protocol.training import Training
from nbafl.protocol.vector import split, trainable


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
    model = fresh(model, [parameter for _, parameter in trainable(model)])
    weights = start.detach().clone()  # what the model keeps beside its weights dies with the copy
    own = [parameter for _, parameter in trainable(model)]
    pieces, centre = split(weights, model), split(start.detach(), model)
    shared = all(parameter.dtype == weights.dtype for parameter in own)
    short = order is not None and bool((order < 0).any())
    for step in range(training.steps):
        rows = slice(None) if order is None else order[step][order[step] >= 0] if short else order[step]
        target = y[rows]
        if step == 0 or not shared:
            for parameter, piece in zip(own, pieces, strict=True):
                parameter.data = piece.to(parameter.dtype)  # the piece itself, where both have one precision
        with torch.enable_grad():
            losses = record_losses(model(x[rows]), target, training.loss)
            loss = weighted(losses, target, training.class_weights).mean()
            found = torch.autograd.grad(loss, own, materialize_grads=True)
        with torch.no_grad():
            if training.mu:  # w + eta mu (start - w): the proximal part of the step
                torch._foreach_lerp_(pieces, centre, training.lr * training.mu)
            gradients = [gradient.to(weights.dtype) for gradient in found]
            torch._foreach_add_(pieces, gradients, alpha=-training.lr)
    return weights
