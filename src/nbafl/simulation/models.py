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
from nbafl.protocol import stream_key

HIDDEN = 256
ALLOWED = "mlp, softmax, or package.module:factory"


def build(name: str, shape: tuple[int, ...], outputs: int, seed: int) -> nn.Module:
    """A freshly initialised model for records of the given shape; the same seed gives the same weights."""
    factory = _factory(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_key(seed, 0, "model"))
        model = factory(tuple(shape), outputs)
    if not isinstance(model, nn.Module):
        raise UsageError("model", name, "a factory that returns a torch.nn.Module")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError("model", name, "a model with parameters to train")
    return model


def mlp(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The paper's network: one hidden layer of 256 ReLU units, torch's default initialisation."""
    inputs = math.prod(shape)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, outputs))


def softmax(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Softmax regression (linear regression where the task is one); starts at zero, the problem being convex."""
    layer = nn.Linear(math.prod(shape), outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


def _factory(name: str) -> Callable[[tuple[int, ...], int], nn.Module]:
    if name in ("mlp", "softmax"):
        return {"mlp": mlp, "softmax": softmax}[name]
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise UsageError("model", name, ALLOWED)
    if os.getcwd() not in sys.path:  # a factory beside the user's data, as `python -m` would find it
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageError("model", name, f"{ALLOWED}; importing it failed: {error}") from error
