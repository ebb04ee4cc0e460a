"""One session with a scheduler: what it may send, and what the worker has answered."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpu_worker.engine import Engine
from gpu_worker.pipeline import StepPipeline
from protocol.errors import ProtocolError
from protocol.messages import Failed, Plan, Result, RowFlag


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
    """Raise `ProtocolError` for whatever would index past the end of something on the device."""
    carry = (plan.flags & RowFlag.CARRY) != 0
    tokens = int(plan.count.sum(dtype=np.uint64))
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
    reach = plan.position.astype(np.uint64) + plan.count
    if not len(plan.slot) or not plan.count.all() or reach.max() >= engine.max_model_len:
        raise ProtocolError(f"step {plan.step}: rows must be there, have tokens, and end before {engine.max_model_len}")
    if len(plan.table_block) and not plan.table_block.all():
        raise ProtocolError(f"step {plan.step}: block 0 is nobody's")
    if (np.bincount(plan.slot) > 1).any():
        raise ProtocolError(f"step {plan.step}: a slot has two rows")
    if (plan.count[carry] != 1).any() or plan.count[~carry].sum(dtype=np.uint64) != len(plan.token):
        raise ProtocolError(f"step {plan.step}: {len(plan.token)} tokens came for the rows that do not carry")
    if tokens > engine.max_batch_tokens:
        raise ProtocolError(f"step {plan.step}: {tokens} tokens, at most {engine.max_batch_tokens} are allowed")
    if (plan.flags >= 4).any():
        raise ProtocolError(f"step {plan.step}: unknown flags")
