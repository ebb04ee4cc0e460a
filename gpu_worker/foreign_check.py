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
from gpu_worker.attention import TorchAttention
from gpu_worker.foreign_attention import UnlikeOursError
from gpu_worker.foreign_model import ForeignModel, ForeignShape, logits_of
from gpu_worker.kv_cache import KVCache

_WINDOW = 6
"""What every sliding window is during the check: a prompt of a few tokens would not reach the end of a real one."""

_STEPS = (((0, 13),), ((0, 27), (1, 17)), ((0, 1), (1, 1)), ((1, 1), (0, 1)))
"""Rows of (request, tokens): a chunk, another one beside a whole prompt, decoding in both orders."""

_BLOCK = 4
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.15}
"""How far logits may be apart, as a share of their spread: rounding is far below it, another computation far above."""


@torch.inference_mode()
def check_answers(model: PreTrainedModel, shape: ForeignShape, dtype: torch.dtype) -> float:
    """Compare logits of two random prompts: transformers' own attention at once, ours in chunks side by side.

    Returns the largest distance of a row's logits, relative to their spread; `UnlikeOursError` if it is not rounding.
    A median over each row's tokens is compared: a router may send one token elsewhere over a rounded bit.
    """
    requests = 1 + max(request for step in _STEPS for request, _ in step)
    lengths = [sum(n for step in _STEPS for request, n in step if request == which) for which in range(requests)]
    dice = torch.Generator().manual_seed(0)
    prompts = [torch.randint(model.config.vocab_size, (n,), generator=dice).to(model.device) for n in lengths]
    with _short_windows(model):
        short = replace(shape, layer_windows=tuple(window and _WINDOW for window in shape.layer_windows))
        ours = _in_steps(ForeignModel(model, short, TorchAttention(short, _BLOCK, dtype)), prompts, dtype)
        model.set_attn_implementation("eager")
        try:
            every = [torch.arange(n, device=model.device) for n in lengths]
            theirs = [logits_of(model, tokens, at, at) for tokens, at in zip(prompts, every, strict=True)]
        finally:
            model.set_attn_implementation(foreign_attention.NAME)
    worst = 0.0
    for request, start, logits in ours:
        expected = theirs[request][start : start + len(logits)]
        spread = (expected - expected.mean(dim=-1, keepdim=True)).norm(dim=-1)
        distance = float(((logits - expected).norm(dim=-1) / spread).median())
        worst = distance if not distance <= worst else worst  # NaN stays
    if not worst <= _TOLERANCE[dtype]:
        raise UnlikeOursError(f"over a paged cache its logits are off by {worst:.1%} of their spread")
    return worst


def _in_steps(model: ForeignModel, prompts: list[Tensor], dtype: torch.dtype) -> list[tuple[int, int, Tensor]]:
    """Run `_STEPS`; return each row's request, first position and logits."""
    device = prompts[0].device
    each = -(-max(map(len, prompts)) // _BLOCK)
    cache = KVCache.allocate(model.shape, each * len(prompts) + 1, _BLOCK, dtype, device, fill=float("nan"))
    order = torch.randperm(each * len(prompts), generator=torch.Generator().manual_seed(0)) + 1
    tables = order.to(torch.int32).view(len(prompts), each).to(device)
    done = np.zeros(len(prompts), np.int32)
    rows: list[tuple[int, int, Tensor]] = []
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
