"""Matrix products with weights laid out once, at the start, for the device that computes with them.

On a CPU oneDNN multiplies bfloat16 and float16 by a blocked copy of the weights. Given plain ones it makes that copy
anew in every call, which costs as much as the product itself for a handful of rows. In float32 plain weights are as
fast, and faster for a single row, so they stay as they are; so they do on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Projection = Callable[[Tensor], Tensor]
"""x [rows, in] ↦ x·Wᵀ + b [rows, out]."""

_ROWS = 32
"""For how many rows the copy is laid out; it serves any number, and little changes with this one."""


def projection(weight: Tensor, bias: Tensor | None = None, *, keep: bool = False) -> Projection:
    """Return the product with `weight` [out, in]; unless `keep`, a weight that is packed gives its memory back.

    A large model would not fit in memory twice.
    """
    if not _gains_by_packing(weight):
        return lambda x: F.linear(x, weight, bias)
    # What torch.compile uses on a CPU; torch offers it under no public name.
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
    if not keep:
        weight.untyped_storage().resize_(0)
    multiply = torch.ops.mkldnn._linear_pointwise
    return lambda x: multiply(x, packed, bias, "none", [], "")


def _gains_by_packing(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float16 and bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
