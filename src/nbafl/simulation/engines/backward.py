"""Forward and backward through everything after the first pre-activation, for a team of clients, without autograd.

Shapes: B clients, R rows each. Hidden activations are (B, R, units). Outputs are kept as (B, outputs, R): with ten
classes a softmax along the long dimension is ten times faster than along the short one, and so is the product.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nbafl.protocol import Training
from nbafl.protocol.losses import LOGISTIC, SQUARED, weighted
from nbafl.simulation.engines.network import Network

_threshold_backward = torch.ops.aten.threshold_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input
_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input


class Scratch:
    """Buffers that are made once and used again by the teams that one thread works through."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._buffers: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        """An uninitialised tensor of this shape; its contents last until the next call with the same name."""
        size = math.prod(shape)
        held = self._buffers.get(name)
        if held is None or held.numel() < size:
            held = self._buffers[name] = self._like.new_empty(size)
        return held[:size].view(shape)


class Tail:
    """The layers after the first, with the buffers for B clients and R rows each.

    `later` has one row of parameters per client (or one for all, in an evaluation).
    """

    def __init__(self, network: Network, later: Tensor, rows: int, scratch: Scratch) -> None:
        self.network, self.later = network, later
        self.slope = scratch("slope", *later.shape)
        """Gradient of the later layers, as `later`; `gradient` writes it."""
        clients = len(later)
        self._weights, self._slopes = network.later_views(later), network.later_views(self.slope)
        self._hidden = [
            scratch(f"hidden {n}", clients, rows, layer.outputs) for n, layer in enumerate(network.later[:-1])
        ]
        self._back = [
            scratch(f"back {n}", clients, rows, layer.inputs) for n, layer in enumerate(network.later)
        ]
        self._outputs = scratch("outputs", clients, network.outputs, rows)
        self._minus = later.new_full((), -1.0).expand(clients, 1, rows)

    def forward(self, z: Tensor) -> tuple[list[Tensor], Tensor]:
        """Activations of every hidden layer and the outputs (B, outputs, R); z (B, R, units) is overwritten."""
        network, outputs = self.network, self._outputs
        if not network.later:
            return [], outputs.copy_(z.transpose(1, 2))
        active = [_activate_(z, network.activations[0])]
        for number, z in enumerate(self._hidden):
            weight, bias = self._weights[number]
            torch.bmm(active[-1], weight.transpose(1, 2), out=z)
            if bias is not None:
                z.add_(bias[:, None])
            active.append(_activate_(z, network.activations[number + 1]))
        weight, bias = self._weights[-1]
        if bias is None:
            torch.bmm(weight, active[-1].transpose(1, 2), out=outputs)
        else:
            torch.baddbmm(bias[:, :, None], weight, active[-1].transpose(1, 2), out=outputs)
        return active, outputs

    def gradient(self, z: Tensor, target: Tensor, share: Tensor, training: Training) -> Tensor:
        """dF/dZ for F = sum of share * record loss; z is overwritten, `slope` written; target, share: (B, 1, R)."""
        active, outputs = self.forward(z)
        share = weighted(share, target, training.class_weights)
        if training.loss == SQUARED:
            outputs.sub_(target).mul_(2)
        elif training.loss == LOGISTIC:
            outputs.sigmoid_().sub_(target)
        else:
            torch.softmax(outputs, 1, out=outputs)
            outputs.scatter_add_(1, target, self._minus)
        return self._backward(active, outputs.mul_(share))

    def _backward(self, active: list[Tensor], delta: Tensor) -> Tensor:
        """From dF/d(outputs), (B, outputs, R), to dF/dZ, (B, R, units)."""
        if not self.network.later:
            return delta.transpose(1, 2)
        last = len(active) - 1
        for number in range(last, -1, -1):
            along = delta if number == last else delta.transpose(1, 2)  # (B, units of this layer, R)
            slope, bias = self._slopes[number]
            torch.bmm(along, active[number], out=slope)
            if bias is not None:
                torch.sum(along, 2, out=bias)
            back = torch.bmm(along.transpose(1, 2), self._weights[number][0], out=self._back[number])
            delta = _through_activation_(back, active[number], self.network.activations[number])
        return delta


def _activate_(z: Tensor, kind: str) -> Tensor:
    """The activation in place."""
    if kind == "relu":
        return z.clamp_(min=0)
    return z.tanh_() if kind == "tanh" else z.sigmoid_()


def _through_activation_(gradient: Tensor, active: Tensor, kind: str) -> Tensor:
    """dL/dz from dL/da and a = activation(z), in place; each derivative is a function of a alone."""
    if kind == "relu":
        return _threshold_backward(gradient, active, 0, grad_input=gradient)
    backward = _tanh_backward if kind == "tanh" else _sigmoid_backward
    return backward(gradient, active, grad_input=gradient)
