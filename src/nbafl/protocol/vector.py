"""A model's parameters as one vector of length d, and back.

The protocol clips, noises and averages vectors; models keep named tensors. The order is that of
`named_parameters()`; buffers and frozen parameters (requires_grad=False) are not part of the vector. A vector has at
least float32, whatever the weights have: steps and noise are smaller than bfloat16 can add to a weight.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def trainable(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The named parameters that training changes."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def flatten(model: nn.Module) -> Tensor:
    """The parameters of a model as one vector (a copy)."""
    return wide(torch.cat([parameter.detach().reshape(-1) for _, parameter in trainable(model)]))


def wide(values: Tensor) -> Tensor:
    """At least float32, and no part of a graph: norms, sums and steps are not taken in half precision."""
    values = values.detach()
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def unflatten(vector: Tensor, model: nn.Module) -> dict[str, Tensor]:
    """The model's parameters by name (for torch.func.functional_call): views into `vector` where they have its precision."""
    pieces = split(vector, model)
    return {name: piece.to(own.dtype) for (name, own), piece in zip(trainable(model), pieces, strict=True)}


def split(vector: Tensor, model: nn.Module) -> list[Tensor]:
    """Views into `vector`, one for each of the model's parameters and shaped like it."""
    shapes = [parameter.shape for _, parameter in trainable(model)]
    sizes = [shape.numel() for shape in shapes]
    if sum(sizes) != vector.numel():
        raise ValueError(f"the model has {sum(sizes)} parameters, the vector {vector.numel()} entries")
    return [piece.view(shape) for piece, shape in zip(vector.split(sizes), shapes, strict=True)]


def load(vector: Tensor, model: nn.Module) -> nn.Module:
    """Write a vector into a model's parameters, in place."""
    with torch.no_grad():
        views = unflatten(vector, model)
        for name, parameter in trainable(model):
            parameter.copy_(views[name])
    return model
