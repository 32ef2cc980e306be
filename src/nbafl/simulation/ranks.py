"""Several processes, one run: ranks of torch.distributed, started by torchrun.

Every rank holds the same broadcast and makes the same draws, because each is a function of (seed, round, stream). Only
the training of a round's participants is dealt out. On CPUs a lane (see `cores`) is worked on by one rank, sums of lanes
are gathered, and every rank adds them up along the same tree: the result is the same bit for bit whatever the number of
ranks. On GPUs every rank trains its share of the participants and one all-reduce adds the shares: the same up to rounding.
Rank 0 alone writes. On one process everything here is a no-op.
"""

from __future__ import annotations

import atexit
import mmap
import os
import pickle
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from nbafl.errors import NbaflError, UsageError
from nbafl.simulation.parcel import ALIGNED, Parcel, opened

Result = TypeVar("Result")

PATIENCE = timedelta(minutes=10)
"""How long a rank waits for the others before it gives them up for dead."""
SMALL = 4096
"""Bytes of a parcel that travel together with its length."""


class RankLost(NbaflError):
    """Another rank ended; what was finished is on disk."""

    def __init__(self) -> None:
        super().__init__(
            "another rank of this run ended, so the run stops here; the rounds before are kept: go on with --resume."
        )


def begin() -> None:
    """Join the other ranks, if torchrun started this process; gloo carries CPU tensors, nccl those of GPUs."""
    if "WORLD_SIZE" not in os.environ or dist.is_initialized():
        return
    signal.signal(signal.SIGTERM, _told_to_end)
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank())
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=PATIENCE
        )
    except (RuntimeError, ValueError) as error:
        raise UsageError("RANK and WORLD_SIZE", _environment(), f"as torchrun sets them ({error})") from None
    atexit.register(_part)


def _part() -> None:
    """Leave the group in good order: threads of gloo that outlive the interpreter abort the process."""
    if dist.is_initialized():
        dist.destroy_process_group()


def number() -> int:
    """This process's number; 0 writes."""
    return dist.get_rank() if dist.is_initialized() else 0


def count() -> int:
    """How many processes work on this run."""
    return dist.get_world_size() if dist.is_initialized() else 1


def local_rank() -> int:
    """This process's number among those of its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def gather(own: Result) -> list[Result]:
    """Every rank's result, in order of the ranks, on every rank."""
    return [own] if count() == 1 else [opened(content) for content in _exchange(Parcel(own))]


def add_up(tensor: Tensor) -> Tensor:
    """The sum of every rank's tensor, the same on every rank, in the memory of the given one."""
    if count() > 1:
        try:
            dist.all_reduce(tensor)
        except RuntimeError:
            raise _lost() from None
    return tensor


def agreed(value: Result) -> Result:
    """Rank 0's value, on every rank."""
    return value if count() == 1 else opened(_exchange(Parcel(value if number() == 0 else None))[0])


def wait() -> None:
    """Until every rank has come this far."""
    agreed(None)


def once_per_node(make: Callable[[], Result]) -> Result:
    """make() on one rank of every machine; the others map its arrays from a file instead of holding their own."""
    if count() == 1:
        return make()
    folder = Path(tempfile.mkdtemp(prefix="nbafl-data-")) if local_rank() == 0 else None
    made = None
    if folder is not None:
        made = make()
        _spill(made, folder)
    told = gather((socket.gethostname(), folder))
    if folder is None:
        made = _mapped(next(place for host, place in told if host == socket.gethostname() and place))
    wait()
    if folder is not None:
        shutil.rmtree(folder)  # mapped files stay readable until the last rank lets go of them
    return made  # type: ignore[return-value]


def _spill(thing: Any, folder: Path) -> None:
    """Pickle with every large array in a file of its own (pickle's out-of-band buffers)."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(thing, protocol=5, buffer_callback=buffers.append)
    for number, buffer in enumerate(buffers):
        (folder / f"{number}.bin").write_bytes(buffer.raw())
    (folder / "head.pickle").write_bytes(head)


def _mapped(folder: Path) -> Any:
    paths = sorted(folder.glob("*.bin"), key=lambda path: int(path.stem))
    return pickle.loads((folder / "head.pickle").read_bytes(), buffers=[_mapping(path) for path in paths])


def _mapping(path: Path) -> Any:
    """The file as memory that all ranks share; a private copy only of what somebody writes to."""
    if path.stat().st_size == 0:
        return bytearray()
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def _exchange(own: Parcel) -> list[Tensor]:
    """Every rank's parcel as bytes, on every rank: small ones travel with their lengths, large ones after them."""
    first = torch.zeros(ALIGNED + SMALL, dtype=torch.uint8)
    first[:ALIGNED].view(torch.int64)[0] = own.length
    if own.length <= SMALL:
        own.write(first[ALIGNED:])
    received = first.new_empty(count(), len(first))
    try:
        dist.all_gather_into_tensor(received.view(-1), first)
        lengths = received[:, :8].contiguous().view(torch.int64).flatten().tolist()
        return [row[ALIGNED:] for row in received] if max(lengths) <= SMALL else _sent(own, lengths)
    except RuntimeError:
        raise _lost() from None


def _sent(own: Parcel, lengths: list[int]) -> list[Tensor]:
    """Parcels of these lengths, each from its rank to all others."""
    parcels = [torch.empty(length, dtype=torch.uint8) for length in lengths]
    own.write(parcels[number()])
    others = [rank for rank in range(count()) if rank != number()]
    under_way = [dist.irecv(parcels[rank], rank) for rank in others]
    under_way += [dist.isend(parcels[number()], rank) for rank in others]
    for transfer in under_way:
        assert transfer is not None, "only a process outside the group gets nothing to wait for"
        transfer.wait()
    return parcels


def _told_to_end(*_: Any) -> NoReturn:
    """torchrun ends all ranks once one has failed."""
    raise _lost()


def _lost() -> RankLost:
    """The end of this rank, which nothing interrupts: torchrun also tells ranks to end that have noticed by themselves."""
    with suppress(ValueError):  # not the main thread, which alone hears signals
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return RankLost()


def _environment() -> str:
    return ", ".join(f"{name}={os.environ.get(name)}" for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))
