# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
"""What a layer does between its matrix products, each as one Triton kernel: one pass over memory, one launch.

    add_norm   residual += what came out of the last product; its RMS norm goes into the next
    place      of q, k, v: norm per head, rotation, k and v to the cache, q to the attention
    gate       silu(gate) · up

A matrix product may come as it is, or as partial sums over slices of its inner dimension (`skinny_linear`): float32
[P, T, N], which are added up here, where they are read anyway.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from gpu_worker.kv_cache import KVCache
from gpu_worker.pdl import launch_options
from gpu_worker.projection import Projection
from gpu_worker.skinny_linear import projection

HEADS_AT_A_TIME = 8
GATED_AT_A_TIME = 1024


@triton.jit
def _sum_of_parts(source, at, inside, stride, parts: tl.constexpr):
    total = tl.load(source + at, mask=inside, other=0.0).to(tl.float32)
    for part in tl.static_range(1, parts):
        total += tl.load(source + part * stride + at, mask=inside, other=0.0).to(tl.float32)
    return total


@triton.jit
def _add_norm(
    residual, delta, weight, normed, delta_stride, share, epsilon,
    hidden: tl.constexpr, width: tl.constexpr, parts: tl.constexpr, pdl: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, width)
    inside = at < hidden
    if pdl:
        gdc_launch_dependents()
    scale = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    if pdl:
        gdc_wait()
    here = residual + row * hidden + at
    x = tl.load(here, mask=inside, other=0.0)
    if parts > 0:
        more = share * _sum_of_parts(delta, row * hidden + at, inside, delta_stride, parts)
        x = (x.to(tl.float32) + more).to(x.dtype)
        tl.store(here, x, mask=inside)
    wide = x.to(tl.float32)
    mean = tl.sum(wide * wide, 0) / hidden
    y = wide * tl.rsqrt(mean + epsilon) * scale
    tl.store(normed + row * hidden + at, y.to(x.dtype), mask=inside)


@triton.jit
def _place(
    qkv, q_weight, k_weight, table, positions, where, queries, keys, values, qkv_stride, epsilon,
    heads: tl.constexpr, kv_heads: tl.constexpr, head_dim: tl.constexpr, pairs: tl.constexpr,
    padded_pairs: tl.constexpr, padded_rest: tl.constexpr, at_a_time: tl.constexpr, parts: tl.constexpr,
    normed: tl.constexpr, rotated: tl.constexpr, pdl: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * at_a_time + tl.arange(0, at_a_time)
    every: tl.constexpr = heads + 2 * kv_heads
    is_query, is_key = head < heads, (head >= heads) & (head < heads + kv_heads)
    is_value = (head >= heads + kv_heads) & (head < every)
    if pdl:
        gdc_launch_dependents()
        gdc_wait()
    # A head is turned as two halves, x and y; what lies beyond them (`rest`) stays as it is.
    pair, beyond = tl.arange(0, padded_pairs), 2 * pairs + tl.arange(0, padded_rest)
    in_pairs, in_rest = pair < pairs, beyond < head_dim
    there = (head < every)[:, None]
    own = (token * every + head)[:, None] * head_dim
    x = _sum_of_parts(qkv, own + pair[None, :], there & in_pairs[None, :], qkv_stride, parts)
    y = _sum_of_parts(qkv, own + pairs + pair[None, :], there & in_pairs[None, :], qkv_stride, parts)
    rest = _sum_of_parts(qkv, own + beyond[None, :], there & in_rest[None, :], qkv_stride, parts)
    kind = queries.dtype.element_ty
    old_x, old_y, old_rest = x.to(kind), y.to(kind), rest.to(kind)
    if normed:
        mean = (tl.sum(x * x, 1) + tl.sum(y * y, 1) + tl.sum(rest * rest, 1)) / head_dim
        shrink = tl.rsqrt(mean + epsilon)[:, None]
        x = (x * shrink * _weight_of(q_weight, k_weight, pair, in_pairs, is_query)).to(kind).to(tl.float32)
        y = (y * shrink * _weight_of(q_weight, k_weight, pairs + pair, in_pairs, is_query)).to(kind).to(tl.float32)
        rest = rest * shrink * _weight_of(q_weight, k_weight, beyond, in_rest, is_query)
    else:
        x, y = old_x.to(tl.float32), old_y.to(tl.float32)
    if rotated:
        turn = table + tl.load(positions + token).to(tl.int64) * (2 * pairs) + pair
        cos = tl.load(turn, mask=in_pairs, other=0.0)[None, :]
        sin = tl.load(turn + pairs, mask=in_pairs, other=0.0)[None, :]
        x, y = x * cos - y * sin, y * cos + x * sin
    place = tl.load(where + token).to(tl.int64)
    to_query = queries + (token * heads + head)[:, None] * head_dim
    to_key = keys + (place * kv_heads + head - heads)[:, None] * head_dim
    to_value = values + (place * kv_heads + head - heads - kv_heads)[:, None] * head_dim
    if 2 * pairs < head_dim:
        tl.store(to_query + beyond[None, :], rest.to(kind), mask=is_query[:, None] & in_rest[None, :])
        tl.store(to_key + beyond[None, :], rest.to(kind), mask=is_key[:, None] & in_rest[None, :])
        tl.store(to_value + beyond[None, :], old_rest, mask=is_value[:, None] & in_rest[None, :])
    first, second = pair[None, :], pairs + pair[None, :]
    tl.store(to_query + first, x.to(kind), mask=is_query[:, None] & in_pairs[None, :])
    tl.store(to_query + second, y.to(kind), mask=is_query[:, None] & in_pairs[None, :])
    tl.store(to_key + first, x.to(kind), mask=is_key[:, None] & in_pairs[None, :])
    tl.store(to_key + second, y.to(kind), mask=is_key[:, None] & in_pairs[None, :])
    tl.store(to_value + first, old_x, mask=is_value[:, None] & in_pairs[None, :])
    tl.store(to_value + second, old_y, mask=is_value[:, None] & in_pairs[None, :])


@triton.jit
def _weight_of(q_weight, k_weight, at, inside, is_query):
    of_query = tl.load(q_weight + at, mask=inside, other=0.0).to(tl.float32)[None, :]
    of_key = tl.load(k_weight + at, mask=inside, other=0.0).to(tl.float32)[None, :]
    return tl.where(is_query[:, None], of_query, of_key)


@triton.jit
def _gate(gate_up, out, stride, wide: tl.constexpr, at_a_time: tl.constexpr, parts: tl.constexpr, pdl: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * at_a_time + tl.arange(0, at_a_time)
    inside = at < wide
    if pdl:
        gdc_launch_dependents()
        gdc_wait()
    gate = _sum_of_parts(gate_up, row * 2 * wide + at, inside, stride, parts)
    up = _sum_of_parts(gate_up, row * 2 * wide + wide + at, inside, stride, parts)
    y = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * wide + at, y.to(out.dtype.element_ty), mask=inside)


Rotation = tuple[Tensor, Tensor]
"""The table of cosines and sines, and the positions of a step's tokens."""


