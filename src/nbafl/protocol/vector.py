"""A model's parameters as one vector of length d, and back.

The protocol clips, noises and averages vectors; models keep named tensors. The order is that of
`named_parameters()`; buffers and frozen parameters (requires_grad=False) are not part of the vector.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def trainable(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The named parameters that training changes."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def flatten(model: nn.Module) -> Tensor:
    """The parameters of a model as one vector (a copy)."""
    return torch.cat([parameter.detach().reshape(-1) for _, parameter in trainable(model)])


def unflatten(vector: Tensor, model: nn.Module) -> dict[str, Tensor]:
    """Views into `vector`, named and shaped as the model's parameters (for torch.func.functional_call)."""
    parameters = trainable(model)
    sizes = [parameter.numel() for _, parameter in parameters]
    if sum(sizes) != vector.numel():
        raise ValueError(f"the model has {sum(sizes)} parameters, the vector {vector.numel()} entries")
    pieces = vector.split(sizes)
    return {name: piece.view(own.shape) for (name, own), piece in zip(parameters, pieces, strict=True)}


def load(vector: Tensor, model: nn.Module) -> nn.Module:
    """Write a vector into a model's parameters, in place."""
    with torch.no_grad():
        views = unflatten(vector, model)
        for name, parameter in trainable(model):
            parameter.copy_(views[name])
    return model
