"""Kernels for transformers' continuous batching where flash-attn is missing: it is measured at its best, or not at all.

Prompts go through the FlashAttention-2 that is in torch, decode steps through our own kernel over pages, the same that
our worker has. transformers finds both where it would have put flash-attn's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int], Tensor]
"""As `PagedDecode.attend`."""

Append = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], None]
"""As `append_paged.append`."""

NAME = "flash_attention_2"


def kernels(
    config: Any, device: torch.device, rows: int, page_size: int
) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """Return what stands in for flash_attn_varlen_func and flash_attn_with_kvcache, for a model on a GPU.

    Decode steps have at most `rows` rows, and pages of `page_size` tokens. All memory that lasts is made here: what is
    made while transformers captures a graph belongs to that graph.
    """
    from bench.append_paged import append
    from gpu_worker.paged_decode import PagedDecode

    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    decode = PagedDecode(rows, heads, kv_heads, head_dim, page_size, None, device)
    return varlen, with_kvcache(decode.attend, append, torch.arange(rows, dtype=torch.int32, device=device))


def varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
) -> Tensor:
    """Return the attention of several requests laid end to end, as flash_attn_varlen_func does."""
    window = (
        {} if window_size == (-1, -1) else {"window_size_left": window_size[0], "window_size_right": window_size[1]}
    )
    out = torch.ops.aten._flash_attention_forward(
        q, k, v, cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k), dropout_p, causal, False,
        scale=softmax_scale, **window,
    )  # fmt: skip
    found: Tensor = out[0]
    return found


def with_kvcache(attend: Attend, append: Append, slots: Tensor) -> Callable[..., Tensor]:
    """Return what does as flash_attn_with_kvcache, by two kernels: one writes the new keys and values, one attends.

    `slots`: 0, 1, 2, … as int32, one for each row that there may be. The scale is 1/√head_dim.
    """

    def flash_attn_with_kvcache(
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        k: Tensor,
        v: Tensor,
        cache_seqlens: Tensor,
        block_table: Tensor,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
    ) -> Tensor:
        """Append one token a row, `k` and `v` [R, 1, kv_heads, head_dim], and attend for it: [R, 1, heads, head_dim].

        Padding has a length of -1 and blocks of -1: nothing is written for it, and it gets zeros.
        """
        rows = len(q)
        lengths = torch.empty(rows, dtype=torch.int32, device=q.device)
        append(k.squeeze(1), v.squeeze(1), k_cache, v_cache, block_table, cache_seqlens, lengths)
        window = window_size[0] + 1 if window_size[0] >= 0 else 0
        return attend(q.squeeze(1), k_cache, v_cache, block_table, slots[:rows], lengths, window).unsqueeze(1)

    return flash_attn_with_kvcache


def put_in(model: Any, of_prompts: Callable[..., Tensor], of_decode: Callable[..., Tensor]) -> None:
    """Have transformers take these for flash-attn's, as if it had loaded that, and the model ask for it."""
    import transformers.modeling_flash_attention_utils as flash

    utils: Any = flash
    older = hasattr(utils, "lazy_import_paged_flash_attention")
    name = f"paged|{NAME}" if older else NAME
    utils._loaded_implementation = name
    utils._flash_varlen_fn = of_prompts
    utils._flash_with_kvcache_fn = torch.compiler.disable(of_decode)
    utils._process_flash_kwargs_fn = utils._lazy_define_process_function(of_prompts)
    if not older:
        utils._process_with_kvcache_kwargs_fn = utils._lazy_define_process_function(of_decode)
    model.config._attn_implementation_internal = name
