"""How fast a device reads its memory: below that time no step can be that reads as much."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from gpu_worker.device import Device

TRIES = 20
"""The fastest counts: what a machine can do is asked, not what it does beside others."""

EVENT_SECONDS = 20e-6


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes a second; a copy reads and writes, and both count."""

    read: float
    copy: float

    @property
    def best(self) -> float:
        """The higher of the two: torch's way of reading need not be the fastest there is."""
        return max(self.read, self.copy)


def bandwidth(device: Device, size: int) -> Bandwidth:
    """Measure with a tensor of `size` bytes, which must be far more than the device's caches hold."""
    source = device.prepare(lambda: torch.ones(size // 4, dtype=torch.float32, device=device.torch_device))
    target = device.prepare(lambda: torch.zeros_like(source))
    reads: tuple[Callable[[], object], ...] = (source.sum, source.amax)
    read = max(source.nbytes / _fastest(device, work) for work in reads)
    return Bandwidth(read, 2 * source.nbytes / _fastest(device, lambda: target.copy_(source)))


def _fastest(device: Device, work: Callable[[], object]) -> float:
    """Return the seconds that `work` takes on the device at best."""
    times = []

    def once() -> None:
        work()

    for _ in range(TRIES):
        began = device.compute.record(timed=True)
        device.compute.run(once)
        ended = device.compute.record(timed=True)
        while not ended.done():
            time.sleep(EVENT_SECONDS)
        times.append(ended.seconds_since(began))
    return min(times)
