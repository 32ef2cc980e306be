"""Forward and backward through everything after the first pre-activation, for a block of clients, without autograd.

Shapes: B clients, R rows each. Hidden activations are (B, R, units). Outputs are kept as (B, outputs, R): with ten
classes a softmax along the long dimension is ten times faster than along the short one, and so is the product.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nbafl.simulation.network import Network

_threshold_backward = torch.ops.aten.threshold_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input
_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input


class Scratch:
    """Buffers that are made once and used again by the blocks that one thread works through."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._buffers: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        """An uninitialised tensor of this shape; its contents last until the next call with the same name."""
        size = torch.Size(shape).numel()
        held = self._buffers.get(name)
        if held is None or held.numel() < size:
            held = self._buffers[name] = self._like.new_empty(size)
        return held[:size].view(shape)


def activate_(z: Tensor, kind: str) -> Tensor:
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


def forward(network: Network, z: Tensor, later: Tensor, scratch: Scratch) -> tuple[list[Tensor], Tensor]:
    """Activations of every hidden layer and the outputs (B, outputs, R); `z` (B, R, units) is overwritten.

    `later` has one row of parameters per client, or one row for all (evaluation).
    """
    clients, rows = z.shape[:2]
    outputs = scratch("outputs", clients, network.outputs, rows)
    if not network.later:
        return [], outputs.copy_(z.transpose(1, 2))
    views, active = network.later_views(later), [activate_(z, network.activations[0])]
    for number, (weight, bias) in enumerate(views[:-1], start=1):
        z = scratch(f"hidden {number}", clients, rows, weight.shape[1])
        torch.bmm(active[-1], weight.transpose(1, 2), out=z)
        if bias is not None:
            z.add_(bias[:, None])
        active.append(activate_(z, network.activations[number]))
    weight, bias = views[-1]
    torch.bmm(weight, active[-1].transpose(1, 2), out=outputs)
    if bias is not None:
        outputs.add_(bias[:, :, None])
    return active, outputs


def output_gradient_(outputs: Tensor, target: Tensor, share: Tensor, loss: str) -> Tensor:
    """d(sum of share * record loss)/d(outputs), in place; target and share are (B, 1, R)."""
    if loss == "squared":
        return outputs.sub_(target).mul_(2 * share)
    torch.softmax(outputs, 1, out=outputs)
    outputs.scatter_add_(1, target, outputs.new_tensor(-1.0).expand_as(target))
    return outputs.mul_(share)


def backward(
    network: Network, active: list[Tensor], delta: Tensor, later: Tensor, gradient: Tensor, scratch: Scratch
) -> Tensor:
    """Write the later layers' gradients into `gradient` (as `later`), and return dL/dZ of the first layer (B, R, units).

    `delta` is dL/d(outputs), (B, outputs, R).
    """
    if not network.later:
        return delta.transpose(1, 2)
    clients, rows = active[0].shape[:2]
    weights, gradients = network.later_views(later), network.later_views(gradient)
    for number in reversed(range(len(weights))):
        last = number == len(weights) - 1
        along = delta if last else delta.transpose(1, 2)  # (B, outputs of this layer, R)
        torch.bmm(along, active[number], out=gradients[number][0])
        bias = gradients[number][1]
        if bias is not None:
            torch.sum(along, 2, out=bias)
        back = scratch(f"back {number}", clients, rows, active[number].shape[2])
        torch.bmm(along.transpose(1, 2), weights[number][0], out=back)
        delta = _through_activation_(back, active[number], network.activations[number])
    return delta
