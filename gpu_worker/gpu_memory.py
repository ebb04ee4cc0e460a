"""What a GPU's memory is taken for before there is a KV cache: read off, and tried with the largest steps."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from checkpoint import CheckpointError, first_line
from gpu_worker.device import Device
from gpu_worker.free_memory import is_out_of_memory
from gpu_worker.kv_sizing import GPUMemory


@dataclass(frozen=True, slots=True)
class GPUReading:
    """Bytes of a GPU at one moment."""

    total: int
    free: int
    reserved: int  # by torch, for this process

    @property
    def past_torch(self) -> int:
        """Return what is neither free nor torch's: other programs', the driver's, libraries'."""
        return self.total - self.free - self.reserved


def read_gpu(device: torch.device) -> GPUReading:
    """Read off a GPU's memory now."""
    free, total = torch.cuda.mem_get_info(device)
    return GPUReading(total, free, torch.cuda.memory_reserved(device))


def gpu_memory(device: Device, before: GPUReading, largest_steps: Iterable[object], graphs: int) -> GPUMemory:
    """Return who has a GPU's memory, when the weights are loaded and there is no KV cache yet.

    `before` was read before the weights were loaded. `largest_steps` computes one of the largest steps whenever it is
    asked for the next; all that it has made is gone when it ends. `graphs` are the bytes that graphs will take. Raises
    `CheckpointError` if memory is too short even for these steps.
    """
    on = device.torch_device
    _give_back(device)
    weights = activations = torch.cuda.memory_reserved(on)
    try:
        for _ in largest_steps:
            device.settle()
            activations = max(activations, torch.cuda.max_memory_reserved(on))
            _give_back(device)  # what the next step needs is its own
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise CheckpointError(f"the largest step does not fit into memory ({first_line(error)})") from None
    gc.collect()
    _give_back(device)
    now = read_gpu(on)
    kernels = max(0, now.past_torch - before.past_torch)
    return GPUMemory(now.total, now.free, weights, activations - weights, graphs, kernels)


def _give_back(device: Device) -> None:
    """Let the GPU have what torch keeps and nobody uses, and forget the highest mark."""
    device.settle()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device.torch_device)
