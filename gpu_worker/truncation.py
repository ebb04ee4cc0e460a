"""Top-k and top-p: both keep a prefix of the tokens ordered by falling probability, the lower id first among equals.

So both come down to one number per row, how long the prefix is, and ids are never sorted: the prefix is everything
above the value of its last token, plus as many of its equals as still fit, in id order.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ONE = 2.0**40  # times 2²² tokens is still below 2⁶³

SELECTION = 1024
"""Prefixes up to this long are found by selecting that many tokens; beyond it the whole vocabulary is sorted."""


def as_weights(relative: Tensor) -> Tensor:
    """Return probabilities relative to the likeliest token's (float32) as integers (int64), which add up exactly."""
    return relative.mul(_ONE).long()


def keep_likeliest(relative: Tensor, weights: Tensor, depth: int, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Return bool [n, vocabulary]: the tokens that top-k, and then top-p among those, leave.

    `relative` float32 [n, V]: probabilities relative to the likeliest token's; `weights`: `as_weights` of them. `top_k`
    int64 [n], ≤ 0 or ≥ V is off. `top_p` float64 [n], ≥ 1 is off: the fewest tokens whose mass reaches that share, one
    at least. `depth` is at least as long as any prefix that can come out: the largest top_k, or V.
    """
    vocabulary = relative.shape[1]
    k = torch.where(top_k > 0, top_k, vocabulary).clamp_(max=vocabulary)[:, None]
    p = top_p[:, None]
    whole = weights.sum(dim=-1, keepdim=True)
    if depth > SELECTION and relative.device.type == "cpu":
        # Looking costs nothing here (on a GPU it would be a wait), and hardly any top_p reaches that deep.
        selected = as_weights(relative.topk(SELECTION).values).sum(dim=-1, keepdim=True)
        if bool(((k == vocabulary) & (selected.double() >= p * whole.double()) & (p < 1)).all()):
            depth = SELECTION
    ranked = relative.topk(depth).values if depth < vocabulary else relative.sort(dim=-1, descending=True).values
    weight = as_weights(ranked)
    mass = weight.cumsum(dim=-1)
    total = torch.where(k == vocabulary, whole, mass.gather(1, (k - 1).clamp(max=mass.shape[1] - 1)))
    place = torch.arange(mass.shape[1], device=mass.device)
    inside = (place < k) & (((mass - weight).double() < p * total.double()) | (p >= 1))
    length = inside.sum(dim=-1, keepdim=True).clamp_(min=1)
    last = ranked.gather(1, length - 1)
    above, equal = relative > last, relative == last
    room = length - above.sum(dim=-1, keepdim=True)
    return above | (equal & (equal.cumsum(dim=-1) <= room))