def _parts(product: Tensor) -> tuple[int, int]:
    """Return how many partial sums a product has, and how far apart they are."""
    return (1, 0) if product.dim() == 2 else (product.shape[0], product.stride(0))


class FusedOps:
    """The kernels, for one model on one device. All tensors are contiguous."""

    def __init__(self, epsilon: float, share: float, dtype: torch.dtype, device: torch.device) -> None:
        """`epsilon` is the norms'; a product goes into the residual times `share`."""
        self._epsilon, self._share, self._dtype = epsilon, share, dtype
        self._options = launch_options(device)

    def projection(self, weight: Tensor, bias: Tensor | None = None) -> Projection:
        """Return the product with `weight` [out, in], which `add_norm`, `place` and `gate` take."""
        return projection(weight, bias)

    def add_norm(self, residual: Tensor, delta: Tensor | None, weight: Tensor) -> Tensor:
        """Add a product to `residual` [T, hidden], in place, and return the RMS norm of that times `weight` [hidden].

        `delta`: [T, hidden], or partial sums of it, or None.
        """
        normed = torch.empty_like(residual)
        parts, stride = (0, 0) if delta is None else _parts(delta)
        hidden = residual.shape[1]
        _add_norm[(len(residual),)](
            residual, residual if delta is None else delta, weight, normed, stride, self._share, self._epsilon,
            hidden=hidden, width=triton.next_power_of_2(hidden), parts=parts,
            num_warps=8 if hidden > 2048 else 4, **self._options,
        )  # fmt: skip
        return normed

    def rotation(self, table: Tensor, positions: Tensor) -> Rotation:
        """Return how a step's tokens are turned; `table`: float32 [positions, 2 · pairs]; `positions`: int [T]."""
        return table, positions

    def place(
        self, qkv: Tensor, norms: tuple[Tensor, Tensor] | None, rotation: Rotation | None, where: Tensor,
        cache: KVCache, layer: int, heads: int,
    ) -> Tensor:  # fmt: skip
        """Return the queries [T, heads, head_dim], and write keys and values to a layer's cache.

        `qkv`: [T, (heads + 2 · kv_heads) · head_dim], or partial sums of it. `norms`: weights [head_dim] of the norms
        of queries and keys. `rotation`: None does not rotate. `where`: int64 [T], block · block_size + offset.
        """
        keys, values = cache.k[layer], cache.v[layer]
        tokens, (kv_heads, head_dim) = qkv.shape[-2], keys.shape[2:]
        queries = torch.empty((tokens, heads, head_dim), dtype=keys.dtype, device=keys.device)
        parts, stride = _parts(qkv)
        q_weight, k_weight = (queries, queries) if norms is None else norms
        table, positions = (queries, queries) if rotation is None else rotation
        pairs = head_dim // 2 if rotation is None else table.shape[1] // 2
        rest = head_dim - 2 * pairs
        _place[(tokens, triton.cdiv(heads + 2 * kv_heads, HEADS_AT_A_TIME))](
            qkv, q_weight, k_weight, table, positions, where, queries, keys, values, stride, self._epsilon,
            heads=heads, kv_heads=kv_heads, head_dim=head_dim, pairs=pairs,
            padded_pairs=triton.next_power_of_2(pairs), padded_rest=triton.next_power_of_2(max(1, rest)),
            at_a_time=HEADS_AT_A_TIME, parts=parts, normed=norms is not None, rotated=rotation is not None,
            num_warps=4, **self._options,
        )  # fmt: skip
        return queries

    def gate(self, gate_up: Tensor) -> Tensor:
        """Return silu(gate) · up, [T, wide]; `gate_up`: [T, 2 · wide], or partial sums of it."""
        tokens, wide = gate_up.shape[-2], gate_up.shape[-1] // 2
        out = torch.empty((tokens, wide), dtype=self._dtype, device=gate_up.device)
        parts, stride = _parts(gate_up)
        _gate[(tokens, triton.cdiv(wide, GATED_AT_A_TIME))](
            gate_up, out, stride, wide=wide, at_a_time=GATED_AT_A_TIME, parts=parts, num_warps=4, **self._options
        )
        return out
