"""Decode steps without requests: the worker's engine is given plans of some rows at a place, as if it had come there.

No prompt is computed. Each row has its blocks, filled with random keys and values, and every step is at the same place:
so the context of all steps is exactly what it is said to be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import numpy as np
import torch
from numpy.typing import NDArray

from bench.step_loop import NO_TABLES, NONE, StepLoop, Tables, Timed, greedy_plan
from checkpoint import ModelConfig
from gpu_worker.engine import Engine
from gpu_worker.kv_cache import bytes_per_block
from gpu_worker.loading import DTYPES
from gpu_worker.weights import empty_weights
from protocol.messages import Plan, RowFlag

WARM_UP_STEPS = 5
META = torch.device("meta")


class DecodeSteps:
    """An engine that does nothing else."""

    def __init__(self, engine: Engine) -> None:
        """Fill the KV cache with random numbers."""
        self._engine = engine
        self._loop = StepLoop(engine)
        engine.device.prepare(self._fill)

    def _fill(self) -> None:
        cache = self._engine.runner.cache
        for each in (*cache.k, *cache.v):
            each.normal_()

    def fits(self, rows: int, context: int) -> bool:
        """Whether there are blocks for so many rows of so many tokens."""
        return rows * -(-context // self._engine.block_size) <= self._engine.blocks

    def run(self, rows: int, context: int, steps: int) -> Timed:
        """Compute `steps` steps of `rows` rows, each of which sees `context` tokens, its own among them."""
        plans = self._plans(rows, context, WARM_UP_STEPS + steps)
        return self._loop.run(plans, f"{rows} rows of {context} tokens", WARM_UP_STEPS)

    def _plans(self, rows: int, context: int, steps: int) -> Iterator[Plan]:
        slots = np.arange(rows, dtype=np.uint32)
        each = -(-context // self._engine.block_size)
        blocks = 1 + np.random.default_rng(0).permutation(self._engine.blocks)[: rows * each].astype(np.uint32)
        tables = np.repeat(slots, each), np.tile(np.arange(each, dtype=np.uint32), rows), blocks
        yield _plan(slots, context, tables, slots)
        for _ in range(steps - 1):
            yield _plan(slots, context, NO_TABLES, NONE)


def _plan(slots: NDArray[np.uint32], context: int, tables: Tables, begin: NDArray[np.uint32]) -> Plan:
    flags = np.full(len(slots), int(RowFlag.CARRY | RowFlag.SAMPLE), np.uint8)
    return greedy_plan(slots, np.full_like(slots, context - 1), np.ones_like(slots), flags, NONE, tables, begin)


def weight_bytes(model: ModelConfig, dtype: str, rows: int) -> int:
    """Return how many bytes of parameters a step reads: all, but of the embedding one row for each of its own."""
    weights = empty_weights(model, DTYPES[dtype], META)
    parts = [getattr(layer, field.name) for layer in weights.layers for field in fields(layer)]
    layers: int = sum(part.nbytes for part in parts if part is not None)
    return layers + weights.norm.nbytes + weights.head.nbytes + rows * weights.embedding[0].nbytes


def kv_bytes(model: ModelConfig, dtype: str, rows: int, context: int) -> int:
    """Return how many bytes of keys and values a step reads; a layer with a window reads no more than that."""
    windows = model.layer_windows or (0,) * model.num_layers
    seen = sum(min(context, window) if window else context for window in windows)
    return rows * seen * bytes_per_block(model, 1, DTYPES[dtype]) // model.num_layers
