"""Programmatic dependent launch: a kernel starts while the one before it still runs.

It loads what no kernel writes (weights), and then waits for the other with `gdc_wait`. A kernel that may be launched so
must wait before it touches anything else, and must not leave without having waited: what waits for it then knows that
everything before it is over, too.

    without   ├─ kernel ─┤  ├─ launch, load W, … ─┤
    with      ├─ kernel ─┤
                ├ load W ┊ … ─┤                        ┊ gdc_wait
"""

from __future__ import annotations

from typing import Any

import torch


def supports_pdl(device: torch.device) -> bool:
    """Return whether a device has it: compute capability 9.0 and later. Triton's interpreter has not."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def launch_options(device: torch.device) -> dict[str, Any]:
    """Return what a launch of a Triton kernel with a constant `pdl` is given so that it starts early where it can."""
    return {"pdl": True, "launch_pdl": True} if supports_pdl(device) else {"pdl": False}
