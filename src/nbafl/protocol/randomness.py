"""Every random draw is a function of (seed, round, stream).

Nothing carries a generator from one round to the next, so a run that resumes in round 13 draws what an
uninterrupted run would have drawn, and a run inside a batch draws what it would have drawn alone. This is for
simulation only: a deployment takes its noise from `nbafl.privacy.noise`, where a fixed seed is refused.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 2^64 / golden ratio as a signed integer: the increment of splitmix64
_MIX = (-4658895280553007687, -7723592293110705685)  # the two multipliers of splitmix64


def stream_key(seed: int, round: int, stream: int | str) -> int:
    """63 bits that are as good as independent for different (seed, round, stream)."""
    name = f"{seed}/{round}/{stream}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little") >> 1


def generator(
    seed: int, round: int, stream: int | str, device: torch.device | str = "cpu"
) -> torch.Generator:
    """A torch generator for one stream of one round; a client's own stream is its number."""
    return torch.Generator(device).manual_seed(stream_key(seed, round, stream))


def numpy_generator(seed: int, round: int, stream: int | str) -> np.random.Generator:
    """The same for numpy."""
    return np.random.Generator(np.random.Philox(key=stream_key(seed, round, stream)))


def batches(seed: int, round: int, clients: Tensor, sizes: Tensor, steps: int, batch: int) -> Tensor:
    """Record numbers of every minibatch, shape (clients, steps, batch); -1 where a batch is not full.

    Each epoch of client i visits its records in an order of its own: its last batch may be short, and every
    record is met once. The order is the sorting order of a hash of (seed, round, client, epoch, record), so
    that all clients of a round are drawn in one go, on the device of `clients`, with the same result on any.
    `sizes` may stay on the host, which then need not wait for the device to know the largest.
    """
    largest, smallest = int(sizes.max()), int(sizes.min())
    held = sizes.to(clients.device)
    return salted_batches(batch_salt(seed, round), clients, held, steps, batch, largest, smallest)


def batch_salt(seed: int, round: int) -> int:
    """What makes the minibatches of this round differ from those of other rounds."""
    return stream_key(seed, round, "batches")


def salted_batches(
    salt: int | Tensor, clients: Tensor, sizes: Tensor, steps: int, batch: int, largest: int, smallest: int
) -> Tensor:
    """`batches` with everything the host must know given: no step of it waits for the device."""
    per_epoch = -(-sizes // batch)  # batches in an epoch: |D_i| / batch, rounded up
    epochs = -(-steps // -(-smallest // batch))
    counter = _span(epochs, clients)[:, None] * _MIX[0] + _span(largest, clients)
    order = _hash(clients[:, None, None] * _GOLDEN + counter + salt)
    absent = _span(largest, clients) >= sizes[:, None, None]
    order = torch.where(absent, torch.iinfo(torch.int64).max, order >> 1).argsort(dim=-1)
    step = _span(steps, clients)
    epoch, number = step // per_epoch[:, None], step % per_epoch[:, None]
    place = number[:, :, None] * batch + _span(batch, clients)
    here = order.gather(1, epoch[:, :, None].expand(-1, -1, largest))
    chosen = here.gather(2, place.clamp(max=largest - 1))
    return torch.where(place < sizes[:, None, None], chosen, -1)


def _span(length: int, like: Tensor) -> Tensor:
    return torch.arange(length, device=like.device)


def _hash(value: Tensor) -> Tensor:
    """The output function of splitmix64 on int64; masks make the arithmetic shifts logical."""
    value = value * _GOLDEN
    value = (value ^ ((value >> 30) & ((1 << 34) - 1))) * _MIX[0]
    value = (value ^ ((value >> 27) & ((1 << 37) - 1))) * _MIX[1]
    return value ^ ((value >> 31) & ((1 << 33) - 1))
