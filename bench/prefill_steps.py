"""Prompts without requests: the worker's engine is given their chunks as a scheduler would plan them.

budget 5, three prompts of 4    step 1   0 0 0 0 1      s: the last chunk of a prompt yields a token
                                               s
                                step 2   1 1 1 2 2
                                             s
                                step 3   2 2
                                           s
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.step_loop import StepLoop, Tables, Timed, greedy_plan
from gpu_worker.engine import Engine
from protocol.messages import Plan, RowFlag


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some tokens of one prompt."""

    prompt: int
    position: int
    count: int


def chunks(prompts: int, length: int, budget: int) -> list[list[Chunk]]:
    """Return the chunks of each step: prompts in turn, each as far as the step's `budget` of tokens lasts."""
    steps: list[list[Chunk]] = []
    left = 0
    for prompt in range(prompts):
        position = 0
        while position < length:
            if not left:
                steps.append([])
                left = budget
            count = min(left, length - position)
            steps[-1].append(Chunk(prompt, position, count))
            position, left = position + count, left - count
    return steps


class PrefillSteps:
    """An engine that does nothing else."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = StepLoop(engine)

    def fits(self, prompts: int, length: int) -> bool:
        """Whether there are blocks for so many prompts of `length` tokens."""
        return prompts * self._blocks_of(length) <= self._engine.blocks

    def run(self, prompts: int, length: int, budget: int) -> Timed:
        """Compute so many prompts of `length` random tokens, at most `budget` tokens a step."""
        return self._loop.run(self._plans(prompts, length, budget), f"{prompts} prompts of {length} tokens")

    def _plans(self, prompts: int, length: int, budget: int) -> Iterator[Plan]:
        draw = np.random.default_rng(0)
        tokens = draw.integers(0, self._engine.vocab_size, (prompts, length), dtype=np.uint32)
        each = self._blocks_of(length)
        blocks = 1 + draw.permutation(self._engine.blocks)[: prompts * each].astype(np.uint32).reshape(prompts, each)
        for step in chunks(prompts, length, budget):
            begin = np.array([chunk.prompt for chunk in step if not chunk.position], np.uint32)
            last = np.array([chunk.position + chunk.count == length for chunk in step])
            yield greedy_plan(
                slot=np.array([chunk.prompt for chunk in step], np.uint32),
                position=np.array([chunk.position for chunk in step], np.uint32),
                count=np.array([chunk.count for chunk in step], np.uint32),
                flags=np.where(last, int(RowFlag.SAMPLE), 0).astype(np.uint8),
                token=np.concatenate([tokens[c.prompt, c.position : c.position + c.count] for c in step]),
                tables=_tables(begin, blocks),
                begin=begin,
            )

    def _blocks_of(self, length: int) -> int:
        return -(-length // self._engine.block_size)


def _tables(begin: NDArray[np.uint32], blocks: NDArray[np.uint32]) -> Tables:
    """Return the tables of the prompts that begin; `blocks`: [prompts, blocks of each]."""
    each = blocks.shape[1]
    return np.repeat(begin, each), np.tile(np.arange(each, dtype=np.uint32), len(begin)), blocks[begin].ravel()
