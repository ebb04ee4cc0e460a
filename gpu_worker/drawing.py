# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""Sampling at a temperature as three Triton kernels: what `Sampler` does, and no sorting.

    cut     a program for each row    the last value that top-k and top-p keep; rows that have neither pass
    weigh   and for each chunk of it  how much is kept there
    pick    for each row              the chunk in which the draw falls, and the token in it

Top-k and top-p keep a prefix of the tokens in falling order (`truncation`). Its last value is searched for by how many
tokens are above a value, or how much they weigh; three values are tried in each pass over the logits, so that two bits
of it are known after each. Weights are integers: sums are exact in whatever order, and a row's draw is the same in any
batch.

    bits of exp((logit - greatest) / temperature)    0 ├────┬────┬────┬────┤ 1.0
                                                       lo   t    t    t    hi      which quarter has the last value?
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_worker.sampler import LOWER_HALF, STATUS_BIT, Settings
from gpu_worker.uniform import FIRST, GAMMA, SECOND
from protocol.messages import RowStatus

AT_A_TIME = 8192
NOT_DRAWN = -2
"""Instead of the last value of a row that stays as it is; of one of which all is kept it is -1."""

BITS_OF_ONE = 0x3F800000
"""Of 1.0 in float32; as integers, floats from 0 on are in order."""

_GAMMA, _FIRST, _SECOND = (tl.constexpr(value & (2**64 - 1)) for value in (GAMMA, FIRST, SECOND))
_BITS_OF_ONE, _LOWER_HALF, _STATUS_BIT = (tl.constexpr(value) for value in (BITS_OF_ONE, LOWER_HALF, STATUS_BIT))
_OK = tl.constexpr(int(RowStatus.OK))


@triton.jit
def _relative(logits, at, vocabulary, greatest, heat, divisor):
    """Return probabilities relative to the greatest one's, float32, and 0 beyond the vocabulary."""
    x = tl.load(logits + at, mask=at < vocabulary, other=float("-inf")).to(tl.float32) / divisor
    return tl.exp((x - greatest) / heat)


@triton.jit
def _weight(relative):
    return (relative * 1099511627776.0).to(tl.int64)  # 2⁴⁰


@triton.jit
def _above(
    logits, vocabulary, greatest, heat, divisor, first, second, third, weighed: tl.constexpr, step: tl.constexpr
):
    """Return how many values are above each of three (by their bits), or if `weighed` how much they weigh."""
    a = tl.zeros([step], tl.int64)
    b = tl.zeros([step], tl.int64)
    c = tl.zeros([step], tl.int64)
    for start in range(0, vocabulary, step):
        relative = _relative(logits, start + tl.arange(0, step), vocabulary, greatest, heat, divisor)
        bits = relative.to(tl.int32, bitcast=True)
        each = tl.full([step], 1, tl.int64)
        if weighed:
            each = _weight(relative)
        a += tl.where(bits > first, each, 0)
        b += tl.where(bits > second, each, 0)
        c += tl.where(bits > third, each, 0)
    return tl.sum(a, 0), tl.sum(b, 0), tl.sum(c, 0)


