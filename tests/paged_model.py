"""A decoder with a small NaN-filled pool, driven row by row as a worker would."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from checkpoint import load_config
from gpu_worker.attention import TorchAttention
from gpu_worker.kv_cache import KVCache
from gpu_worker.loading import load_weights
from gpu_worker.model import Decoder
from gpu_worker.weights import ModelWeights

CPU = torch.device("cpu")


class PagedModel:
    """`step` runs rows of (request, tokens); where each request stands, and in which blocks, is remembered here.

    `served` is how many positions a request may have, for those rotations that go by it.
    """

    def __init__(
        self,
        path: Path,
        dtype: torch.dtype = torch.float32,
        block_size: int = 16,
        weights: ModelWeights | None = None,
        served: int | None = None,
    ) -> None:
        self.config = load_config(path)
        weights = weights or load_weights(path, self.config, dtype, CPU)
        self.attention = TorchAttention(self.config, block_size, dtype)
        self.decoder = Decoder(self.config, weights, self.attention, served)
        self.blocks_each = -(-1024 // block_size)
        self.cache = KVCache.allocate(self.config, 8 * self.blocks_each + 1, block_size, dtype, CPU, fill=float("nan"))
        # Blocks in no order, so that a mix-up of block and position shows.
        order = torch.randperm(8 * self.blocks_each, generator=torch.Generator().manual_seed(5)) + 1
        self.tables = order.to(torch.int32).view(8, self.blocks_each)
        self.length = np.zeros(8, np.int32)

    def step(self, *rows: tuple[int, list[int]], padded: int = 0) -> list[Tensor]:
        """Run one step; return each row's logits, float32 [its tokens, vocabulary]. `padded` rows are added behind."""
        requests = [request for request, _ in rows]
        count = np.array([len(tokens) for _, tokens in rows] + [1] * padded, np.int32)
        position = np.concatenate((self.length[requests], np.zeros(padded, np.int32)))
        tables = torch.cat((self.tables[requests], torch.zeros(padded, self.blocks_each, dtype=torch.int32)))
        step = self.attention.prepare(tables, position, count)
        tokens = torch.tensor([token for _, some in rows for token in some] + [0] * padded)
        positions = torch.tensor([p + i for p, n in zip(position, count, strict=True) for i in range(n)])
        logits = self.decoder.forward(tokens, positions, torch.arange(len(tokens)), step, self.cache)
        self.length[requests] += count[: len(rows)]
        return list(logits.split(count.tolist()))[: len(rows)]
