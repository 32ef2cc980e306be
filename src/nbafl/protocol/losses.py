"""The loss of every record, record by record, and what it weighs in a client's objective F_i = (1/m) sum_r w(y_r) loss_r.

Three losses are built in, one per task. A loss of one's own is a function of (outputs (records, outputs), targets
(records,)) that gives one number per record, as itself or as `package.module:function`. It is always called under vmap, one
record at a time, so that no record can enter the loss of another, whatever the function does with a batch.

Class weights are public numbers. The weighted sum is divided by the number of records m, never by the sum of the weights:
that sum would change with one record's class and so couple all records.
"""

from __future__ import annotations

import copy
import importlib
import os
import sys
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional

from nbafl.errors import UsageError
from nbafl.tasks import BINARY, CLASSIFICATION, LOSSES, REGRESSION, classes_of

CROSS_ENTROPY, LOGISTIC, SQUARED = LOSSES[CLASSIFICATION], LOSSES[BINARY], LOSSES[REGRESSION]
BUILT_IN = tuple(LOSSES.values())
Own = Callable[[Tensor, Tensor], Tensor]
Loss = str | Own
"""A built-in loss by name, `package.module:function`, or a function."""
_ALLOWED = "a function of (outputs, targets) that returns one number per record"


def record_losses(output: Tensor, target: Tensor, loss: Loss) -> Tensor:
    """The loss of every record: -log p(y) for classes, (output - y)^2 for numbers, or one's own."""
    output = output.to(torch.promote_types(output.dtype, torch.float32))  # losses of half-precision models
    if loss == CROSS_ENTROPY:
        return functional.cross_entropy(output, target, reduction="none")
    if loss == LOGISTIC:
        truth = target.to(output.dtype)
        return functional.binary_cross_entropy_with_logits(
            output.reshape(target.shape), truth, reduction="none"
        )
    if loss == SQUARED:
        return (output.reshape(target.shape) - target).square()
    return _each_alone(own(loss), output, target)


def _each_alone(function: Own, output: Tensor, target: Tensor) -> Tensor:
    """A loss of one's own: every record by itself, with a fresh copy where the loss is a module that could remember."""
    function = copy.deepcopy(function) if isinstance(function, nn.Module) else function
    if output.ndim == 3:  # (groups, outputs, records), as evaluation has them
        outputs = output.transpose(1, 2).flatten(0, 1)
        return _each_alone(function, outputs, target.flatten()).view(target.shape)
    return vmap(lambda one, truth: function(one[None], truth[None]).reshape(()))(output, target)


def weighted(shares: Tensor, target: Tensor, weights: tuple[float, ...] | None) -> Tensor:
    """Shares of records times the weights of their classes; made of comparisons, which vmap and CUDA graphs both take."""
    if weights is None:
        return shares
    factor = torch.zeros_like(shares)
    for number, weight in enumerate(weights):
        factor = torch.where(target == number, weight, factor)
    return shares * factor


def probabilities(output: Tensor) -> Tensor:
    """(records, classes) from a classifier's outputs (records, outputs): softmax, or the sigmoid of a single output."""
    if output.shape[-1] == 1:
        second = torch.sigmoid(output)
        return torch.cat([torch.sigmoid(-output), second], dim=-1)
    return torch.softmax(output, dim=-1)


def likeliest(output: Tensor, dim: int = -1) -> Tensor:
    """The class of every record that a classifier's outputs (along `dim`) speak for."""
    return (output.select(dim, 0) > 0).long() if output.shape[dim] == 1 else output.argmax(dim)


def own(loss: Loss) -> Own:
    """The function behind a loss of one's own."""
    return _imported(loss) if isinstance(loss, str) else loss


@cache
def _imported(name: str) -> Own:
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:  # a function beside the user's data, as `python -m` would find it
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # importing runs a user's own code
        raise UsageError("loss", name, f"package.module:function; importing it failed: {error}") from error
    if not callable(found):
        raise UsageError("loss", name, _ALLOWED)
    return found


def check_loss(loss: Loss, outputs: int, task: str) -> None:
    """Ask a loss of one's own a few questions before anything is trained: one number per record, from that record alone."""
    if loss in BUILT_IN:
        return
    function, name = own(loss), loss if isinstance(loss, str) else getattr(loss, "__qualname__", repr(loss))
    output = torch.linspace(-1.5, 2.0, 3 * outputs).reshape(3, outputs)
    classes = classes_of(task, outputs)
    target = torch.arange(3) % classes if classes else torch.tensor([0.3, -0.7, 1.1])
    try:
        losses = function(output.clone().requires_grad_(), target)
    except Exception as error:  # whatever a user's own code may raise
        raise UsageError("loss", name, f"{_ALLOWED}; it failed: {error}") from error
    if not isinstance(losses, Tensor) or losses.shape != (3,) or not losses.requires_grad:
        found = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise UsageError("loss", name, f"{_ALLOWED} and can be differentiated; three records gave {found}")
    if not bool(losses.isfinite().all()):
        raise UsageError("loss", name, f"{_ALLOWED}; three ordinary records gave {losses.tolist()}")
    alone = torch.cat([function(output[row : row + 1], target[row : row + 1]) for row in range(3)])
    if not torch.allclose(losses.detach(), alone, rtol=1e-4, atol=1e-6):
        allowed = f"{_ALLOWED}, from that record alone: its value changed with the records beside it"
        raise UsageError("loss", name, allowed)
    if not torch.equal(function(output, target), function(output, target)):
        raise UsageError("loss", name, f"{_ALLOWED} and remembers nothing: asked twice it gave two answers")
    try:
        apart = _each_alone(function, output, target)
    except Exception as error:  # torch has no rule for what this function does
        allowed = f"{_ALLOWED} that torch.vmap can run (no branches on values); it failed: {error}"
        raise UsageError("loss", name, allowed) from error
    if not torch.allclose(losses.detach(), apart, rtol=1e-4, atol=1e-6):
        raise UsageError("loss", name, f"{_ALLOWED}, the same under torch.vmap as without")
