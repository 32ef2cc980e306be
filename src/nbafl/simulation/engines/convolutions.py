"""Convolutions of many clients at once, each with weights of its own, as one batched matrix product.

Under vmap torch makes one grouped convolution of them, a group a client, for which its kernels are slow. Laid out as
patches (a strided view and one copy), all clients' products are one `bmm`; so are both halves of the backward pass. Images
lie with their channels last: a patch is then a few long rows, which a GPU copies three times faster than many short ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nbafl.protocol.products import Geometry
from nbafl.protocol.taps import Pass, Taps, geometry_of


class WeightBatched(Taps):
    """Runs a model under vmap over clients: convolutions as batched products, recurrent layers written out."""

    def __init__(self) -> None:
        super().__init__(Pass({}), torch.empty(0))

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in (functional.conv1d, functional.conv2d):
            input, weight, bias, geometry = geometry_of(*args, **(kwargs or {}))
            if geometry is not None and input.ndim == weight.ndim:
                z = Convolution.apply(input, weight, geometry)
                return z if bias is None else z + bias.view(-1, *(1,) * (weight.ndim - 2))
        if func is functional.group_norm:
            return _group_norm(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)


def _group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """(x − mean)/√(variance + eps) in each group of channels; torch's own asks for a memory layout vmap does not know."""
    grouped = input.reshape(input.shape[0], num_groups, -1)
    variance, mean = torch.var_mean(grouped, -1, correction=0, keepdim=True)
    normal = ((grouped - mean) * torch.rsqrt(variance + eps)).reshape(input.shape)
    channels = (-1, *(1,) * (input.ndim - 2))
    normal = normal if weight is None else normal * weight.view(channels)
    return normal if bias is None else normal + bias.view(channels)


class Convolution(torch.autograd.Function):
    """Images (N, C, *space) and weights (O, C/G, *kernel) of one client; under vmap `Batched` for all of them."""

    @staticmethod
    def forward(images: Tensor, weight: Tensor, g: Geometry) -> Tensor:
        return _shared(images, weight, g)  # nothing here differs between clients

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Nothing to keep: what is the same for all clients has no gradient of a client's own."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], images: Tensor, weight: Tensor, g: Geometry) -> Any:
        images = (
            images.expand(info.batch_size, *images.shape)
            if in_dims[0] is None
            else images.movedim(in_dims[0], 0)
        )
        if in_dims[1] is None:  # the same for all clients: an ordinary convolution over all their images
            return _shared(images, weight, g), 0
        return Batched.apply(images, weight.movedim(in_dims[1], 0), g)[0], 0


class Batched(torch.autograd.Function):
    """Images (K, N, C, *space) and weights (K, O, C/G, *kernel); the patches come along, for the way back."""

    @staticmethod
    def forward(images: Tensor, weight: Tensor, g: Geometry) -> tuple[Tensor, Tensor]:
        patches = _patches(images, g)
        z = patches @ _rows(weight, g).mT  # (K, G, N·L, O/G)
        z = z.unflatten(2, (images.shape[1], *g.out(images.shape[3:])))
        return z.movedim((1, -1), (-2, -1)).flatten(-2).movedim(-1, 2), patches

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        images, weight, ctx.geometry = inputs
        ctx.shape = images.shape
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(weight, output[1])

    @staticmethod
    def backward(ctx: Any, slopes: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        (weight, patches), g = ctx.saved_tensors, ctx.geometry
        s = slopes.movedim(2, -1).unflatten(-1, (g.groups, -1)).movedim(-2, 1)  # (K, G, N, *out, O/G)
        s = s.flatten(2, -2)
        back = _folded(s @ _rows(weight, g), ctx.shape, g) if ctx.needs_input_grad[0] else None
        gradient = (s.mT @ patches).flatten(1, 2).unflatten(2, (*g.kernel, -1))  # (K, O, *kernel, C/G)
        return back, gradient.movedim(-1, 2), None


def _shared(images: Tensor, weight: Tensor, g: Geometry) -> Tensor:
    convolve = functional.conv1d if len(g.kernel) == 1 else functional.conv2d
    lead = images.shape[: images.ndim - len(g.kernel) - 1]
    flat = convolve(images.flatten(0, len(lead) - 1), weight, None, g.stride, g.padding, g.dilation, g.groups)
    return flat.unflatten(0, lead)


def _rows(weight: Tensor, g: Geometry) -> Tensor:
    """Weights (K, O, C/G, *kernel) as rows in the order of the patches, (K, G, O/G, kernel·C/G)."""
    return weight.movedim(2, -1).flatten(2).unflatten(1, (g.groups, -1))


def _patches(images: Tensor, g: Geometry) -> Tensor:
    """Patches (K, G, N·L, kernel·C/G) of images (K, N, C, *space), through one strided view."""
    edges = [0, 0, *(n for size in reversed(g.padding) for n in (size, size))]
    padded = functional.pad(images.movedim(2, -1), edges).contiguous()
    lead, many, *steps, last = padded.stride()
    out, each = g.out(images.shape[3:]), images.shape[2] // g.groups
    view = padded.as_strided(
        (len(images), g.groups, images.shape[1], *out, *g.kernel, each),
        (
            lead,
            each * last,
            many,
            *(step * s for step, s in zip(steps, g.stride, strict=True)),
            *(step * d for step, d in zip(steps, g.dilation, strict=True)),
            last,
        ),
        padded.storage_offset(),
    )
    return view.reshape(len(images), g.groups, images.shape[1] * math.prod(out), -1)


def _folded(columns: Tensor, shape: torch.Size, g: Geometry) -> Tensor:
    """What patches were taken from: every number of (K, G, N·L, kernel·C/G) added where it was read."""
    out, space = g.out(shape[3:]), shape[3:]
    columns = columns.unflatten(-1, (*g.kernel, -1)).unflatten(2, (shape[1], *out))
    wide = [size + 2 * p for size, p in zip(space, g.padding, strict=True)]
    total = columns.new_zeros(*columns.shape[:3], *wide, columns.shape[-1])
    anywhere = (slice(None),) * 3
    for at in product(*(range(size) for size in g.kernel)):
        walk = zip(at, out, g.stride, g.dilation, strict=True)
        read = tuple(slice(i * d, i * d + (n - 1) * s + 1, s) for i, n, s, d in walk)
        total[anywhere + read] += columns[anywhere + (slice(None),) * len(out) + at]
    inner = tuple(slice(p, p + size) for size, p in zip(space, g.padding, strict=True))
    return total[anywhere + inner].movedim(1, -2).flatten(-2).movedim(-1, 2)
