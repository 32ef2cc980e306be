"""The gradients of a weight for every record of a chunk, from what went in and which slopes came back.

A layer that multiplies, z_t = W a_t + b at places t = 1..T of a record (tokens, pixels, time steps), has the gradient
sum_t s_t a_tᵀ, where s_t is the slope of the record's loss at z_t. Clipping needs its length for every record and then
one weighted sum over records; neither needs the gradients themselves:

    T = 1          |s aᵀ|² = |s|²·|a|²
    direct         form sum_t s_t a_tᵀ of every record                      T·I·O products, I·O numbers a record
    Gram           sum over t, u of (a_t·a_u)(s_t·s_u)                      T²·(I+O) products, T² numbers a record
    weighted sum   sum_r c_r sum_t s_rt a_rtᵀ: one product over all records and places

whichever is smaller. Convolutions are the same with patches in place of a_t (strided views, no kernel a record), embeddings
with unit vectors. A weight that is used several times (tied, recurrent) has the places of all its uses.

Gram sums cancel where the slopes of a record do, and then lose digits. `SLACK` times the largest value they could have is
added to their square, so that what is lost can only shorten a record's share, never lengthen it. A gradient that was formed
is what its length was taken of, so the weighted sum takes it and not its places again: places of 1e25 that cancel
in one record would swallow all others on their way through a common sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

SLACK = {torch.float64: 1e-9, torch.float32: 1e-6}
PATCH_BYTES = {"cpu": 2**22, "cuda": 2**30}
"""Patches of so many bytes are laid out at a time: on a CPU they stay in a core's cache."""


class Form(Protocol):
    """The gradient of one weight for each of B records."""

    def squares(self) -> Tensor:
        """Squared lengths, (B,)."""
        ...

    def weighted(self, scale: Tensor, silent: bool | None = None) -> Tensor:
        """sum_r scale_r·gradient_r, flat; `silent`: whether any scale is 0, for a caller who knows."""
        ...

    def gradients(self) -> Tensor:
        """The gradients themselves, (B, numel)."""
        ...

    def room(self) -> int:
        """Numbers a record that must be formed on the way."""
        ...


@dataclass
class Direct:
    """Gradients that are there, (B, numel)."""

    held: Tensor

    def squares(self) -> Tensor:
        return torch.linalg.vecdot(self.held, self.held)

    def weighted(self, scale: Tensor, silent: bool | None = None) -> Tensor:
        return scale @ quiet(self.held, scale, silent)

    def gradients(self) -> Tensor:
        return self.held

    def room(self) -> int:
        return self.held.shape[1]


@dataclass
class Places:
    """z = W a + b at T places: inputs (B, T, I) and slopes (B, T, O); `across` where the weight is (I, O)."""

    inputs: Tensor
    slopes: Tensor
    across: bool = False
    held: Direct | None = None
    """The gradients themselves, where `squares` had to form them."""

    def squares(self) -> Tensor:
        if self.inputs.shape[1] == 1:
            return _vecdot(self.inputs[:, 0]) * _vecdot(self.slopes[:, 0])
        if self._by_gram():
            return gram(self.inputs @ self.inputs.mT, self.slopes @ self.slopes.mT)
        self.held = Direct(self.gradients())
        return self.held.squares()

    def weighted(self, scale: Tensor, silent: bool | None = None) -> Tensor:
        if self.held is not None:
            return self.held.weighted(scale, silent)
        a, s = quiet(self.inputs, scale, silent).flatten(0, 1), quiet(self.slopes, scale, silent)
        s = (s * scale[:, None, None]).flatten(0, 1)
        return (a.T @ s if self.across else s.T @ a).reshape(-1)

    def gradients(self) -> Tensor:
        left, right = (self.inputs, self.slopes) if self.across else (self.slopes, self.inputs)
        return (left.mT @ right).flatten(1)

    def room(self) -> int:
        places, wide = self.inputs.shape[1:]
        if places == 1:
            return 1
        return 2 * places**2 if self._by_gram() else wide * self.slopes.shape[2]

    def _by_gram(self) -> bool:
        (places, wide), high = self.inputs.shape[1:], self.slopes.shape[2]
        return places * (wide + high) <= wide * high


