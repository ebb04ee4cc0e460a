"""How fast a device reads its memory: below that time no step can be that reads as much."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from bench.device_time import fastest
from gpu_worker.device import Device
from gpu_worker.free_memory import free_memory

MEBI = 2**20

PART_OF_FREE_MEMORY = 4
"""The tensor that is read, and the one that it is copied to, take a quarter each of what is free, at most."""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes a second; a copy reads and writes, and both count."""

    read: float
    copy: float

    @property
    def best(self) -> float:
        """The higher of the two: none of the ways of reading that were tried need be the fastest there is."""
        return max(self.read, self.copy)


def bandwidth(device: Device, size: int) -> Bandwidth:
    """Measure with a tensor of `size` bytes, which must be far more than the device's caches hold.

    On a GPU it is smaller where memory is short.
    """
    if device.torch_device.type == "cuda":
        room = free_memory(device.torch_device) // PART_OF_FREE_MEMORY
        size = min(size, max(1, room // MEBI) * MEBI)
    source = device.prepare(lambda: torch.ones(size // 4, dtype=torch.float32, device=device.torch_device))
    target = device.prepare(lambda: torch.zeros_like(source))
    read = max(source.nbytes / fastest(device, work) for work in _ways_to_read(source))
    return Bandwidth(read, 2 * source.nbytes / fastest(device, lambda: target.copy_(source)))


def _ways_to_read(source: torch.Tensor) -> list[Callable[[], object]]:
    ways: list[Callable[[], object]] = [source.sum, source.amax]
    if source.device.type == "cuda" and find_spec("triton") is not None:
        from bench.read_kernel import ways_to_sum

        ways += ways_to_sum(source)
    return ways
