"""Models the fast engines can train by hand: linear layers with an activation between them.

The first layer is kept as a *table* with one row per input and, last, one row for the bias; the layers after it are
kept as one flat row per client, with views for each weight and bias. Everything else is a vector of length d.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nbafl.protocol.layers import hold_all, ordinary, unwrapped

ACTIVATIONS = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}


@dataclass(frozen=True)
class Layer:
    """One linear layer: weight (outputs, inputs) and maybe a bias."""

    inputs: int
    outputs: int
    bias: bool

    @property
    def size(self) -> int:
        return self.outputs * (self.inputs + self.bias)

    def views(self, flat: Tensor) -> tuple[Tensor, Tensor | None]:
        """Weight (..., outputs, inputs) and bias (..., outputs) inside `flat` of shape (..., size)."""
        weight = flat[..., : self.outputs * self.inputs].unflatten(-1, (self.outputs, self.inputs))
        return weight, flat[..., self.outputs * self.inputs :] if self.bias else None


@dataclass(frozen=True)
class Network:
    """Linear layers with one activation after each but the last."""

    layers: tuple[Layer, ...]
    activations: tuple[str, ...]

    @classmethod
    def of(cls, model: nn.Module, shape: tuple[int, ...]) -> Network | None:
        """The network a module is, or None when it is something else."""
        layers: list[Layer] = []
        activations: list[str] = []
        flat = len(shape) == 1
        linear: list[nn.Module] = []
        for module in _leaves(model):
            if not ordinary(module, (nn.Flatten, nn.Linear, *ACTIVATIONS)):
                return None
            if (
                isinstance(module, nn.Flatten)
                and not layers
                and (module.start_dim, module.end_dim) == (1, -1)
            ):
                flat = True
            elif isinstance(module, nn.Linear) and len(layers) == len(activations):
                linear.append(module)
                layers.append(Layer(module.in_features, module.out_features, module.bias is not None))
            elif type(module) in ACTIVATIONS and len(layers) == len(activations) + 1:
                activations.append(ACTIVATIONS[type(module)])
            else:
                return None
        whole = flat and len(layers) == len(activations) + 1 and layers[0].inputs == math.prod(shape)
        return cls(tuple(layers), tuple(activations)) if whole and hold_all(linear, model) else None

    @property
    def first(self) -> Layer:
        return self.layers[0]

    @property
    def later(self) -> tuple[Layer, ...]:
        return self.layers[1:]

    @property
    def later_size(self) -> int:
        return sum(layer.size for layer in self.later)

    @property
    def outputs(self) -> int:
        return self.layers[-1].outputs

    def split(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """The first layer as a table (inputs + bias, outputs), and the other layers' parameters as they lie."""
        weight, bias = self.first.views(vector[: self.first.size])
        table = weight.t() if bias is None else torch.cat([weight.t(), bias[None]])
        return table.contiguous(), vector[self.first.size :]

    def join(self, table: Tensor, later: Tensor) -> Tensor:
        """The inverse of `split`."""
        parts = [table[: self.first.inputs].t().reshape(-1), later]
        if self.first.bias:
            parts.insert(1, table[self.first.inputs])
        return torch.cat(parts)

    def later_views(self, flat: Tensor) -> list[tuple[Tensor, Tensor | None]]:
        """Weight and bias of each layer after the first, as views into `flat` (..., later_size)."""
        views, start = [], 0
        for layer in self.later:
            views.append(layer.views(flat[..., start : start + layer.size]))
            start += layer.size
        return views


def _leaves(model: nn.Module) -> Iterator[nn.Module]:
    """The layers of nested nn.Sequential containers in order; any other module counts as one layer."""
    layers = unwrapped(model)
    if layers == [model]:
        yield model
        return
    for child in layers:
        if not ordinary(child, (nn.Identity,)):
            yield from _leaves(child)
