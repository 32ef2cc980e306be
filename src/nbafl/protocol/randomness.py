"""Every random draw is a function of (seed, round, stream).

Nothing carries a generator from one round to the next, so a run that resumes in round 13 draws what an
uninterrupted run would have drawn, and a run inside a batch draws what it would have drawn alone. This is for
simulation only: a deployment takes its noise from `nbafl.privacy.noise`, where a fixed seed is refused.

Torch's `manual_seed` keeps 32 bits of a seed on the CPU, so that two of some 10,000 rounds would share their noise.
Here all 624 words of its Mersenne Twister come from a hash of (seed, round, stream). On CUDA the generator is Philox,
whose seed has 64 bits and keeps them (benchmarks/gpu_models.py looks).
"""

from __future__ import annotations

import hashlib
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from nbafl.mixing import GOLDEN, MULTIPLIERS, mixed

_WORDS = 624
_FRESH = struct.pack("<QiiQ", 0, 1, 1, 0)
"""Head of torch's CPU generator state: initial seed (told, not used), words left before the next twist, seeded, place."""
_NO_NORMALS = bytes(40)
"""Its tail: no half of a pair of normals is waiting."""
_GLOBAL = threading.Lock()


def stream_key(seed: int, round: int, stream: int | str) -> int:
    """63 bits that are as good as independent for different (seed, round, stream)."""
    return int.from_bytes(hashlib.blake2b(_name(seed, round, stream), digest_size=8).digest(), "little") >> 1


def generator(
    seed: int, round: int, stream: int | str, device: torch.device | str = "cpu"
) -> torch.Generator:
    """A torch generator for one stream of one round; a client's own stream is its number."""
    made = torch.Generator(device)
    if made.device.type == "cpu":
        return made.set_state(_cpu_state(seed, round, stream))
    return made.manual_seed(stream_key(seed, round, stream))


@contextmanager
def layer_draws(seed: int, round: int, stream: int | str, device: torch.device) -> Iterator[None]:
    """Layers such as dropout draw from torch's one global generator: key it, alone, and leave it as it was.

    Runs side by side wait for each other here, so that none draws from another's stream.
    """
    with _GLOBAL, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.random.set_rng_state(_cpu_state(seed, round, stream))
        if device.type == "cuda":
            torch.cuda.manual_seed(stream_key(seed, round, stream))
        yield


def numpy_generator(seed: int, round: int, stream: int | str) -> np.random.Generator:
    """The same for numpy, with all 128 bits of Philox's key."""
    key = hashlib.blake2b(_name(seed, round, stream), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))


def _name(seed: int, round: int, stream: int | str) -> bytes:
    return f"{seed}/{round}/{stream}".encode()


def _cpu_state(seed: int, round: int, stream: int | str) -> Tensor:
    """A Mersenne Twister just about to twist, all of its words hashed; torch keeps each of 32 bits in 64."""
    words = np.frombuffer(hashlib.shake_256(_name(seed, round, stream)).digest(4 * _WORDS), dtype="<u4")
    state = _FRESH + words.astype("<u8").tobytes() + _NO_NORMALS
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


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
    counter = _span(epochs, clients)[:, None] * MULTIPLIERS[0] + _span(largest, clients)
    order = mixed((clients[:, None, None] * GOLDEN + counter + salt) * GOLDEN)
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
