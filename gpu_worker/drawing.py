# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Sampling at a temperature as Triton kernels: what `Sampler` does, and no sorting.

    kept prefix   what top-k and top-p keep of each row, if there is a row that has them (`kept_prefix`)
    weigh         for each chunk of a row    how much is kept there
    pick          for each row               the chunk in which the draw falls, and the token in it

Weights are integers: sums are exact in whatever order, and a row's draw is the same in any batch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_worker.kept_prefix import ALL_KEPT, KeptPrefix, of_row, relative, weight
from gpu_worker.sampler import STATUS_BIT, Settings
from gpu_worker.uniform import FIRST, GAMMA, SECOND

AT_A_TIME = 8192

_GAMMA, _FIRST, _SECOND = (tl.constexpr(value & (2**64 - 1)) for value in (GAMMA, FIRST, SECOND))
_STATUS_BIT, _ALL_KEPT = tl.constexpr(STATUS_BIT), tl.constexpr(ALL_KEPT)


@triton.jit
def _mix(x):
    x = (x ^ (x >> 30)) * _FIRST
    x = (x ^ (x >> 27)) * _SECOND
    return x ^ (x >> 31)


@triton.jit
def _uniform(seed, position):
    """As `uniform.uniform`."""
    bits = _mix(_mix(seed.to(tl.uint64) + _GAMMA) + (position + 1).to(tl.uint64) * _GAMMA)
    return (bits >> 11).to(tl.float64) * 1.1102230246251565e-16  # 2⁻⁵³


@triton.jit
def _weigh(
    logits, slots, temperature, min_p, sampled, last_of, mass_of, same_of, vocabulary, divisor, chunks,
    cut: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    row, chunk = tl.program_id(0), tl.program_id(1)
    drawn, slot, own, greatest, heat = of_row(row, logits, slots, temperature, sampled, vocabulary, divisor)
    if drawn:
        least = tl.load(min_p + slot)
        value = relative(own, chunk * step + tl.arange(0, step), vocabulary, greatest, heat, divisor)
        kept = value >= least
        if cut:
            bits, last = value.to(tl.int32, bitcast=True), tl.load(last_of + row)
            kept = kept & (bits > last)
            tl.store(same_of + row * chunks + chunk, tl.sum((bits == last).to(tl.int64), 0))
        tl.store(mass_of + row * chunks + chunk, tl.sum(tl.where(kept, weight(value), 0), 0))


@triton.jit
def _pick(
    logits, slots, positions, temperature, min_p, seed, sampled, last_token, last_of, equals_of, mass_of, same_of,
    vocabulary, divisor, chunks, cut: tl.constexpr, width: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    drawn, slot, own, greatest, heat = of_row(row, logits, slots, temperature, sampled, vocabulary, divisor)
    if drawn:
        least = tl.load(min_p + slot)
        chunk = tl.arange(0, width)
        mass = tl.load(mass_of + row * chunks + chunk, mask=chunk < chunks, other=0)
        last = tl.full([], _ALL_KEPT, tl.int32)
        room = tl.zeros([], tl.int64)
        if cut:
            last, equals = tl.load(last_of + row), tl.load(equals_of + row)
            same = tl.load(same_of + row * chunks + chunk, mask=chunk < chunks, other=0)
            value = last.to(tl.float32, bitcast=True)
            each = tl.where((last >= 0) & (value >= least), weight(tl.where(last >= 0, value, 0.0)), 0)
            first_ones = tl.minimum(tl.cumsum(same, 0), equals)  # of the equals up to here that are kept
            of_chunk = first_ones - tl.minimum(tl.cumsum(same, 0) - same, equals)
            mass += of_chunk * each
        total = tl.sum(mass, 0)
        number = _uniform(tl.load(seed + slot), tl.load(positions + row).to(tl.int64))
        target = tl.minimum((number * total.to(tl.float64)).to(tl.int64), total - 1)
        reached = tl.cumsum(mass, 0)
        here = tl.min(tl.where(reached > target, chunk, width - 1), 0)
        before = tl.sum(tl.where(chunk < here, mass, 0), 0)
        at = here * step + tl.arange(0, step)
        values = relative(own, at, vocabulary, greatest, heat, divisor)
        keep = values >= least
        if cut:
            room = equals - tl.sum(tl.where(chunk < here, of_chunk, 0), 0)
            bits = values.to(tl.int32, bitcast=True)
            is_same = (bits == last).to(tl.int64)
            keep = keep & ((bits > last) | ((is_same > 0) & (tl.cumsum(is_same, 0) <= room)))
        kept = tl.where(keep, weight(values), 0)
        passed = before + tl.cumsum(kept, 0) > target
        token = tl.min(tl.where(passed, at, vocabulary - 1), 0).to(tl.int64)
        tl.store(sampled + row, token | (tl.load(sampled + row) >> _STATUS_BIT << _STATUS_BIT))
        tl.store(last_token + slot, token)


class Drawing:
    """The kernels, with the memory between them, for at most `rows` rows."""

    def __init__(self, rows: int, vocabulary: int, device: torch.device) -> None:
        self._chunks = triton.cdiv(vocabulary, AT_A_TIME)
        self._prefix = KeptPrefix(rows, vocabulary, AT_A_TIME, device)
        self._mass = torch.empty(rows * self._chunks, dtype=torch.int64, device=device)
        self._same = torch.empty_like(self._mass)

    def draw(
        self, logits: Tensor, slots: Tensor, positions: Tensor, settings: Settings, sampled: Tensor,
        last_token: Tensor, divisor: float, *, cut: bool,
    ) -> None:  # fmt: skip
        """Put tokens drawn as `settings` say into `sampled`, where the likeliest are, and into `last_token[slots]`.

        `logits`: [S, vocabulary] of any float type, which are meant divided by `divisor`; `slots`, `positions`: int32
        [S], the latter where the sampled tokens will stand; `sampled`: int64 [S], `packed`; `last_token`: int64
        [slots]. Rows at temperature 0 and rows with a status stay as they are. `cut`: a row may have top-k or top-p.
        """
        rows, vocabulary = logits.shape
        if cut:
            self._prefix.find(logits, slots, settings, sampled, divisor)
        heat, least, prefix = settings.temperature, settings.min_p, self._prefix
        _weigh[(rows, self._chunks)](
            logits, slots, heat, least, sampled, prefix.last, self._mass, self._same, vocabulary, divisor, self._chunks,
            cut=cut, step=AT_A_TIME, num_warps=16,
        )  # fmt: skip
        _pick[(rows,)](
            logits, slots, positions, heat, least, settings.seed, sampled, last_token, prefix.last, prefix.equals,
            self._mass, self._same, vocabulary, divisor, self._chunks,
            cut=cut, width=triton.next_power_of_2(self._chunks), step=AT_A_TIME, num_warps=16,
        )  # fmt: skip
