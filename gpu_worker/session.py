"""One session with a scheduler: what it may send, and what the worker has answered."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_worker.engine import Engine
from gpu_worker.pipeline import StepPipeline
from protocol.errors import ProtocolError
from protocol.messages import MOST_NOTES, Failed, Plan, Result


@dataclass(slots=True)
class Session:
    """A scheduler's claim on the worker, from Opened to Close, another Open, or silence."""

    peer: bytes
    number: int
    pipeline: StepPipeline
    heard: float
    launched: int = 0
    answered: int = 0
    over: bool = False  # what is still in flight is computed to its end, and nobody is told

    def launch(self, plan: Plan, engine: Engine) -> None:
        """Put a plan into the pipeline; raises `ProtocolError` for one that a right scheduler would not have sent."""
        if plan.step != self.launched + 1:
            raise ProtocolError(f"step {plan.step} follows step {self.launched}")
        if not self.pipeline.room:
            raise ProtocolError(f"step {plan.step} came while {len(self.pipeline)} plans are unanswered")
        check_plan(plan, engine)
        self.launched = plan.step
        self.pipeline.launch(plan)

    def collect(self) -> Result | Failed:
        """Return the next answer; it must be ready."""
        answer = self.pipeline.collect()
        self.answered = answer.step
        return answer


def check_plan(plan: Plan, engine: Engine) -> None:
    """Raise `ProtocolError` for whatever would reach past the end of something on the device.

    What a plan must be in itself, its own `check` has seen to.
    """
    for column, limit, what in (
        (plan.slot, engine.slots, "slot"),
        (plan.table_slot, engine.slots, "table slot"),
        (plan.begin_slot, engine.slots, "begin slot"),
        (plan.table_index, -(-engine.max_model_len // engine.block_size), "table index"),
        (plan.table_block, engine.blocks + 1, "block"),
        (plan.token, engine.vocab_size, "token"),
    ):
        if len(column) and column.max() >= limit:
            raise ProtocolError(f"step {plan.step}: {what} {column.max()} is not below {limit}")
    if plan.listed is not None and len(plan.listed) and plan.listed.max() > engine.vocab_size + 1:
        raise ProtocolError(f"step {plan.step}: log probabilities of more tokens than there are")
    if (scoring := plan.scoring) is not None and len(scoring.token):
        if scoring.token.max() >= engine.vocab_size:
            raise ProtocolError(f"step {plan.step}: what is scored is no token")
        if scoring.entries.max() > engine.vocab_size + 1:
            raise ProtocolError(f"step {plan.step}: log probabilities of more tokens than there are")
    tokens = int(plan.count.sum(dtype=np.uint64))
    if not 0 < tokens <= engine.max_batch_tokens:
        raise ProtocolError(f"step {plan.step}: {tokens} tokens; 1 to {engine.max_batch_tokens} are allowed")
    if (plan.position.astype(np.uint64) + plan.count).max() >= engine.max_model_len:
        raise ProtocolError(f"step {plan.step}: a row does not end before {engine.max_model_len}")
    if len(plan.table_block) > engine.blocks or not plan.table_block.all():
        raise ProtocolError(f"step {plan.step}: block 0, or more blocks than there are")
    if _repeats(plan.slot) or _repeats(plan.begin_slot):
        raise ProtocolError(f"step {plan.step}: a slot has two rows, or begins twice")
    if (adjusting := plan.adjusting) is not None:
        notes, room = len(adjusting.token), engine.max_model_len + MOST_NOTES
        if notes > room or (notes and adjusting.token.max() >= engine.vocab_size):
            raise ProtocolError(f"step {plan.step}: more than {room} notes, or one of no token")
        if len(np.unique(adjusting.slot)) < len(adjusting.slot) or not np.isin(adjusting.slot, plan.begin_slot).all():
            raise ProtocolError(f"step {plan.step}: a slot is adjusted twice, or does not begin")
    if _repeats(plan.table_slot) and _written_twice(plan):
        raise ProtocolError(f"step {plan.step}: a place in a block table is written twice")


def _repeats(column: NDArray[np.uint32]) -> bool:
    """Whether a slot is there twice; they are known to be slots, so counting them takes little."""
    return len(column) > 1 and int(np.bincount(column).max()) > 1


def _written_twice(plan: Plan) -> bool:
    place = plan.table_slot.astype(np.uint64) << np.uint64(32) | plan.table_index
    return len(np.unique(place)) < len(place)
