# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""How much top-k and top-p keep of each row, as three Triton kernels, and no sorting.

Both keep a prefix of the tokens in falling order (`truncation`), so what is wanted is its last value, and how many of
those that equal it are kept. It is searched for among the greatest values, a few thousand, which lie side by side:

    spread   for each chunk of a row   how many of its values have each exponent, and what all of it weighs
    gather   for each chunk            its share of the greatest values: those of exponents that fit as a whole
    cut      for each row              the last value; among all of its values if it is not among the greatest

The search is by how many tokens are above a value, or how much they weigh; three values are tried in each pass, so two
bits of it are known after each. Weights are integers: sums are exact in whatever order.

    bits of exp((logit - greatest) / temperature)    0 ├────┬────┬────┬────┤ 1.0
                                                       lo   t    t    t    hi      which quarter has the last value?
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_worker.sampler import LOWER_HALF, STATUS_BIT, Settings
from protocol.messages import RowStatus

GREATEST = 4096
"""So many values of a row at most lie side by side."""

BITS_OF_ONE = 0x3F800000
"""Of 1.0 in float32; as integers, floats from 0 on are in order."""

EXPONENT_BIT = 23

BINS = 32
"""Values are counted by their exponents, from that of 1.0 down to 2⁻³⁰; all smaller ones are the first bin's."""

ALL_KEPT = -1
"""Instead of the last value of a row that neither top-k nor top-p cuts."""

_BITS_OF_ONE, _LOWER_HALF, _STATUS_BIT = (tl.constexpr(value) for value in (BITS_OF_ONE, LOWER_HALF, STATUS_BIT))
_EXPONENT_BIT, _BINS, _ALL_KEPT = (tl.constexpr(value) for value in (EXPONENT_BIT, BINS, ALL_KEPT))
_BELOW_BINS = tl.constexpr((BITS_OF_ONE >> EXPONENT_BIT) - BINS + 1)
_OK = tl.constexpr(int(RowStatus.OK))


@triton.jit
def relative(logits, at, vocabulary, greatest, heat, divisor):
    """Return probabilities relative to the greatest one's, float32, and 0 beyond the vocabulary."""
    x = tl.load(logits + at, mask=at < vocabulary, other=float("-inf")).to(tl.float32) / divisor
    return tl.exp((x - greatest) / heat)


@triton.jit
def weight(relative):
    """As `truncation.as_weights`."""
    return (relative * 1099511627776.0).to(tl.int64)  # 2⁴⁰


@triton.jit
def of_row(row, logits, slots, temperature, sampled, vocabulary, divisor):
    """Return whether a row is drawn, its slot, its logits, the greatest of them, and its temperature."""
    likeliest, slot = tl.load(sampled + row), tl.load(slots + row)
    heat = tl.load(temperature + slot)
    logits += row.to(tl.int64) * vocabulary
    greatest = tl.load(logits + (likeliest & _LOWER_HALF)).to(tl.float32) / divisor
    return (heat > 0) & ((likeliest >> _STATUS_BIT) == _OK), slot, logits, greatest, heat


@triton.jit
def _limits(slot, top_k, top_p, vocabulary):
    """Return top-k and top-p of a slot; the vocabulary and 1 or more are off."""
    k = tl.load(top_k + slot)
    return tl.where((k > 0) & (k < vocabulary), k, vocabulary), tl.load(top_p + slot)


@triton.jit
def _bin(bits):
    return tl.maximum((bits >> _EXPONENT_BIT) - _BELOW_BINS, 0)


@triton.jit
def _spread(
    logits, slots, temperature, top_k, top_p, sampled, counts_of, whole_of, vocabulary, divisor, chunks,
    step: tl.constexpr,
):  # fmt: skip
    row, chunk = tl.program_id(0), tl.program_id(1)
    drawn, slot, own, greatest, heat = of_row(row, logits, slots, temperature, sampled, vocabulary, divisor)
    k, p = _limits(slot, top_k, top_p, vocabulary)
    if drawn & ((k < vocabulary) | (p < 1)):
        at = chunk * step + tl.arange(0, step)
        value = relative(own, at, vocabulary, greatest, heat, divisor)
        counts = tl.histogram(_bin(value.to(tl.int32, bitcast=True)), _BINS, mask=at < vocabulary)
        place = row * chunks + chunk
        tl.store(counts_of + place * _BINS + tl.arange(0, _BINS), counts)
        tl.store(whole_of + place, tl.sum(weight(value), 0))


