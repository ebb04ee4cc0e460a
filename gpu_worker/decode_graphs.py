"""Decode steps as CUDA graphs, one for each of some batch sizes; a step takes the next larger one.

the step's rows   s s s s s p p p      s: slot and position; p: padding, in a slot of its own whose blocks are
                  └─ 5 ───┘└ 3 ─┘      all block 0, so that what it writes is nobody's
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpu_worker.device import Device
from gpu_worker.graph_sizes import graph_sizes
from gpu_worker.kv_cache import KVCache
from gpu_worker.model import Decoder
from gpu_worker.paged_attention import PagedAttention
from gpu_worker.sampler import greedy

WARM_UPS = 2
"""Runs before a capture: libraries allocate and kernels are compiled in the first."""


@dataclass(frozen=True, slots=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    rows: Tensor  # int32 [2, size]: slots, positions
    logits: Tensor  # float32 [size, vocabulary]
    token: Tensor  # int64 [size]
    status: Tensor  # uint8 [size]


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a step of R rows came to; the next step on the stream writes over it."""

    logits: Tensor  # float32 [R, vocabulary]
    token: Tensor  # int64 [R], the likeliest
    status: Tensor  # uint8 [R]


class DecodeGraphs:
    """The graphs. Their inputs are two columns; their state is the runner's own: tables, last tokens, KV."""

    def __init__(self, model: Decoder, cache: KVCache, tables: Tensor, last_token: Tensor) -> None:
        """Nothing is captured yet. The last slot of `tables` and `last_token` is the padding's.

        The model's attention must be able to prepare a step on the device.
        """
        assert isinstance(model.attention, PagedAttention)
        self._model, self._attention, self._cache = model, model.attention, cache
        self._tables, self._last_token = tables, last_token
        self._padding = len(last_token) - 1
        self._graphs: dict[int, _Graph] = {}
        self._sizes = graph_sizes(self._padding)

    def size_for(self, rows: int) -> int:
        """Return the batch size at which so many rows run."""
        return next(size for size in self._sizes if size >= rows)

    @torch.inference_mode()
    def capture(self, device: Device, share: Callable[[float, str], None]) -> str:
        """Capture all of them on the compute stream, the largest first; return in words what it took."""
        began, before = time.monotonic(), torch.cuda.memory_allocated(device.torch_device)
        pool = torch.cuda.graph_pool_handle()
        device.settle()
        for number, size in enumerate(reversed(self._sizes)):
            device.compute.run(lambda size=size: self._capture(size, pool))  # type: ignore[misc]
            share((number + 1) / len(self._sizes), f"captured {number + 1} of {len(self._sizes)} CUDA graphs")
        device.settle()
        mib = (torch.cuda.memory_allocated(device.torch_device) - before) / 2**20
        return f"{len(self._sizes)} CUDA graphs in {time.monotonic() - began:.1f} s, {mib:.0f} MiB"

    def run(self, rows: Tensor) -> Decoded:
        """Run a step; `rows`: int32 [2, size], slots and positions of its rows and of padding."""
        graph = self._graphs[rows.shape[1]]
        graph.rows.copy_(rows)
        graph.graph.replay()
        return Decoded(graph.logits, graph.token, graph.status)

    def _capture(self, size: int, pool: Any) -> None:
        rows = torch.zeros((2, size), dtype=torch.int32, device=self._last_token.device)
        rows[0] = self._padding
        for _ in range(WARM_UPS):
            self._step(rows)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=torch.cuda.current_stream()):
            logits, token, status = self._step(rows)
        self._graphs[size] = _Graph(graph, rows, logits, token, status)

    def _step(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Carry-over, forward pass and greedy sampling of one token a row."""
        slots, positions = rows[0], rows[1].long()
        tokens = self._last_token[slots.long()]
        step = self._attention.decode(self._tables, slots, positions)
        logits = self._model.forward(tokens, positions, None, step, self._cache)
        token, status = greedy(logits)
        self._last_token[slots.long()] = token
        return logits, token, status
