"""How much of a round's work may be on a device at once."""

from __future__ import annotations

import torch

GPU_SHARE = 8


def chunk_bytes(device: torch.device, on_cpu: int) -> int:
    """What one chunk may fill: so many bytes on a CPU, an eighth of all memory on a GPU, which small chunks leave idle.

    Of all memory, not of what is free: chunks, and so results, are the same whoever else uses the GPU.
    """
    if device.type != "cuda":
        return on_cpu
    return int(torch.cuda.get_device_properties(device).total_memory) // GPU_SHARE
