"""Which modules the fast paths may take apart: those that do what their class says, with weights of their own.

A subclass, a hook or a shared weight can change what a layer computes without changing how it looks. Whoever computes a
layer's output or gradient by hand asks here first; what is refused goes through torch.func, or is refused altogether.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn


def ordinary(module: nn.Module, kinds: Sequence[type[nn.Module]]) -> bool:
    """Whether the module is exactly one of these classes, with no hook and no forward of its own."""
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return type(module) in kinds and not any(hooks) and "forward" not in vars(module)


def hold_all(layers: Sequence[nn.Module], model: nn.Module) -> bool:
    """Whether these layers hold every parameter of the model, each one once, and train them all."""
    own = [parameter for layer in layers for parameter in layer.parameters()]
    distinct = len({id(parameter) for parameter in own}) == len(own) == len(list(model.parameters()))
    return distinct and all(parameter.requires_grad for parameter in own)


def unwrapped(model: nn.Module) -> list[nn.Module]:
    """The layers of an ordinary nn.Sequential; any other module counts as one layer."""
    return list(model) if isinstance(model, nn.Sequential) and ordinary(model, (nn.Sequential,)) else [model]
