"""One pass through any model that leaves, for every product with a weight, its input and its slopes, record by record.

Why no record can enter another's gradient:

1. The model runs under `vmap`: its code sees one record. What it computes for record r is a function of record r and the
   weights, whatever its layers do, and torch refuses what would break that (data-dependent branches, writing into
   shared tensors). No hook ever sees a batch.
2. A weight is either *carried* (every record has a copy of its own, so autograd itself keeps the gradients apart) or
   *tapped*. Products with a tapped weight are computed by `Product`, whose backward pass keeps the slopes at its output and
   hands no gradient on to the weight. After every pass autograd is asked for the gradients of the tapped weights: had
   one of them reached the losses in any other way than through a `Product`, that gradient would be there, and the chunk
   is refused (`Escaped`).
3. So the gradient of record r with respect to a tapped weight is the sum over its products of slope times input
   (`products`), and nothing is left out.

The kinds of product that are known here: linear layers, convolutions, embeddings, and what is made of them (attention,
recurrent layers). Everything else is carried.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from nbafl.protocol import recurrent
from nbafl.protocol.products import (
    Direct,
    Form,
    Geometry,
    Patches,
    Places,
    Rows,
    convolution_backward,
    merged,
)
from nbafl.protocol.vector import wide

_MATRIX_PRODUCTS = (torch.matmul, torch.mm, torch.Tensor.matmul, torch.Tensor.mm, torch.Tensor.__matmul__)


class Escaped(Exception):
    """A tapped weight was used in a way that `Product` did not see."""


@dataclass
class Pass:
    """One chunk on its way: which weights are tapped, by identity, and what their products left behind."""

    names: dict[int, str]
    left: dict[str, list[Form]] = field(default_factory=dict)

    def keep(self, name: str | None, form: Form) -> None:
        if name is not None:
            self.left.setdefault(name, []).append(form)


@dataclass(frozen=True)
class Spec:
    """One product: its kind, the names of its weight and bias, and how a convolution walks."""

    kind: str
    weight: str | None
    bias: str | None
    kept: Pass
    geometry: Geometry | None = None
    skipped: int | None = None
    """Row of an embedding whose gradient is zero (padding_idx)."""


class Product(torch.autograd.Function):
    """z = W a + b for every record of a chunk, (B, ...) first; images come as (B·N, C, *space).

    `ticket`, one number a record, makes sure that vmap asks even where `a` is the same for all records.
    """

    @staticmethod
    def forward(a: Tensor, weight: Tensor, bias: Tensor | None, ticket: Tensor, spec: Spec) -> Tensor:  # noqa: ARG004
        if spec.kind == "rows":
            return functional.embedding(a, weight)
        if spec.kind == "across":
            return a @ weight if bias is None else a @ weight + bias
        if spec.kind == "places":
            return functional.linear(a, weight, bias)
        g = spec.geometry
        assert g is not None
        convolve = functional.conv1d if len(g.kernel) == 1 else functional.conv2d
        return convolve(a, weight, bias, g.stride, g.padding, g.dilation, g.groups)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        a, weight, bias, ticket, ctx.spec = inputs
        ctx.biased, ctx.records = bias is not None, len(ticket)
        ctx.save_for_backward(a, weight)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
        a, *others = inputs
        if any(dim is not None for dim in in_dims[1:3]):
            raise Escaped("a tapped weight came with a copy for every record")
        a = a.expand(info.batch_size, *a.shape) if in_dims[0] is None else a.movedim(in_dims[0], 0)
        if others[-1].kind != "patches":
            return Product.apply(a, *others), 0
        return Product.apply(a.flatten(0, 1), *others).unflatten(0, a.shape[:2]), 0

    @staticmethod
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor | None, ...]:
        (a, weight), spec = ctx.saved_tensors, ctx.spec
        back = None
        if spec.kind == "rows":
            _keep_rows(a, slopes, weight, spec)
        elif spec.kind == "patches":
            images, slopes_of = (part.unflatten(0, (ctx.records, -1)) for part in (a, slopes))
            _keep_patches(images, slopes_of, ctx.biased, spec)
            if ctx.needs_input_grad[0]:
                back = convolution_backward(slopes, a, weight, spec.geometry, (True, False))[0]
        else:
            _keep_places(a, slopes, ctx.biased, spec)
            if ctx.needs_input_grad[0]:
                back = slopes @ (weight.mT if spec.kind == "across" else weight)
        return back, None, None, None, None


def _keep_places(a: Tensor, slopes: Tensor, biased: bool, spec: Spec) -> None:
    inputs, slopes = (wide(part.reshape(len(part), -1, part.shape[-1])) for part in (a, slopes))
    spec.kept.keep(spec.weight, Places(inputs, slopes, spec.kind == "across"))
    if biased:
        spec.kept.keep(spec.bias, Direct(slopes.sum(1)))


def _keep_rows(index: Tensor, slopes: Tensor, weight: Tensor, spec: Spec) -> None:
    index, slopes = index.flatten(1), wide(slopes.reshape(len(slopes), -1, slopes.shape[-1]))
    if spec.skipped is not None:
        slopes = slopes * (index != spec.skipped)[:, :, None]
    spec.kept.keep(spec.weight, Rows(index, slopes, len(weight)))


def _keep_patches(images: Tensor, slopes: Tensor, biased: bool, spec: Spec) -> None:
    assert spec.geometry is not None
    slopes = wide(slopes)
    spec.kept.keep(spec.weight, Patches(wide(images), slopes, spec.geometry))
    if biased:
        spec.kept.keep(spec.bias, Direct(slopes.flatten(3).sum((1, 3))))


class Taps(TorchFunctionMode):
    """Sends every product with a tapped weight through `Product`."""

    def __init__(self, kept: Pass, ticket: Tensor) -> None:
        super().__init__()
        self.kept, self.ticket = kept, ticket

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        handler = _HANDLERS.get(func)
        if handler is not None:
            answer = handler(self, *args, **kwargs)
            if answer is not NotImplemented:
                return answer
        elif getattr(func, "__name__", "") in recurrent.FUNCTIONS:
            return recurrent.run(func.__name__, partial(_linear_or_plain, self), *args, **kwargs)
        elif func is functional.multi_head_attention_forward:
            with self:
                return _attention(*args, **kwargs)
        return func(*args, **kwargs)

    def name(self, weight: Any) -> str | None:
        return self.kept.names.get(id(weight))

    def product(self, kind: str, a: Tensor, weight: Tensor, bias: Tensor | None, **more: Any) -> Tensor:
        """The product with a known weight; a bias that is not known is added the ordinary way."""
        known = bias is None or self.name(bias) is not None
        spec = Spec(kind, self.name(weight), self.name(bias), self.kept, **more)
        z = Product.apply(a, weight, bias if known else None, self.ticket, spec)
        if known or bias is None:
            return z
        return z + (bias.view(-1, *(1,) * (z.ndim - 2)) if kind == "patches" else bias)


def _linear(taps: Taps, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if taps.name(weight) is None or input.dtype != weight.dtype:
        return NotImplemented
    return taps.product("places", input, weight, bias)


def _linear_or_plain(taps: Taps, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    answer = _linear(taps, input, weight, bias)
    return functional.linear(input, weight, bias) if answer is NotImplemented else answer


def _convolution(taps: Taps, *args: Any, **kwargs: Any) -> Any:
    input, weight, bias, geometry = geometry_of(*args, **kwargs)
    if geometry is None or taps.name(weight) is None:
        return NotImplemented
    if input.ndim != weight.ndim or input.dtype != weight.dtype:
        return NotImplemented
    return taps.product("patches", input, weight, bias, geometry=geometry)


def geometry_of(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> tuple[Tensor, Tensor, Tensor | None, Geometry | None]:
    """The arguments of a convolution; no geometry where the padding is "same", which may be uneven."""
    if isinstance(padding, str) and padding != "valid":
        return input, weight, bias, None
    numbers = (stride, 0 if padding == "valid" else padding, dilation)
    stride, padding, dilation = (_each(number, weight.ndim - 2) for number in numbers)
    return input, weight, bias, Geometry(tuple(weight.shape[2:]), stride, padding, dilation, groups)


def _each(number: Any, dimensions: int) -> tuple[int, ...]:
    numbers = (number,) if isinstance(number, int) else tuple(number)
    return numbers * dimensions if len(numbers) == 1 else numbers


def _embedding(
    taps: Taps,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,  # noqa: ARG001
    scale_grad_by_freq: bool = False,
    sparse: bool = False,  # noqa: ARG001
) -> Any:
    if max_norm is not None or scale_grad_by_freq:
        return NotImplemented
    skipped = padding_idx + len(weight) if padding_idx is not None and padding_idx < 0 else padding_idx
    if taps.name(weight) is None:
        rows = functional.embedding(input, weight)
        # Under vmap torch forgets that the padding's row has no gradient where records have weights of their own.
        return rows if skipped is None else torch.where((input == skipped)[..., None], rows.detach(), rows)
    return taps.product("rows", input, weight, None, skipped=skipped)


def _bag(
    taps: Taps,
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,  # noqa: ARG001
    padding_idx: int | None = None,
) -> Any:
    """Bags of equal size are an embedding and a sum; torch has no rule for vmap here."""
    if input.ndim != 2 or offsets is not None or padding_idx is not None:
        return NotImplemented
    rows = _embedding(taps, input, weight, None, max_norm, norm_type, scale_grad_by_freq, sparse)
    if rows is NotImplemented:
        rows = functional.embedding(input, weight, None, max_norm, norm_type, scale_grad_by_freq)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[..., None]
    return rows.amax(1) if mode == "max" else rows.sum(1) if mode == "sum" else rows.mean(1)


def _addmm(
    taps: Taps, bias: Tensor, input: Tensor, weight: Tensor, *, beta: float = 1, alpha: float = 1
) -> Any:
    if taps.name(weight) is None or (beta, alpha) != (1, 1) or input.ndim != 2:
        return NotImplemented
    return taps.product("across", input, weight, bias)


def _matmul(taps: Taps, input: Tensor, weight: Tensor) -> Any:
    if taps.name(weight) is None or weight.ndim != 2 or input.ndim < 2 or input.dtype != weight.dtype:
        return NotImplemented
    return taps.product("across", input, weight, None)


def _scores(
    taps: Taps,  # noqa: ARG001
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """softmax(q kᵀ/√d) v written out: torch's fused kernels have no rule for vmap (CPU) or want other strides (CUDA)."""
    if enable_gqa:
        return NotImplemented
    score = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(score.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None:
        score = (
            score.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else score + attn_mask
        )
    return functional.dropout(score.softmax(-1), dropout_p) @ value


_HANDLERS: dict[Any, Callable[..., Any]] = {
    functional.linear: _linear,
    functional.embedding: _embedding,
    functional.embedding_bag: _bag,
    functional.scaled_dot_product_attention: _scores,
    torch.addmm: _addmm,
    functional.conv1d: _convolution,
    functional.conv2d: _convolution,
    **dict.fromkeys(_MATRIX_PRODUCTS, _matmul),
}

# torch's own attention, which hands itself to a mode as a whole; this copy of it lets the mode see its linear layers.
_attention = types.FunctionType(
    functional.multi_head_attention_forward.__code__,
    {**functional.multi_head_attention_forward.__globals__, "has_torch_function": lambda _: False},
    "multi_head_attention_forward",
    functional.multi_head_attention_forward.__defaults__,
)


def run_chunk(
    model: nn.Module,
    values: dict[str, Tensor],
    tapped: Iterable[str],
    x: Tensor,
    losses: Callable[[Tensor, Tensor], Tensor],
    y: Tensor,
) -> tuple[dict[str, Form], set[str]]:
    """What every record's gradient is made of, by weight; and the tapped weights whose gradient would not be whole.

    `model` is a copy that is used for this chunk alone; `values` are its trainable weights.
    """
    tapped = set(tapped)
    shared = {n: v.detach().requires_grad_() for n, v in values.items() if n in tapped}
    carried = {
        n: v.detach().expand(len(x), *v.shape).requires_grad_() for n, v in values.items() if n not in tapped
    }
    kept = Pass({id(value): name for name, value in shared.items()})

    def one(record: Tensor, target: Tensor, ticket: Tensor, own: dict[str, Tensor]) -> Tensor:
        with Taps(kept, ticket):
            output = functional_call(model, {**shared, **own}, (record[None],))
        return losses(output, target[None])[0]

    with torch.enable_grad():
        each = vmap(one, randomness="different")(x, y, torch.zeros(len(x), device=x.device), carried)
        found = torch.autograd.grad(each.sum(), [*carried.values(), *shared.values()], allow_unused=True)
    named = dict(zip([*carried, *shared], found, strict=True))
    escaped = {name for name in shared if named[name] is not None}
    forms = {name: merged(uses) for name, uses in kept.left.items()}
    for name in carried:
        if named[name] is not None:
            forms[name] = Direct(wide(named[name]).flatten(1))
    return forms, escaped
