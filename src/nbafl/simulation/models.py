"""The models a plan can name: `mlp` (784-256-10 on MNIST), `softmax` regression, or a factory of the user's own."""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable

import torch
from torch import nn

from nbafl.errors import UsageError
from nbafl.protocol.independence import told
from nbafl.protocol.randomness import layer_draws

HIDDEN = 256
ALLOWED = "mlp, softmax, or package.module:factory"


Factory = Callable[[tuple[int, ...], int], nn.Module]


def build(
    model: str | Factory, shape: tuple[int, ...], outputs: int, seed: int, tokens: bool = False
) -> nn.Module:
    """A freshly initialised model for records of the given shape (whole numbers where they are `tokens`).

    The same seed gives the same weights.
    """
    name = model if isinstance(model, str) else getattr(model, "__qualname__", repr(model))
    factory = _named(model) if isinstance(model, str) else model
    with layer_draws(seed, 0, "model", torch.device("cpu")):
        try:
            made = factory(tuple(shape), outputs)
        except Exception as error:  # whatever a user's own code may raise
            allowed = (
                f"a factory that takes (input shape, number of outputs); calling it failed: {told(error)}"
            )
            raise UsageError("model", name, allowed) from error
        if not isinstance(made, nn.Module):
            raise UsageError("model", name, "a factory that returns a torch.nn.Module")
        check(made, name, shape, outputs, tokens)
    return made


def check(model: nn.Module, name: str, shape: tuple[int, ...], outputs: int, tokens: bool = False) -> None:
    """Refuse a model that has nothing to train or does not answer such records with so many numbers each."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise UsageError("model", name, "a model with parameters to train")
    answer = f"{outputs} numbers for each record of shape {tuple(shape)}"
    first = trained[0]
    was_training = model.training
    try:
        with torch.no_grad():
            kind = torch.int64 if tokens else first.dtype
            output = model.eval()(torch.zeros((2, *shape), dtype=kind, device=first.device))
    except Exception as error:  # whatever a user's own layers may raise
        raise UsageError(
            "model", name, f"one that answers with {answer}; it failed: {told(error)}"
        ) from error
    finally:
        model.train(was_training)
    found = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
    if found != (2, outputs):
        raise UsageError("model", name, f"one that answers with {answer}; two records gave {found}")


def mlp(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The paper's network: one hidden layer of 256 ReLU units, torch's default initialisation."""
    inputs = math.prod(shape)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, outputs))


def softmax(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Softmax regression (logistic or linear with one output); starts at zero, the problem being convex."""
    layer = nn.Linear(math.prod(shape), outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


def _named(name: str) -> Factory:
    if name in ("mlp", "softmax"):
        return {"mlp": mlp, "softmax": softmax}[name]
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise UsageError("model", name, ALLOWED)
    if os.getcwd() not in sys.path:  # a factory beside the user's data, as `python -m` would find it
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # importing runs a user's own code
        raise UsageError("model", name, f"{ALLOWED}; importing it failed: {told(error)}") from error
