"""Chains of linear layers: every record's gradient length from one backward pass to the pre-activations.

The gradient of layer l for one record is dz_l a_lᵀ, of squared norm |dz_l|²|a_l|² (and |dz_l|² for the bias), and the
clipped sum is one matrix product a layer. No module's code runs here but torch's own elementwise layers, row by row, so
no record meets another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from nbafl.protocol.layers import hold_all, ordinary, unwrapped
from nbafl.protocol.losses import Loss, record_losses
from nbafl.protocol.vector import unflatten, wide

GHOST_ROWS = 16_384
"""Records of one pass: their activations stay small beside the data."""
_ELEMENTWISE = (
    nn.ReLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.GELU,
    nn.ELU,
    nn.SiLU,
    nn.Softplus,
    nn.LeakyReLU,
    nn.Identity,
)
Piece = tuple[slice, Tensor, Callable[[Tensor], Tensor]]
"""Which rows, the lengths of their gradients, and a weighted sum of these."""


def squared_norms(x: Tensor) -> Tensor:
    """|x_r|² of every record."""
    flat = wide(x.flatten(1))
    return torch.linalg.vecdot(flat, flat)


def linear_chain(model: nn.Module, x: Tensor) -> list[nn.Module] | None:
    """The layers of a plain chain of linear layers and elementwise functions; None for anything else."""
    layers = unwrapped(model)
    if not all(ordinary(layer, (nn.Flatten, nn.Linear, *_ELEMENTWISE)) for layer in layers):
        return None
    first = next((layer for layer in layers if not isinstance(layer, nn.Flatten)), None)
    if not isinstance(first, nn.Linear) or (x.ndim != 2 and first is layers[0]):
        return None  # the first layer's input must be the records themselves, one row each
    if any(isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) != (1, -1) for layer in layers):
        return None
    return layers if hold_all(_linear(layers), model) else None


def chain_pieces(
    chain: list[nn.Module],
    x: Tensor,
    y: Tensor,
    point: Tensor,
    model: nn.Module,
    loss: Loss,
    squares: Tensor,
) -> Iterator[Piece]:
    named, linear = list(unflatten(point, model).values()), _linear(chain)
    for first in range(0, len(x), GHOST_ROWS):
        rows = slice(first, first + GHOST_ROWS)
        inputs, slopes = _ghost_pass(chain, named, x[rows], y[rows], loss)
        total = torch.zeros_like(squares[rows])
        for number, (layer, a, dz) in enumerate(zip(linear, inputs, slopes, strict=True)):
            # |dz aᵀ|² = |dz|²·|a|², and |dz|² more where there is a bias.
            squared = squares[rows] if number == 0 else squared_norms(a)
            total += squared_norms(dz) * (squared + (layer.bias is not None))
        yield rows, total.sqrt(), partial(_ghost_sum, linear, inputs, slopes)


def chain_gradients(
    chain: list[nn.Module], x: Tensor, y: Tensor, point: Tensor, model: nn.Module, loss: Loss
) -> Tensor:
    """Every record's gradient written out, (records, d): dz_l a_lᵀ, and dz_l for the bias, layer after layer."""
    inputs, slopes = _ghost_pass(chain, list(unflatten(point, model).values()), x, y, loss)
    parts = []
    for layer, a, dz in zip(_linear(chain), inputs, slopes, strict=True):
        parts.append((dz[:, :, None] * a[:, None, :]).flatten(1))
        if layer.bias is not None:
            parts.append(dz)
    return torch.cat(parts, dim=1).to(point.dtype)


def _ghost_pass(
    chain: list[nn.Module], weights: list[Tensor], x: Tensor, y: Tensor, loss: Loss
) -> tuple[list[Tensor], list[Tensor]]:
    """The input a_l of every linear layer and the slope dz_l of each record's loss at its pre-activation."""
    remaining = iter(weights)
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    signal = x
    with torch.enable_grad():
        for layer in chain:
            if not isinstance(layer, nn.Linear):
                signal = layer(signal)
                continue
            inputs.append(signal.detach())
            weight = next(remaining)
            bias = next(remaining) if layer.bias is not None else None
            signal = nn.functional.linear(signal, weight, bias)
            if not outputs:
                signal.requires_grad_(True)
            outputs.append(signal)
        total = record_losses(signal, y, loss).sum()
        slopes = torch.autograd.grad(total, outputs)
    return [wide(a) for a in inputs], [wide(dz) for dz in slopes]


def _ghost_sum(layers: list[nn.Linear], inputs: list[Tensor], slopes: list[Tensor], scale: Tensor) -> Tensor:
    """sum_r s_r·grad_r of a chain of linear layers, from what one pass left behind."""
    silent = scale[:, None] == 0
    if bool(silent.any()):  # 0·inf is not a number: rows that count for nothing are cleared first
        inputs = [torch.where(silent, 0.0, a) for a in inputs]
        slopes = [torch.where(silent, 0.0, dz) for dz in slopes]
    parts = []
    for layer, a, dz in zip(layers, inputs, slopes, strict=True):
        scaled = dz * scale[:, None]
        parts.append((scaled.T @ a).reshape(-1))
        if layer.bias is not None:
            parts.append(scaled.sum(0))
    return torch.cat(parts)


def _linear(chain: list[nn.Module]) -> list[nn.Linear]:
    return [layer for layer in chain if isinstance(layer, nn.Linear)]
