"""How many stages of a kernel's loop fit into a multiprocessor's shared memory: what is loaded ahead lies there."""

from __future__ import annotations

from typing import Any

import torch

OF_AN_H200 = 227 * 1024
"""Bytes; also where Triton interprets, so that the same kernels are tested there."""

KEPT = 2 * 1024
"""Besides the stages, for what programs exchange."""


def shared_memory(device: torch.device) -> int:
    """Return the bytes that one program may have."""
    if device.type != "cuda":
        return OF_AN_H200
    properties: Any = torch.cuda.get_device_properties(device)  # torch's types leave this one out
    return int(properties.shared_memory_per_block_optin)


def stages_that_fit(device: torch.device, wanted: int, each: int, once: int = 0) -> int:
    """Return how many stages of `each` bytes there may be, `wanted` at most, beside `once` bytes."""
    return max(1, min(wanted, (shared_memory(device) - KEPT - once) // each))
