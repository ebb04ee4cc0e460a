"""Before a foreign model serves: does it say over our paged cache what it says by itself?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from gpu_worker import foreign_attention
from gpu_worker.foreign_attention import UnlikeOursError
from gpu_worker.foreign_model import ForeignModel, ForeignShape, logits_of
from gpu_worker.kv_cache import KVCache

_WINDOW = 6
"""What every sliding window is during the check: a prompt of a few tokens would not reach the end of a real one."""

_STEPS = (((0, 13),), ((0, 27), (1, 17)), ((0, 1), (1, 1)), ((1, 1), (0, 1)))
"""Rows of (request, tokens): a chunk, another one beside a whole prompt, decoding in both orders."""

_BLOCK = 4
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.05}
"""How far logits may be apart, as a share of their spread: rounding is far below it, another computation far above."""

_QUANTILE = {torch.float32: 0.9, torch.bfloat16: 0.5, torch.float16: 0.5}
"""Which of a row's tokens, by how far they are off, counts: rounding sends some to other experts, in 16 bits many."""

_NOISES = 4
"""How many times what one more rounding of all keys and values does to the logits, where that is more."""

_Rows = list[tuple[int, int, Tensor]]
"""Request, first position and logits of each row."""


@torch.inference_mode()
def check_answers(model: PreTrainedModel, shape: ForeignShape, dtype: torch.dtype) -> None:
    """Compare logits of two random prompts: transformers' own attention at once, ours in chunks side by side.

    Raises `UnlikeOursError` if they differ by more than rounding. In bfloat16 that may be much: where a rounded bit
    sends a token to another expert, and that again in each layer, as with random weights.
    """
    requests = 1 + max(request for step in _STEPS for request, _ in step)
    lengths = [sum(n for step in _STEPS for request, n in step if request == which) for which in range(requests)]
    dice = torch.Generator().manual_seed(0)
    prompts = [torch.randint(model.config.vocab_size, (n,), generator=dice).to(model.device) for n in lengths]
    with _short_windows(model):
        short = replace(shape, layer_windows=tuple(window and _WINDOW for window in shape.layer_windows))
        paged = ForeignModel(model, short, short.attention(_BLOCK, dtype))
        ours = _in_steps(paged, prompts, dtype, KVCache)
        distance = _distance(ours, _at_once(model, prompts), _QUANTILE[dtype])
        if distance <= _TOLERANCE[dtype]:
            return
        noise = _distance(_in_steps(paged, prompts, dtype, _RoundingCache), ours, _QUANTILE[dtype])
    if not distance <= _NOISES * noise:
        raise UnlikeOursError(f"over a paged cache its logits are off by {distance:.0%} of their spread")


class _RoundingCache(KVCache):
    """A cache in which all is off by up to a unit of its last place, by the same in every run."""

    def write(self, layer: int, k: Tensor, v: Tensor, where: Tensor) -> None:
        """As `KVCache.write`."""
        dice = torch.Generator(device=k.device).manual_seed(layer)
        off = torch.finfo(k.dtype).eps * (torch.rand(k.shape, generator=dice, device=k.device) * 2 - 1)
        super().write(layer, (k * (1 + off)).to(k.dtype), (v * (1 - off)).to(v.dtype), where)


def _at_once(model: PreTrainedModel, prompts: list[Tensor]) -> _Rows:
    """Run each prompt by itself through transformers' own attention."""
    rows: _Rows = []
    model.set_attn_implementation("eager")
    try:
        for request, prompt in enumerate(prompts):
            every = torch.arange(len(prompt), device=prompt.device)
            rows.append((request, 0, logits_of(model, prompt, every, every)))
    finally:
        model.set_attn_implementation(foreign_attention.NAME)
    return rows


def _distance(rows: _Rows, expected: _Rows, quantile: float) -> float:
    """Return how far the worst of `rows` is from the same tokens in `expected`, relative to the spread of their logits.

    A row counts by the token at `quantile` of how far each is off. NaN if anything is.
    """
    right = {(request, start + i): logits[i] for request, start, logits in expected for i in range(len(logits))}
    distances = []
    for request, start, logits in rows:
        same = torch.stack([right[request, start + i] for i in range(len(logits))])
        spread = (same - same.mean(dim=-1, keepdim=True)).norm(dim=-1)
        distances.append(((logits - same).norm(dim=-1) / spread).quantile(quantile))
    return float(torch.stack(distances).max())


def _in_steps(model: ForeignModel, prompts: list[Tensor], dtype: torch.dtype, kind: type[KVCache]) -> _Rows:
    """Run `_STEPS` over a cache in which nothing but NaN lies beside what they write."""
    device = prompts[0].device
    each = -(-max(map(len, prompts)) // _BLOCK)
    cache = kind.allocate(model.shape, each * len(prompts) + 1, _BLOCK, dtype, device, fill=float("nan"))
    order = torch.randperm(each * len(prompts), generator=torch.Generator().manual_seed(0)) + 1
    tables = order.to(torch.int32).view(len(prompts), each).to(device)
    done = np.zeros(len(prompts), np.int32)
    rows: _Rows = []
    for step in _STEPS:
        requests, count = [request for request, _ in step], np.array([n for _, n in step], np.int32)
        first = done[requests]
        tokens = torch.cat([prompts[r][p : p + n] for r, p, n in zip(requests, first, count, strict=True)])
        positions = torch.cat([torch.arange(p, p + n, device=device) for p, n in zip(first, count, strict=True)])
        prepared = model.attention.prepare(tables[requests], first, count)
        logits = model.forward(tokens, positions, torch.arange(len(tokens), device=device), prepared, cache)
        rows += zip(requests, first.tolist(), logits.split(count.tolist()), strict=True)
        done[requests] += count
    return rows


@contextmanager
def _short_windows(model: PreTrainedModel) -> Iterator[None]:
    """Let every sliding window of `model` be `_WINDOW`, in its layers and in the configurations that masks go by."""
    configs = {id(module.config): module.config for module in model.modules() if isinstance(module, PreTrainedModel)}
    changed: list[tuple[Any, int]] = []
    holder: Any
    for holder in chain(configs.values(), model.modules()):
        window = getattr(holder, "sliding_window", None)
        if isinstance(window, int) and not isinstance(window, bool):
            changed.append((holder, window))
            holder.sliding_window = _WINDOW
    try:
        yield
    finally:
        for holder, window in changed:
            holder.sliding_window = window
