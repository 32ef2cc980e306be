"""The `gradient` rule: one local step on the mean of per-record gradients, each clipped to norm G.

Replacing one of a client's m records moves the mean of clipped gradients by at most 2G/m and so the upload by at
most 2·eta·G/m, for any model (MATH section 1). Nothing else is clipped.

Clipping needs the norm of every record's gradient, not the gradient itself. In a chain of linear layers the gradient
of layer l for one record is dz_l a_lᵀ, of squared norm |dz_l|²|a_l|² (and |dz_l|² for the bias): one backward pass
to the pre-activations gives all norms, and the clipped sum is one matrix product a layer. Any other module goes
through torch.func, a few records' gradients at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from nbafl.errors import UsageError
from nbafl.protocol.aggregation import clip_factor
from nbafl.protocol.layers import hold_all, ordinary, unwrapped
from nbafl.protocol.local import record_losses
from nbafl.protocol.training import Training
from nbafl.protocol.vector import unflatten

GHOST_ROWS = 16_384
"""Records of one pass through a chain of linear layers: their activations stay small beside the data."""
GRADIENT_BYTES = 256 * 2**20
"""Per-record gradients of any other module that are held at a time."""
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
_Piece = tuple[slice, Tensor, Callable[[Tensor], Tensor]]  # which rows, their norms, and their weighted sum


def gradient_step(model: nn.Module, x: Tensor, y: Tensor, start: Tensor, training: Training) -> Tensor:
    """What a client uploads before its noise: w̃ − eta·mean over its records of clip(grad, G).

    The proximal term has no say here: its gradient mu(w − w̃) is 0 at w̃, where the one step is taken.
    """
    check_one_step(training)
    shares = torch.full((len(x),), 1 / len(x), dtype=start.dtype, device=start.device)
    mean, _ = clipped_gradient(model, x, y, start, shares, training)
    return start - training.lr * mean


def check_one_step(training: Training) -> None:
    """Refuse what the bound 2·eta·G/m does not cover."""
    if training.steps != 1:
        raise UsageError("local_steps", training.steps, "1 under sensitivity gradient")
    if training.batch is not None:
        raise UsageError("batch", training.batch, "unset under sensitivity gradient")


def clipped_gradient(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    point: Tensor,
    shares: Tensor,
    training: Training,
    squares: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(sum_r shares_r·clip(grad_r, G) at `point`, mask of the records whose gradient was longer than G).

    With shares p_i/|D_i| over the records of many clients this is the average of all their uploads' steps at once.
    A record whose gradient is not a finite number counts as zero, which is within the bound. `squares` are |x_r|², for a
    caller who comes with the same records many times.
    """
    chain = linear_chain(model, x)
    if chain is None:
        pieces = _any_pieces(model, x, y, point, training)
    else:
        squares = squared_norms(x) if squares is None else squares
        pieces = _ghost_pieces(chain, x, y, point, model, training, squares)
    total, clipped = torch.zeros_like(point), []
    for rows, norm, weighted_sum in pieces:
        factor = torch.where(norm.isfinite(), clip_factor(norm, training.record_clip), 0.0)
        total += weighted_sum(shares[rows] * factor)
        clipped.append(factor < 1)
    return total, torch.cat(clipped)


def squared_norms(x: Tensor) -> Tensor:
    """|x_r|² of every record."""
    flat = x.flatten(1)
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


def _ghost_pieces(
    chain: list[nn.Module],
    x: Tensor,
    y: Tensor,
    point: Tensor,
    model: nn.Module,
    training: Training,
    squares: Tensor,
) -> Iterator[_Piece]:
    named, linear = list(unflatten(point, model).values()), _linear(chain)
    for first in range(0, len(x), GHOST_ROWS):
        rows = slice(first, first + GHOST_ROWS)
        inputs, slopes = _ghost_pass(chain, named, x[rows], y[rows], training.loss)
        total = torch.zeros_like(squares[rows])
        for number, (layer, a, dz) in enumerate(zip(linear, inputs, slopes, strict=True)):
            # |dz aᵀ|² = |dz|²·|a|², and |dz|² more where there is a bias.
            squared = squares[rows] if number == 0 else squared_norms(a)
            total += squared_norms(dz) * (squared + (layer.bias is not None))
        yield rows, total.sqrt(), partial(_ghost_sum, linear, inputs, slopes)


def _ghost_pass(
    chain: list[nn.Module], weights: list[Tensor], x: Tensor, y: Tensor, loss: str
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
    return inputs, list(torch.autograd.grad(total, outputs))


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


def _any_pieces(
    model: nn.Module, x: Tensor, y: Tensor, point: Tensor, training: Training
) -> Iterator[_Piece]:
    def objective(weights: Tensor, record: Tensor, target: Tensor) -> Tensor:
        output = functional_call(model, unflatten(weights, model), (record[None],))
        return record_losses(output, target[None], training.loss)[0]

    each = vmap(grad(objective), in_dims=(None, 0, 0), randomness="different")
    step = max(1, GRADIENT_BYTES // (point.numel() * point.element_size()))
    for first in range(0, len(x), step):
        rows = slice(first, first + step)
        gradients = each(point, x[rows], y[rows])
        yield rows, torch.linalg.vector_norm(gradients, dim=1), partial(_gradient_sum, gradients)


def _gradient_sum(gradients: Tensor, scale: Tensor) -> Tensor:
    """sum_r s_r·grad_r from the gradients themselves."""
    silent = scale[:, None] == 0
    return scale @ (torch.where(silent, 0.0, gradients) if bool(silent.any()) else gradients)