@triton.jit
def _gather(
    logits, slots, temperature, top_k, top_p, sampled, counts_of, gathered, held_of, floor_of, vocabulary, divisor,
    chunks, most: tl.constexpr, width: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    row, chunk = tl.program_id(0), tl.program_id(1)
    drawn, slot, own, greatest, heat = of_row(row, logits, slots, temperature, sampled, vocabulary, divisor)
    k, p = _limits(slot, top_k, top_p, vocabulary)
    if drawn & ((k < vocabulary) | (p < 1)):
        each, bins = tl.arange(0, width)[:, None], tl.arange(0, _BINS)
        counts = tl.load(counts_of + (row * chunks + each) * _BINS + bins[None, :], mask=each < chunks, other=0)
        above = tl.cumsum(tl.sum(counts, 0), 0, reverse=True)
        lowest = tl.min(tl.where(above <= most, bins, _BINS), 0)  # all values of these bins fit
        high = bins[None, :] >= lowest
        start = tl.sum(tl.sum(tl.where(high & (each < chunk), counts, 0), 1), 0)
        at = chunk * step + tl.arange(0, step)
        bits = relative(own, at, vocabulary, greatest, heat, divisor).to(tl.int32, bitcast=True)
        taken = (_bin(bits) >= lowest) & (at < vocabulary)
        tl.store(gathered + row * most + start + tl.cumsum(taken.to(tl.int32), 0) - 1, bits, mask=taken)
        if chunk == 0:
            tl.store(held_of + row, tl.sum(tl.sum(tl.where(high, counts, 0), 1), 0))
            tl.store(floor_of + row, tl.where(lowest > 0, (lowest + _BELOW_BINS) << _EXPONENT_BIT, 0))


@triton.jit
def _above(
    values, count, greatest, heat, divisor, first, second, third, weighed: tl.constexpr, side_by_side: tl.constexpr,
    step: tl.constexpr,
):  # fmt: skip
    """Return how many values are above each of three (by their bits), or if `weighed` how much they weigh.

    `values`: `count` logits, or if `side_by_side` the bits of what was gathered.
    """
    a = tl.zeros([step], tl.int64)
    b = tl.zeros([step], tl.int64)
    c = tl.zeros([step], tl.int64)
    for start in range(0, count, step):
        at = start + tl.arange(0, step)
        if side_by_side:
            bits = tl.load(values + at, mask=at < count, other=0)
            value = bits.to(tl.float32, bitcast=True)
        else:
            value = relative(values, at, count, greatest, heat, divisor)
            bits = value.to(tl.int32, bitcast=True)
        each = tl.full([step], 1, tl.int64)
        if weighed:
            each = weight(value)
        a += tl.where(bits > first, each, 0)
        b += tl.where(bits > second, each, 0)
        c += tl.where(bits > third, each, 0)
    return tl.sum(a, 0), tl.sum(b, 0), tl.sum(c, 0)


@triton.jit
def _last_value(
    values, count, greatest, heat, divisor, wanted, low, weighed: tl.constexpr, side_by_side: tl.constexpr,
    step: tl.constexpr,
):  # fmt: skip
    """Return the bits of the smallest value, from `low` on, above which there is less than `wanted`."""
    high = tl.full([], _BITS_OF_ONE, tl.int32)
    while low < high:
        quarter = (high - low) // 4
        first, second, third = low + quarter, low + (high - low) // 2, high - 1 - quarter
        a, b, c = _above(
            values, count, greatest, heat, divisor, first, second, third, weighed, side_by_side, step
        )  # fmt: skip
        in_first = a.to(tl.float64) < wanted
        in_second = b.to(tl.float64) < wanted
        in_third = c.to(tl.float64) < wanted
        lower = tl.where(in_first, low, tl.where(in_second, first + 1, tl.where(in_third, second + 1, third + 1)))
        high = tl.where(in_first, first, tl.where(in_second, second, tl.where(in_third, third, high)))
        low = lower
    return low


@triton.jit
def _prefix(
    values, count, greatest, heat, divisor, low, k, p, whole, vocabulary, side_by_side: tl.constexpr,
    step: tl.constexpr,
):  # fmt: skip
    """Return the last value that is kept, and how many of its equals are; all of the prefix is among `values`."""
    last = low
    equals = tl.full([], 0, tl.int64)
    total = whole
    if k < vocabulary:
        last = _last_value(
            values, count, greatest, heat, divisor, k.to(tl.float64), low, False, side_by_side, step
        )  # fmt: skip
        above, _, _ = _above(values, count, greatest, heat, divisor, last, last, last, False, side_by_side, step)
        mass, _, _ = _above(values, count, greatest, heat, divisor, last, last, last, True, side_by_side, step)
        equals = k - above
        total = mass + equals * weight(last.to(tl.float32, bitcast=True))
    if p < 1:
        wanted = p * total.to(tl.float64)
        last = _last_value(values, count, greatest, heat, divisor, wanted, low, True, side_by_side, step)
        above, _, _ = _above(values, count, greatest, heat, divisor, last, last, last, False, side_by_side, step)
        mass, _, _ = _above(values, count, greatest, heat, divisor, last, last, last, True, side_by_side, step)
        each = weight(last.to(tl.float32, bitcast=True))
        # So many equals begin before the wanted mass is reached; one token is always kept.
        fit = tl.ceil((wanted - mass.to(tl.float64)) / tl.maximum(each, 1).to(tl.float64)).to(tl.int64)
        equals = tl.maximum(tl.minimum(k - above, fit), 1)
    return last, equals


@triton.jit
def _cut(
    logits, slots, temperature, top_k, top_p, sampled, gathered, held_of, floor_of, whole_of, last_of, equals_of,
    vocabulary, divisor, chunks, most: tl.constexpr, width: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    drawn, slot, own, greatest, heat = of_row(row, logits, slots, temperature, sampled, vocabulary, divisor)
    k, p = _limits(slot, top_k, top_p, vocabulary)
    last = tl.full([], _ALL_KEPT, tl.int32)
    equals = tl.full([], 0, tl.int64)
    if drawn & ((k < vocabulary) | (p < 1)):
        chunk = tl.arange(0, width)
        whole = tl.sum(tl.load(whole_of + row * chunks + chunk, mask=chunk < chunks, other=0), 0)
        held, low, found = tl.load(held_of + row), tl.load(floor_of + row), gathered + row * most
        is_there = held >= k
        if k == vocabulary:
            at = tl.arange(0, most)
            bits = tl.load(found + at, mask=at < held, other=0)
            mass = tl.sum(weight(bits.to(tl.float32, bitcast=True)), 0)
            is_there = (held > 0) & (mass.to(tl.float64) >= p * whole.to(tl.float64))
        if is_there:
            last, equals = _prefix(found, held, greatest, heat, divisor, low, k, p, whole, vocabulary, True, most)
        else:
            none = tl.full([], 0, tl.int32)
            last, equals = _prefix(own, vocabulary, greatest, heat, divisor, none, k, p, whole, vocabulary, False, step)
    tl.store(last_of + row, last)
    tl.store(equals_of + row, equals)


class KeptPrefix:
    """The kernels, with the memory between them, for at most `rows` rows."""

    def __init__(self, rows: int, vocabulary: int, chunk: int, device: torch.device) -> None:
        """`chunk`: so many logits of a row are a program's."""
        self._chunk, self._chunks = chunk, triton.cdiv(vocabulary, chunk)

        def new(size: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(size, dtype=dtype, device=device)

        self._counts = new(rows * self._chunks * BINS, torch.int32)
        self._whole = new(rows * self._chunks, torch.int64)
        self._gathered, self._held = new(rows * GREATEST, torch.int32), new(rows, torch.int32)
        self._floor = new(rows, torch.int32)
        self.last = new(rows, torch.int32)  # the bits of the last value that a row keeps, or `ALL_KEPT`
        self.equals = new(rows, torch.int64)  # how many of those that equal it are kept, the lower ids first

    def find(self, logits: Tensor, slots: Tensor, settings: Settings, sampled: Tensor, divisor: float) -> None:
        """Find `last` and `equals` of each row of `Drawing.draw`'s arguments; of rows that are not drawn, anything."""
        rows, vocabulary = logits.shape
        width = triton.next_power_of_2(self._chunks)
        row = logits, slots, settings.temperature, settings.top_k, settings.top_p, sampled
        _spread[(rows, self._chunks)](
            *row, self._counts, self._whole, vocabulary, divisor, self._chunks, step=self._chunk, num_warps=16
        )
        _gather[(rows, self._chunks)](
            *row, self._counts, self._gathered, self._held, self._floor, vocabulary, divisor, self._chunks,
            most=GREATEST, width=width, step=self._chunk, num_warps=16,
        )  # fmt: skip
        _cut[(rows,)](
            *row, self._gathered, self._held, self._floor, self._whole, self.last, self.equals, vocabulary, divisor,
            self._chunks, most=GREATEST, width=width, step=self._chunk, num_warps=16,
        )  # fmt: skip
