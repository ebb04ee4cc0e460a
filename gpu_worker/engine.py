"""A loaded model on its device: what a worker process serves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpu_worker.device import Device
from gpu_worker.pipeline import StepPipeline
from gpu_worker.runner import ModelRunner
from protocol.messages import MOST_NOTES, Opened
from timeline.recorder import Recorder


@dataclass(frozen=True, slots=True)
class Engine:
    """A loaded model on its device, and how large what may be asked of it is."""

    device: Device
    where: str  # it computes, in words
    runner: ModelRunner
    model_name: str
    dtype: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    slots: int
    blocks: int  # block 0, which is nobody's, not counted
    block_size: int
    max_batch_tokens: int
    max_model_len: int

    @property
    def about(self) -> str:
        """What is computed, and where, in words."""
        return f"{self.model_name} in {self.dtype} on {self.where}"

    def pipeline(self, plans_in_flight: int, recorder: Recorder) -> StepPipeline:
        """Return a new pipeline over the model, whose spans `recorder` gets.

        There must be no other with plans in flight.
        """
        notes = self.max_model_len + MOST_NOTES
        sizes = (self.max_batch_tokens, self.slots, self.blocks, notes)
        return self.device.prepare(
            lambda: StepPipeline(self.device, self.runner, plans_in_flight, *sizes, recorder=recorder)
        )

    def opened(self, nonce: int, session: int) -> Opened:
        """Return what a scheduler is told when its session begins."""
        return Opened(
            nonce=nonce,
            session=session,
            model=self.model_name,
            device=str(self.device.torch_device),
            dtype=self.dtype,
            vocab_size=self.vocab_size,
            eos_token_ids=np.array(self.eos_token_ids, np.uint32),
            slots=self.slots,
            blocks=self.blocks,
            block_size=self.block_size,
            max_batch_tokens=self.max_batch_tokens,
            max_model_len=self.max_model_len,
        )
