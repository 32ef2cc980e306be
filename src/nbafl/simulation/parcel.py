"""Values on their way between ranks: one piece of memory that holds a pickle and, beside it, the arrays it speaks of."""

from __future__ import annotations

import io
import pickle
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

ALIGNED = 16
"""Every part begins at a multiple of so many bytes, as views of tensors need it."""


class Parcel:
    """A value as bytes: its pickle, and beside it the memory of its arrays and tensors, copied once."""

    def __init__(self, value: Any) -> None:
        stream = io.BytesIO()
        arrays: list[Any] = []
        _Pickler(stream, protocol=5, buffer_callback=lambda array: arrays.append(array.raw())).dump(value)
        self._parts = [np.frombuffer(part, np.uint8) for part in [stream.getvalue(), *arrays]]
        self._index = np.array([len(self._parts), *map(len, self._parts)], dtype=np.int64)
        self._places = _places(self._index)
        self.length = self._places[-1]

    def write(self, content: Tensor) -> None:
        """Put it into memory that is long enough."""
        target = content.numpy()
        target[: self._index.nbytes] = self._index.view(np.uint8)
        for place, part in zip(self._places[:-1], self._parts, strict=True):
            target[place : place + len(part)] = part


def opened(content: Tensor) -> Any:
    """What was put into a parcel; its arrays and tensors lie in the memory of `content`."""
    whole = content.numpy()
    index = whole[: 8 * (1 + int(whole[:8].view(np.int64)[0]))].view(np.int64)
    head, *buffers = (
        whole[place : place + length] for place, length in zip(_places(index), index[1:], strict=False)
    )
    return pickle.loads(head.tobytes(), buffers=buffers)


def _places(index: np.ndarray) -> list[int]:
    """Where each part begins, and at last where all end: at even places, as tensors need it."""
    ends = accumulate((index.nbytes, *index[1:].tolist()), lambda before, length: _even(before) + length)
    return [_even(end) for end in ends]


def _even(length: int) -> int:
    return -(-length // ALIGNED) * ALIGNED


class _Pickler(pickle.Pickler):
    """Tensors as their memory: torch's own way of pickling costs more than the transfer."""

    def reducer_override(self, thing: Any) -> Any:
        if not isinstance(thing, Tensor):
            return NotImplemented
        flat = thing.detach().cpu().contiguous().reshape(-1)
        return _tensor, (flat.view(torch.uint8).numpy(), thing.dtype, tuple(thing.shape), thing.device.type)


def _tensor(content: Any, dtype: torch.dtype, shape: tuple[int, ...], device: str) -> Tensor:
    flat = torch.from_numpy(content).view(dtype) if content.size else torch.empty(0, dtype=dtype)
    held = flat.reshape(shape)
    return held if device == "cpu" else held.to(device)