@dataclass
class Rows:
    """z_t is row index_t of the weight: an embedding. Indices (B, T), slopes (B, T, D)."""

    index: Tensor
    slopes: Tensor
    rows: int

    def squares(self) -> Tensor:
        met = (self.index[:, :, None] == self.index[:, None, :]).to(self.slopes.dtype)
        return gram(met, self.slopes @ self.slopes.mT)

    def weighted(self, scale: Tensor, silent: bool | None = None) -> Tensor:
        scaled = quiet(self.slopes, scale, silent) * scale[:, None, None]
        total = scaled.new_zeros(self.rows, scaled.shape[2])
        return total.index_add_(0, self.index.reshape(-1), scaled.flatten(0, 1)).reshape(-1)

    def gradients(self) -> Tensor:
        held = self.slopes.new_zeros(len(self.slopes), self.rows, self.slopes.shape[2])
        place = self.index[:, :, None].expand_as(self.slopes)
        return held.scatter_add_(1, place, self.slopes).flatten(1)

    def room(self) -> int:
        return 2 * self.index.shape[1] ** 2


@dataclass(frozen=True)
class Geometry:
    """How a convolution walks: one number a spatial dimension, and its groups."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def out(self, space: Sequence[int]) -> list[int]:
        """The size of the answer to images of this size, by torch's formula for nn.Conv2d."""
        walk = zip(space, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return [(size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in walk]


class Patches:
    """A convolution: images (B, N, C, *space) and slopes (B, N, O, *out)."""

    def __init__(self, images: Tensor, slopes: Tensor, geometry: Geometry) -> None:
        self.images, self.slopes, self.geometry = images, slopes, geometry
        self._held: Tensor | None = None

    def squares(self) -> Tensor:
        if not self._by_gram():
            return Direct(self.gradients()).squares()
        parts = []
        for a, s in self._pieces():  # (b, G, L, I) and (b, G, L, O)
            each = gram((a @ a.mT).flatten(0, 1), (s @ s.mT).flatten(0, 1))
            parts.append(each.unflatten(0, a.shape[:2]).sum(1))
        return torch.cat(parts)

    def gradients(self) -> Tensor:
        """Kept for `weighted`, which then is one product with a vector."""
        if self._held is None:
            self._held = torch.cat([(s.mT @ a).flatten(1) for a, s in self._pieces()])
        return self._held

    def weighted(self, scale: Tensor, silent: bool | None = None) -> Tensor:
        if self._held is not None:
            return Direct(self._held).weighted(scale, silent)
        images = quiet(self.images, scale, silent).flatten(0, 1)
        lead = (-1,) + (1,) * (self.slopes.ndim - 1)
        slopes = (quiet(self.slopes, scale, silent) * scale.view(lead)).flatten(0, 1)
        g = self.geometry
        shape = (self.slopes.shape[2], self.images.shape[2] // g.groups, *g.kernel)
        like = images.new_empty(1).expand(shape)
        return convolution_backward(slopes, images, like, g, (False, True))[1].reshape(-1)

    def room(self) -> int:
        places, wide, high = self._sizes()
        return self.geometry.groups * (2 * places**2 if self._by_gram() else wide * high)

    def _by_gram(self) -> bool:
        places, wide, high = self._sizes()
        return places * (wide + high) <= wide * high

    def _sizes(self) -> tuple[int, int, int]:
        """Places, inputs and outputs of one group."""
        groups = self.geometry.groups
        wide = math.prod(self.geometry.kernel) * self.images.shape[2] // groups
        return self.slopes[0, :, 0].numel(), wide, self.slopes.shape[2] // groups

    def _pieces(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs (b, G, L, I) and slopes (b, G, L, O) of a few records at a time."""
        places, wide, _ = self._sizes()
        each = places * wide * self.geometry.groups * self.images.element_size()
        step = max(1, PATCH_BYTES[self.images.device.type] // each)
        return laid_out(self.images, self.slopes, self.geometry, step)


def laid_out(images: Tensor, slopes: Tensor, g: Geometry, step: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Patches (b, G, N·L, C/G·kernel) of images (B, N, C, *space), `step` at a time, with the slopes at their places."""
    edges = [n for size in reversed(g.padding) for n in (size, size)]
    padded = functional.pad(images.flatten(0, 1), edges).unflatten(0, images.shape[:2])
    for first in range(0, len(padded), step):
        rows = slice(first, first + step)
        yield _walk(padded[rows], g), _grouped(slopes[rows], g.groups)


def _walk(images: Tensor, g: Geometry) -> Tensor:
    """Patches (b, G, N·L, C/G·kernel) of padded images (b, N, C, *space), through one strided view."""
    steps, out = images.stride()[3:], replace(g, padding=(0,) * len(g.kernel)).out(images.shape[3:])
    count, many, channels = images.shape[:3]
    view = images.as_strided(
        (count, many, channels, *g.kernel, *out),
        (
            *images.stride()[:3],
            *(step * d for step, d in zip(steps, g.dilation, strict=True)),
            *(step * s for step, s in zip(steps, g.stride, strict=True)),
        ),
        images.storage_offset(),
    )
    k = len(g.kernel)
    view = view.flatten(3 + k).flatten(3, 2 + k)  # (b, N, C, kernel, L): the copy is made here
    view = view.reshape(count, many, g.groups, -1, view.shape[-1])
    return view.permute(0, 2, 1, 4, 3).flatten(2, 3)


def _grouped(slopes: Tensor, groups: int) -> Tensor:
    """(b, G, N·L, O/G) of slopes (b, N, O, *out)."""
    view = slopes.flatten(3).unflatten(2, (groups, -1))
    return view.permute(0, 2, 1, 4, 3).flatten(2, 3)


def gram(left: Tensor, right: Tensor) -> Tensor:
    """sum over t, u of left_tu·right_tu of every record, and the slack: (B,) from two stacks of Gram matrices."""
    most = (_lengths(left) * _lengths(right)).sum(1).square()  # (sum_t |a_t||s_t|)², by Cauchy and Schwarz
    return (left * right).sum((1, 2)).clamp(min=0) + SLACK[left.dtype] * most


def _lengths(gram: Tensor) -> Tensor:
    return gram.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()


def _vecdot(rows: Tensor) -> Tensor:
    return torch.linalg.vecdot(rows, rows)


def quiet(values: Tensor, scale: Tensor, silent: bool | None = None) -> Tensor:
    """`values` with the rows of scale 0 cleared: 0·inf is not a number."""
    none = scale == 0
    if not (bool(none.any()) if silent is None else silent):
        return values
    return torch.where(none.view(-1, *(1,) * (values.ndim - 1)), 0.0, values)


def convolution_backward(
    slopes: Tensor, images: Tensor, weight: Tensor, g: Geometry, wanted: tuple[bool, bool]
) -> tuple[Tensor, Tensor]:
    """Slopes at the images and the weight's gradient, as far as wanted, of one plain convolution."""
    zeros = [0] * len(g.kernel)
    return torch.ops.aten.convolution_backward(
        slopes,
        images,
        weight,
        None,
        g.stride,
        g.padding,
        g.dilation,
        False,
        zeros,
        g.groups,
        [*wanted, False],
    )[:2]


def merged(uses: list[Form]) -> Form:
    """One form for all uses of a weight: their places together, or the sum of their gradients."""
    if len(uses) == 1:
        return uses[0]
    places = [use for use in uses if isinstance(use, Places)]
    if len(places) == len(uses) and len({use.across for use in places}) == 1:
        inputs, slopes = (
            torch.cat([getattr(use, part) for use in places], 1) for part in ("inputs", "slopes")
        )
        return Places(inputs, slopes, places[0].across)
    rows = [use for use in uses if isinstance(use, Rows)]
    if len(rows) == len(uses):
        return Rows(
            torch.cat([u.index for u in rows], 1), torch.cat([u.slopes for u in rows], 1), rows[0].rows
        )
    return Direct(sum(use.gradients() for use in uses))  # type: ignore[arg-type]
