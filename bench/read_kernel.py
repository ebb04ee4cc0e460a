# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Reading memory as fast as it goes, as a Triton kernel: each program sums a part that it loads in one go.

What a multiprocessor has asked for and not got yet must be as much as memory delivers during the time that an answer
takes: on a fast GPU tens of KB for each. So loads are wide, do not wait for each other, and many programs run at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

SHAPES = ((2048, 4), (4096, 4), (8192, 8), (16384, 8))
"""Elements that a program reads, and its warps. Which is fastest depends on the GPU."""


@triton.jit
def _sum_parts(source, sums, size, part: tl.constexpr):
    program = tl.program_id(0)
    place = program.to(tl.int64) * part + tl.arange(0, part)
    tl.store(sums + program, tl.sum(tl.load(source + place, mask=place < size, other=0.0), 0))


def sum_parts(source: Tensor, sums: Tensor, part: int, warps: int) -> None:
    """Write the sum of each `part` elements in a row of `source`, float32 [size], to `sums`, float32 [size / part]."""
    _sum_parts[(len(sums),)](source, sums, source.numel(), part=part, num_warps=warps)


def ways_to_sum(source: Tensor) -> list[Callable[[], None]]:
    """Return calls that read all of `source`, float32 [size] on a GPU, each in another shape."""
    return [
        partial(sum_parts, source, torch.empty(triton.cdiv(source.numel(), part), device=source.device), part, warps)
        for part, warps in SHAPES
    ]
