"""The largest steps that a scheduler may send: what they take of a GPU's memory, the KV cache can't have.

    wide    as many rows as there are slots, all of which sample, with penalties, log probabilities and all; their
            tokens are as many as a step may have, and as many are scored as have logits at once
    long    one row, as many tokens as a step may have, at the end of the longest context

All rows have the same block, again and again: what they compute is nonsense, and takes the memory that sense does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from checkpoint import CheckpointError
from gpu_worker.logprobs import SCORED_AT_A_TIME
from protocol.logprobs import MOST_LOGPROBS
from protocol.messages import Failed, Note, Plan, Result, RowFlag
from timeline.recorder import Recorder

if TYPE_CHECKING:
    from gpu_worker.engine import Engine
    from gpu_worker.pipeline import StepPipeline

BLOCKS = 1
"""Of the engine that computes them, block 0 not counted."""

TEMPERATURE, TOP_P = 1.0, 0.9
"""So that a step looks at all of the vocabulary, and in plain torch sorts it."""

PENALTIES = 1.5, 0.5, 0.5
"""Repetition, presence, frequency."""

BAD_WORD = Note.WORD, Note.WORD_END
"""One slot has it, of two tokens: for its sake there are lines for every row, and all are looked at."""

_POLL_SECONDS = 1e-3
_OUT_OF_MEMORY = "OutOfMemoryError"


def largest_plans(slots: int, max_batch_tokens: int, max_model_len: int, block_size: int) -> tuple[Plan, Plan]:
    """Return the wide step and the long one, as plans 1 and 2 of a session."""
    longest = max_model_len - 1  # its successor must have a place, too
    each, more = divmod(max_batch_tokens, slots)
    count = np.minimum(each + (np.arange(slots) < more), longest).astype(np.uint32)
    wide = _adjusted(_plan(1, np.zeros_like(count), count, block_size))
    count = np.array([min(max_batch_tokens, longest)], np.uint32)
    return wide, _plan(2, longest - count, count, block_size)


def largest_steps(make: Callable[[], Engine]) -> Iterator[Plan]:
    """Compute these steps one by one, on an engine that `make` makes with a KV cache of `BLOCKS`; yield each when done.

    Raises `CheckpointError` if one fails, and says how large it was.
    """
    engine = make()
    plans = largest_plans(engine.slots, engine.max_batch_tokens, engine.max_model_len, engine.block_size)
    entries = max(len(plan.table_block) for plan in plans)
    pipeline = replace(engine, blocks=entries).pipeline(1, Recorder())  # it has room for so many table entries
    for plan in plans:
        answer = _answer(pipeline, plan)
        if not isinstance(answer, Result):
            raise CheckpointError(_why(plan, answer.error))
        yield plan


def _answer(pipeline: StepPipeline, plan: Plan) -> Result | Failed:
    logging.disable(logging.ERROR)  # the pipeline would show a traceback of what is told in a line
    try:
        pipeline.launch(plan)
        while not pipeline.ready():
            time.sleep(_POLL_SECONDS)
        return pipeline.collect()
    finally:
        logging.disable(logging.NOTSET)


def _why(plan: Plan, error: str) -> str:
    tokens, rows = int(plan.count.sum()), len(plan.slot)
    hint = ": lower --max-batch-tokens, --max-num-seqs or --max-model-len" if _OUT_OF_MEMORY in error else ""
    return (
        f"the largest step, of {tokens} tokens in {rows} {'row' if rows == 1 else 'rows'} of up to "
        f"{int((plan.position + plan.count).max())}, fails ({(error.splitlines() or [''])[0]}){hint}"
    )


def _adjusted(plan: Plan) -> Plan:
    """Return a plan whose rows ask for all that takes memory between logits and tokens."""
    count = plan.count.astype(np.int64)
    left = SCORED_AT_A_TIME - np.cumsum(count) + count
    scored = np.minimum(left, count)[left > 0].astype(np.uint32)
    row = np.arange(len(scored), dtype=np.uint32)
    return replace(
        plan,
        adjust_slot=plan.slot,
        penalty=np.tile(np.array(PENALTIES, np.float32), len(plan.slot)),
        free_from=np.zeros_like(plan.slot),
        notes=np.where(plan.slot == 0, len(BAD_WORD), 0).astype(np.uint32),
        note=np.array(BAD_WORD, np.uint8),
        note_token=np.zeros(len(BAD_WORD), np.uint32),
        bias=np.zeros(0, np.float32),
        listed=np.full(len(plan.slot), 1 + MOST_LOGPROBS, np.uint8),
        scored=np.stack((row, 0 * row, scored, 0 * row + 1 + MOST_LOGPROBS), axis=1).reshape(-1),
        scored_token=np.zeros(int(scored.sum()), np.uint32),
    )


def _plan(step: int, position: NDArray[np.uint32], count: NDArray[np.uint32], block_size: int) -> Plan:
    slot = np.arange(len(count), dtype=np.uint32)
    blocks = (position + count - 1) // block_size + 1
    index = np.concatenate([np.arange(each, dtype=np.uint32) for each in blocks])
    return Plan(
        session=1,
        step=step,
        settled=step - 1,
        slot=slot,
        position=position,
        count=count,
        flags=np.full(len(slot), int(RowFlag.SAMPLE), np.uint8),
        token=np.zeros(int(count.sum()), np.uint32),
        table_slot=np.repeat(slot, blocks),
        table_index=index,
        table_block=np.full(len(index), BLOCKS, np.uint32),
        begin_slot=slot,
        temperature=np.full(len(slot), TEMPERATURE, np.float32),
        top_k=np.zeros_like(slot),
        top_p=np.full(len(slot), TOP_P, np.float32),
        min_p=np.zeros(len(slot), np.float32),
        seed=np.zeros(len(slot), np.uint64),
    )
