"""Decode steps without requests: the worker's engine is given plans of some rows at a place, as if it had come there.

No prompt is computed. Each row has its blocks, filled with random keys and values, and every step is at the same place:
so the context of all steps is exactly what it is said to be.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray

from bench.bandwidth import EVENT_SECONDS
from bench.contestant import BenchmarkError
from checkpoint import ModelConfig
from gpu_worker.engine import Engine
from gpu_worker.kv_cache import bytes_per_block
from gpu_worker.loading import DTYPES
from gpu_worker.weights import empty_weights
from protocol.messages import Plan, Result, RowFlag
from timeline.recorder import Recorder

PLANS_IN_FLIGHT = 2
WARM_UP_STEPS = 5
LONGEST_WAIT_SECONDS = 1.0
META = torch.device("meta")

_NONE = np.zeros(0, np.uint32)
_NO_NUMBERS = np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True)
class Timed:
    """Some steps: how long the device computed each, float64 seconds [steps], and how long all of them took."""

    device_seconds: NDArray[np.float64]
    seconds: float


class DecodeSteps:
    """An engine that does nothing else; its one pipeline is here."""

    def __init__(self, engine: Engine) -> None:
        """Fill the KV cache with random numbers."""
        self._engine = engine
        self._pipeline = engine.pipeline(PLANS_IN_FLIGHT, Recorder())
        self._step = 0
        self._settled = 0
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
        times: list[float] = []
        began = 0.0
        while len(times) < WARM_UP_STEPS + steps:
            while self._pipeline.room and (plan := next(plans, None)) is not None:
                self._pipeline.launch(plan)
            self._wait()
            busy = self._pipeline.busy_seconds
            answer = self._pipeline.collect()
            if not isinstance(answer, Result):
                raise BenchmarkError(f"{rows} rows of {context} tokens: {answer.error}")
            self._settled = answer.step
            times.append(self._pipeline.busy_seconds - busy)
            if len(times) == WARM_UP_STEPS:
                began = time.perf_counter()
        return Timed(np.array(times[WARM_UP_STEPS:]), time.perf_counter() - began)

    def _wait(self) -> None:
        """Wait for the oldest plan as a worker does."""
        device = self._engine.device
        wakeup = device.fileno()
        while not self._pipeline.ready():
            if wakeup is None:
                time.sleep(EVENT_SECONDS)
            else:
                select.select([wakeup], [], [], LONGEST_WAIT_SECONDS)
                device.clear_wakeups()

    def _plans(self, rows: int, context: int, steps: int) -> Iterator[Plan]:
        slots = np.arange(rows, dtype=np.uint32)
        each = -(-context // self._engine.block_size)
        blocks = 1 + np.random.default_rng(0).permutation(self._engine.blocks)[: rows * each].astype(np.uint32)
        tables = np.repeat(slots, each), np.tile(np.arange(each, dtype=np.uint32), rows), blocks
        yield self._plan(slots, context, tables, slots)
        for _ in range(steps - 1):
            yield self._plan(slots, context, (_NONE, _NONE, _NONE), _NONE)

    def _plan(
        self, slots: NDArray[np.uint32], context: int, tables: tuple[NDArray[np.uint32], ...], begin: NDArray[np.uint32]
    ) -> Plan:
        self._step += 1
        none, numbers = np.zeros_like(begin), np.zeros(len(begin), np.float32)
        return Plan(
            session=1,
            step=self._step,
            settled=self._settled,
            slot=slots,
            position=np.full_like(slots, context - 1),
            count=np.ones_like(slots),
            flags=np.full(len(slots), int(RowFlag.CARRY | RowFlag.SAMPLE), np.uint8),
            token=_NONE,
            table_slot=tables[0],
            table_index=tables[1],
            table_block=tables[2],
            begin_slot=begin,
            temperature=numbers,
            top_k=none,
            top_p=np.ones_like(numbers),
            min_p=numbers,
            seed=np.zeros(len(begin), np.uint64),
        )


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
