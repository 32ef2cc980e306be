"""Lengths and weighted sums of per-record gradients, for any model: the cheapest of three ways, found by a trial step.

    chain        a plain chain of linear layers: one pass, written out (`chain`)
    taps         any model that vmap can run: one pass, products with weights tapped (`taps`)
    one by one   everything else (data-dependent branches, kernels without a rule): a backward pass for every record

In every way a record's gradient is a function of that record and the weights alone; `chain`, `taps` and `independence` say
why. Before a model is trained, `taps` is held against `one by one` on made-up records, and dropped where they disagree.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nbafl.errors import UsageError
from nbafl.protocol.chain import Piece, chain_gradients, chain_pieces, linear_chain, squared_norms
from nbafl.protocol.independence import (
    DropoutOff,
    Kinds,
    draws_numbers,
    fresh,
    told,
    trial_records,
    trial_targets,
)
from nbafl.protocol.losses import Loss, record_losses
from nbafl.protocol.memory import chunk_bytes
from nbafl.protocol.products import Direct, Form
from nbafl.protocol.randomness import layer_draws
from nbafl.protocol.taps import run_chunk
from nbafl.protocol.vector import flatten, trainable, unflatten, wide

log = logging.getLogger("nbafl")

CHUNK_BYTES = 2**27
"""What one chunk of records may fill on a CPU: activations, slopes, and the gradients that must be formed."""
TRIAL = 3


class RecordGradients:
    """One model's way to its per-record gradients; `pieces` takes the pass."""

    def __init__(self, model: nn.Module, shape: tuple[int, ...], loss: Loss, kinds: Kinds = Kinds()) -> None:
        self.model, self.loss, self.kinds = model, loss, kinds
        self.tapped: frozenset[str] = frozenset()
        self.draws = False
        """Whether a pass draws from torch's global generator."""
        self._each = 1
        """Bytes that a record fills during a pass."""
        records = trial_records(model, shape, TRIAL, kinds)
        self.way = "chain" if linear_chain(model, records) is not None else "taps"
        if self.way == "taps":
            self._try(records)

    def pieces(self, x: Tensor, y: Tensor, point: Tensor, squares: Tensor | None = None) -> Iterator[Piece]:
        """All records in chunks: rows, lengths of their gradients at `point`, and the means to sum them up."""
        if self.way == "chain":
            chain = linear_chain(self.model, x)
            assert chain is not None
            squares = squared_norms(x) if squares is None else squares
            yield from chain_pieces(chain, x, y, point, self.model, self.loss, squares)
            return
        step = max(1, chunk_bytes(x.device, CHUNK_BYTES) // self._each)
        for first in range(0, len(x), step):
            rows = slice(first, first + step)
            forms = self._forms(x[rows], y[rows], point)
            yield rows, _lengths(forms), partial(self._weighted, forms, point)

    def of_chain(self, x: Tensor, y: Tensor, point: Tensor) -> Tensor:
        """Every record's gradient as a row, (records, d), for a chain and as many records as there is room for."""
        chain = linear_chain(self.model, x)
        assert chain is not None
        return chain_gradients(chain, x, y, point, self.model, self.loss)

    def _forms(self, x: Tensor, y: Tensor, point: Tensor) -> dict[str, Form]:
        if self.way == "taps":
            forms, escaped = run_chunk(
                fresh(self.model), unflatten(point, self.model), self.tapped, x, self._losses, y
            )
            if not escaped:
                return forms
        return self._one_by_one(x, y, point)

    def _losses(self, output: Tensor, target: Tensor) -> Tensor:
        return record_losses(output, target, self.loss)

    def _one_by_one(self, x: Tensor, y: Tensor, point: Tensor) -> dict[str, Form]:
        """A fresh copy of the model, a forward and a backward pass for every record."""
        found: dict[str, list[Tensor]] = {}
        for row in range(len(x)):
            values = {
                name: value.detach().requires_grad_() for name, value in unflatten(point, self.model).items()
            }
            with torch.enable_grad():
                output = functional_call(fresh(self.model), values, (x[row : row + 1],))
                (loss,) = self._losses(output, y[row : row + 1])
                each = torch.autograd.grad(loss, list(values.values()), materialize_grads=True)
            for name, gradient in zip(values, each, strict=True):
                found.setdefault(name, []).append(wide(gradient).reshape(-1))
        return {name: Direct(torch.stack(rows)) for name, rows in found.items()}

    def _weighted(self, forms: dict[str, Form], point: Tensor, scale: Tensor) -> Tensor:
        """sum_r scale_r·gradient_r as one vector; a weight that no record reached has a gradient of zero."""
        sizes = {name: weight.numel() for name, weight in trainable(self.model)}
        silent = scale.is_cuda or bool((scale == 0).any())  # a GPU would have to be waited for
        parts = [
            forms[name].weighted(scale, silent) if name in forms else point.new_zeros(size)
            for name, size in sizes.items()
        ]
        return torch.cat(parts).to(point.dtype)

    # --- the trial step -----------------------------------------------------------------------------------

    def _try(self, x: Tensor) -> None:
        """One pass over made-up records, with dropout at 0, before anything is written."""
        point, name = flatten(self.model), type(self.model).__name__
        try:
            self.draws = draws_numbers(self.model, tuple(x.shape[1:]), self.kinds)
            with layer_draws(0, 0, "trial", x.device), DropoutOff():
                y = trial_targets(len(x), fresh(self.model)(x[:1]).shape[-1], self.kinds, x.device)
                expected = self._one_by_one(x, y, point)
        except Exception as error:  # whatever a user's own layers may raise
            allowed = f"one that trains; a trial step failed: {told(error)}"
            raise UsageError("model", name, allowed) from error
        try:
            with layer_draws(0, 0, "trial", x.device), DropoutOff():
                agreed = self._agree(self._tapped_trial(x, y, point), expected, point)
            reason = "its gradients there differ from those taken one by one"
        except Exception as error:  # torch has no rule for what this model does
            agreed, reason = False, told(error)
        if not agreed:
            self.way = "one by one"
            self._each = 2 * point.numel() * point.element_size()
            log.warning(
                "%s cannot be trained on many records at once (%s): every record has a pass of its own, which is slow.",
                name,
                reason,
            )

    def _tapped_trial(self, x: Tensor, y: Tensor, point: Tensor) -> dict[str, Form]:
        """Finds which weights can be tapped, and how much memory a record takes."""
        values, tapped = unflatten(point, self.model), {name for name, _ in trainable(self.model)}
        weights, saved = set[int](), 0

        def count(tensor: Tensor) -> Tensor:
            nonlocal saved
            saved += tensor.numel() * tensor.element_size() * (tensor.data_ptr() not in weights)
            return tensor

        while True:
            model, saved = fresh(self.model), 0
            shared = [
                *values.values(),
                *model.parameters(),
                *model.buffers(),
            ]  # by all records, frozen ones too
            weights = {value.data_ptr() for value in shared}
            with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
                forms, escaped = run_chunk(model, values, tapped, x, self._losses, y)
            outside = escaped | (tapped - set(forms))  # used elsewhere, or not met at all: carried
            if not outside:
                break
            tapped -= outside
        self.tapped = frozenset(tapped)
        formed = sum(form.room() for form in forms.values()) * point.element_size()
        self._each = max(1, 3 * saved // len(x) + 2 * formed)
        return forms

    def _agree(self, forms: dict[str, Form], expected: dict[str, Form], point: Tensor) -> bool:
        """Whether lengths and a weighted sum are the same, to half the digits of the weights' precision."""
        near = max(torch.finfo(weight.dtype).eps for _, weight in trainable(self.model)) ** 0.5
        scale = torch.linspace(1, 2, TRIAL, dtype=point.dtype, device=point.device)
        for found, true in (
            (_lengths(forms), _lengths(expected)),
            (self._weighted(forms, point, scale), self._weighted(expected, point, scale)),
        ):
            if not bool(true.isfinite().all()):
                return bool((found.isfinite() == true.isfinite()).all())
            if not bool((found - true).norm() <= near * true.norm()):
                return False
        return True


def _lengths(forms: dict[str, Form]) -> Tensor:
    squares = [form.squares() for form in forms.values()]
    return torch.stack(squares).sum(0).sqrt()


_PREPARED: weakref.WeakKeyDictionary[nn.Module, dict[object, RecordGradients]] = weakref.WeakKeyDictionary()


def prepared(model: nn.Module, x: Tensor, y: Tensor, loss: Loss) -> RecordGradients:
    """The way of a model, found once and kept as long as the model, its mode and its weights' kinds stay as they are."""
    weights = tuple((name, weight.dtype, weight.device) for name, weight in trainable(model))
    known, shape, kinds = _PREPARED.setdefault(model, {}), tuple(x.shape[1:]), Kinds.of(x, y)
    key = (shape, loss, kinds, model.training, weights, linear_chain(model, torch.empty((1, *shape))) is None)
    if key not in known:
        known[key] = RecordGradients(model, shape, loss, kinds)
    return known[key]
