"""How fast a device multiplies matrices: prompts are matrix products nearly throughout."""

from __future__ import annotations

import torch

from bench.device_time import fastest
from gpu_worker.device import Device


def matrix_rate(device: Device, size: int, dtype: torch.dtype) -> float:
    """Return the operations a second of a product of two square matrices, [size, size] of random numbers, at best.

    A sum of products counts as two operations for each of its terms.
    """

    def new() -> torch.Tensor:
        return torch.randn(size, size, dtype=dtype, device=device.torch_device)

    left, right, out = (device.prepare(new) for _ in range(3))
    return 2 * size**3 / fastest(device, lambda: torch.matmul(left, right, out=out))
