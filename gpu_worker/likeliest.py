# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""The end of a greedy step as two Triton kernels: logits in any type are read once, and the token goes where it must.

logits of a row │ chunk │ chunk │ … │     each chunk's greatest logit and its id
                └───────┴───────┴───┴──►  the row's: token, status, and the slot's last token
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from gpu_worker.pdl import launch_options
from gpu_worker.sampler import STATUS_BIT
from protocol.messages import RowStatus

CHUNK = 4096


@triton.jit
def _of_chunks(logits, greatest, token, vocabulary, chunks, chunk: tl.constexpr, pdl: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    if pdl:
        gdc_launch_dependents()
        gdc_wait()
    at = part * chunk + tl.arange(0, chunk)
    x = tl.load(logits + row.to(tl.int64) * vocabulary + at, mask=at < vocabulary, other=float("-inf")).to(tl.float32)
    x = tl.where(x != x, float("inf"), x)  # a NaN must be found, and no maximum finds it
    most, where = tl.max(x, 0, return_indices=True, return_indices_tie_break_left=True)
    tl.store(greatest + row * chunks + part, most)
    tl.store(token + row * chunks + part, part * chunk + where)


@triton.jit
def _of_rows(
    greatest, token, slots, last_token, sampled, chunks,
    width: tl.constexpr, good: tl.constexpr, bad: tl.constexpr, status_bit: tl.constexpr, pdl: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    if pdl:
        gdc_launch_dependents()
        gdc_wait()
    at = tl.arange(0, width)
    x = tl.load(greatest + row * chunks + at, mask=at < chunks, other=float("-inf"))
    most, where = tl.max(x, 0, return_indices=True, return_indices_tie_break_left=True)
    usable = (most > float("-inf")) & (most < float("inf"))
    found = tl.where(usable, tl.load(token + row * chunks + where), 0).to(tl.int64)
    tl.store(sampled + row, found | (tl.where(usable, good, bad).to(tl.int64) << status_bit))
    tl.store(last_token + tl.load(slots + row), found)


class Likeliest:
    """The kernels, with the memory between them, for at most `rows` rows."""

    def __init__(self, rows: int, vocabulary: int, device: torch.device) -> None:
        self._vocabulary, self._chunks = vocabulary, triton.cdiv(vocabulary, CHUNK)
        self._greatest = torch.empty(rows * self._chunks, dtype=torch.float32, device=device)
        self._token = torch.empty(rows * self._chunks, dtype=torch.int32, device=device)
        self._options = launch_options(device)

    def choose(self, logits: Tensor, slots: Tensor, last_token: Tensor, sampled: Tensor) -> None:
        """Choose as `sampler.greedy` does, into `last_token[slots]` and, `packed` with the status, into `sampled`.

        `logits`: [S, vocabulary], contiguous, of any float type; `slots`: int [S]; `sampled`: int64 [S].
        """
        _of_chunks[(len(logits), self._chunks)](
            logits, self._greatest, self._token, self._vocabulary, self._chunks, chunk=CHUNK, num_warps=4,
            **self._options,
        )  # fmt: skip
        _of_rows[(len(logits),)](
            self._greatest, self._token, slots, last_token, sampled, self._chunks,
            width=triton.next_power_of_2(self._chunks), good=int(RowStatus.OK), bad=int(RowStatus.NAN),
            status_bit=STATUS_BIT, num_warps=1, **self._options,
        )  # fmt: skip
