"""Top-k and top-p: both keep a prefix of the tokens ordered by falling probability, the lower id first among equals.

The prefix is found by its last token's value, and nothing is sorted. A non-negative float32 orders like its bits, and bits
can be searched in two rounds: a histogram over the upper half says in which bin the prefix ends, a second one over the
lower half of that bin says where. Counts (top-k) and masses (top-p) are integers, so the histograms are exact whatever the
order of their additions, and the work is the same for every row.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ONE = 2.0**40  # times 2²² tokens is still below 2⁶³
_HALF = 15  # bits; the bits of 1.0, the largest value, are fewer than 30
_LARGEST = 0x3F800000  # the bits of 1.0


def as_weights(relative: Tensor) -> Tensor:
    """Return probabilities relative to the likeliest token's (float32) as integers (int64), which add up exactly."""
    return relative.mul(_ONE).long()


def keep_likeliest(relative: Tensor, weights: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Return bool [n, vocabulary]: the tokens that top-k, and then top-p among those, leave.

    `relative` float32 [n, V]: probabilities relative to the likeliest token's; `weights` what `as_weights` makes of them.
    `top_k` int64 [n], ≤ 0 or ≥ V is off. `top_p` float64 [n], ≥ 1 is off: the fewest tokens whose mass reaches that
    share, one at least. A row of NaN may give anything.
    """
    vocabulary = relative.shape[1]
    bits = relative.view(torch.int32).long().clamp_(0, _LARGEST)  # a NaN's bits may be anything: stay in the histogram
    count = torch.where(top_k > 0, top_k, vocabulary).clamp_(max=vocabulary)
    keep = _prefix(bits, torch.ones_like(bits), count)
    inside = weights * keep
    total = inside.sum(dim=-1)
    share = (top_p * total.double()).ceil().long().clamp_(min=1).minimum(total)
    return keep & (_prefix(bits, inside, share) | (top_p >= 1)[:, None])


def _prefix(bits: Tensor, amounts: Tensor, target: Tensor) -> Tensor:
    """Return bool [n, V]: the shortest prefix of the order whose amounts add up to `target` (int64 [n]) or more.

    Tokens of equal bits have equal amounts, apart from those with none at all, which the prefix may hold or not.
    """
    upper, lower = bits >> _HALF, bits & ((1 << _HALF) - 1)
    high, above = _last_bin(upper, amounts, target)
    in_bin = upper == high
    low, nearer = _last_bin(lower, amounts * in_bin, target - above)
    last = (high << _HALF) | low
    equal = bits == last
    each = (amounts * equal).amax(dim=-1, keepdim=True).clamp_(min=1)
    room = (target[:, None] - above[:, None] - nearer[:, None] + each - 1) // each
    return (bits > last) | (equal & ((equal & (amounts > 0)).cumsum(dim=-1) <= room))


def _last_bin(bins: Tensor, amounts: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return, per row, the highest bin down to which the amounts reach `target`, [n, 1], and what lies above it, [n]."""
    sums = torch.zeros((len(bins), 1 << _HALF), dtype=torch.int64, device=bins.device).scatter_add_(1, bins, amounts)
    downwards = sums.flip(1).cumsum(dim=1)
    place = torch.searchsorted(downwards, target[:, None]).clamp_(max=sums.shape[1] - 1)
    reached = downwards.gather(1, place)
    high = sums.shape[1] - 1 - place
    return high, (reached - sums.gather(1, high))[:, 0]