@triton.jit
def _last_value(
    logits, vocabulary, greatest, heat, divisor, wanted, weighed: tl.constexpr, step: tl.constexpr
):  # fmt: skip
    """Return the bits of the smallest value above which there is less than `wanted`."""
    low = tl.full([], 0, tl.int32)
    high = tl.full([], _BITS_OF_ONE, tl.int32)
    while low < high:
        quarter = (high - low) // 4
        first, second, third = low + quarter, low + (high - low) // 2, high - 1 - quarter
        a, b, c = _above(logits, vocabulary, greatest, heat, divisor, first, second, third, weighed, step)
        in_first = a.to(tl.float64) < wanted
        in_second = b.to(tl.float64) < wanted
        in_third = c.to(tl.float64) < wanted
        lower = tl.where(in_first, low, tl.where(in_second, first + 1, tl.where(in_third, second + 1, third + 1)))
        high = tl.where(in_first, first, tl.where(in_second, second, tl.where(in_third, third, high)))
        low = lower
    return low


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
def _cut(
    logits, slots, temperature, top_k, top_p, sampled, greatest_of, last_of, equals_of, vocabulary, divisor,
    not_drawn: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    heat = tl.load(temperature + slot)
    likeliest = tl.load(sampled + row)
    # Kept are the values above `last`, and the first `equals` of those that equal it.
    last = tl.full([], not_drawn, tl.int32)
    equals = tl.full([], 0, tl.int64)
    if (heat > 0) & ((likeliest >> _STATUS_BIT) == _OK):
        last = tl.full([], -1, tl.int32)
        logits += row.to(tl.int64) * vocabulary
        greatest = tl.load(logits + (likeliest & _LOWER_HALF)).to(tl.float32) / divisor
        tl.store(greatest_of + row, greatest)
        k, p = tl.load(top_k + slot), tl.load(top_p + slot)
        k = tl.where((k > 0) & (k < vocabulary), k, vocabulary)
        if (k < vocabulary) | (p < 1):
            of_k = tl.full([], 0, tl.int32)
            if k < vocabulary:
                of_k = _last_value(logits, vocabulary, greatest, heat, divisor, k.to(tl.float64), False, step)
            above, _, _ = _above(logits, vocabulary, greatest, heat, divisor, of_k, of_k, of_k, False, step)
            mass, whole, _ = _above(logits, vocabulary, greatest, heat, divisor, of_k, -1, -1, True, step)
            last, equals = of_k, k - above
            if p < 1:
                total = whole
                if k < vocabulary:
                    total = mass + equals * _weight(of_k.to(tl.float32, bitcast=True))
                wanted = p * total.to(tl.float64)
                last = _last_value(logits, vocabulary, greatest, heat, divisor, wanted, True, step)
                above, _, _ = _above(logits, vocabulary, greatest, heat, divisor, last, last, last, False, step)
                mass, _, _ = _above(logits, vocabulary, greatest, heat, divisor, last, last, last, True, step)
                each = _weight(last.to(tl.float32, bitcast=True))
                # So many equals begin before the wanted mass is reached; one token is always kept.
                fit = tl.ceil((wanted - mass.to(tl.float64)) / tl.maximum(each, 1).to(tl.float64)).to(tl.int64)
                equals = tl.maximum(tl.minimum(k - above, fit), 1)
    tl.store(last_of + row, last)
    tl.store(equals_of + row, equals)


@triton.jit
def _weigh(
    logits, slots, temperature, min_p, greatest_of, last_of, mass_of, same_of, vocabulary, divisor, chunks,
    not_drawn: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    row, chunk = tl.program_id(0), tl.program_id(1)
    last = tl.load(last_of + row)
    if last != not_drawn:
        slot = tl.load(slots + row)
        heat, least, greatest = tl.load(temperature + slot), tl.load(min_p + slot), tl.load(greatest_of + row)
        logits += row.to(tl.int64) * vocabulary
        relative = _relative(logits, chunk * step + tl.arange(0, step), vocabulary, greatest, heat, divisor)
        bits = relative.to(tl.int32, bitcast=True)
        kept = tl.where((bits > last) & (relative >= least), _weight(relative), 0)
        tl.store(mass_of + row * chunks + chunk, tl.sum(kept, 0))
        tl.store(same_of + row * chunks + chunk, tl.sum((bits == last).to(tl.int64), 0))


@triton.jit
def _pick(
    logits, slots, positions, temperature, min_p, seed, sampled, last_token, greatest_of, last_of, equals_of, mass_of,
    same_of, vocabulary, divisor, chunks, width: tl.constexpr, not_drawn: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    last, equals = tl.load(last_of + row), tl.load(equals_of + row)
    if last != not_drawn:
        slot = tl.load(slots + row)
        heat, least, greatest = tl.load(temperature + slot), tl.load(min_p + slot), tl.load(greatest_of + row)
        chunk = tl.arange(0, width)
        same = tl.load(same_of + row * chunks + chunk, mask=chunk < chunks, other=0)
        value = last.to(tl.float32, bitcast=True)
        each = tl.where((last >= 0) & (value >= least), _weight(tl.where(last >= 0, value, 0.0)), 0)
        first_ones = tl.minimum(tl.cumsum(same, 0), equals)  # of the equals up to here that are kept
        own = first_ones - tl.minimum(tl.cumsum(same, 0) - same, equals)
        mass = tl.load(mass_of + row * chunks + chunk, mask=chunk < chunks, other=0) + own * each
        total = tl.sum(mass, 0)
        number = _uniform(tl.load(seed + slot), tl.load(positions + row).to(tl.int64))
        target = tl.minimum((number * total.to(tl.float64)).to(tl.int64), total - 1)
        reached = tl.cumsum(mass, 0)
        here = tl.min(tl.where(reached > target, chunk, width - 1), 0)
        before = tl.sum(tl.where(chunk < here, mass, 0), 0)
        room = equals - tl.sum(tl.where(chunk < here, own, 0), 0)
        at = here * step + tl.arange(0, step)
        relative = _relative(logits + row.to(tl.int64) * vocabulary, at, vocabulary, greatest, heat, divisor)
        bits = relative.to(tl.int32, bitcast=True)
        is_same = (bits == last).to(tl.int64)
        keep = (bits > last) | ((is_same > 0) & (tl.cumsum(is_same, 0) <= room))
        kept = tl.where(keep & (relative >= least), _weight(relative), 0)
        passed = before + tl.cumsum(kept, 0) > target
        token = tl.min(tl.where(passed, at, vocabulary - 1), 0).to(tl.int64)
        tl.store(sampled + row, token | (tl.load(sampled + row) >> _STATUS_BIT << _STATUS_BIT))
        tl.store(last_token + slot, token)


class Drawing:
    """The kernels, with the memory between them, for at most `rows` rows."""

    def __init__(self, rows: int, vocabulary: int, device: torch.device) -> None:
        self._chunks = triton.cdiv(vocabulary, AT_A_TIME)

        def new(size: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(size, dtype=dtype, device=device)

        self._greatest, self._last = new(rows, torch.float32), new(rows, torch.int32)
        self._equals = new(rows, torch.int64)
        self._mass, self._same = new(rows * self._chunks, torch.int64), new(rows * self._chunks, torch.int64)

    def draw(
        self, logits: Tensor, slots: Tensor, positions: Tensor, settings: Settings, sampled: Tensor,
        last_token: Tensor, divisor: float,
    ) -> None:  # fmt: skip
        """Put tokens drawn as `settings` say into `sampled`, where the likeliest are, and into `last_token[slots]`.

        `logits`: [S, vocabulary] of any float type, which are meant divided by `divisor`; `slots`, `positions`: int32
        [S], the latter where the sampled tokens will stand; `sampled`: int64 [S], `packed`; `last_token`: int64
        [slots]. Rows at temperature 0 and rows with a status stay as they are.
        """
        rows, vocabulary = logits.shape
        heat, least = settings.temperature, settings.min_p
        found = self._greatest, self._last
        _cut[(rows,)](
            logits, slots, heat, settings.top_k, settings.top_p, sampled, *found, self._equals, vocabulary, divisor,
            not_drawn=NOT_DRAWN, step=AT_A_TIME, num_warps=16,
        )  # fmt: skip
        _weigh[(rows, self._chunks)](
            logits, slots, heat, least, *found, self._mass, self._same, vocabulary, divisor, self._chunks,
            not_drawn=NOT_DRAWN, step=AT_A_TIME, num_warps=16,
        )  # fmt: skip
        _pick[(rows,)](
            logits, slots, positions, heat, least, settings.seed, sampled, last_token, *found, self._equals,
            self._mass, self._same, vocabulary, divisor, self._chunks,
            width=triton.next_power_of_2(self._chunks), not_drawn=NOT_DRAWN, step=AT_A_TIME, num_warps=16,
        )  # fmt: skip
