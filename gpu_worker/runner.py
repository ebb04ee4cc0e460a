"""One step on the device: carry-over, forward pass, sampling. Everything that lasts there is owned and written here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gpu_worker.attention import AttentionStep, TorchAttention
from gpu_worker.kv_cache import KVCache
from gpu_worker.sampler import Sampler
from gpu_worker.staging import HostColumns, StepColumns
from protocol.messages import Plan


class StepModel(Protocol):
    """What computes a step: the lean `Decoder`, or a `ForeignModel`."""

    @property
    def attention(self) -> TorchAttention:
        """What prepares the step that `forward` gets."""

    def forward(
        self, tokens: Tensor, positions: Tensor, logits_at: Tensor, step: AttentionStep, cache: KVCache
    ) -> Tensor:
        """As `Decoder.forward`."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """One step's own device buffers for what it samples: token int64[slots], status uint8[slots]."""

    token: torch.Tensor
    status: torch.Tensor


class ModelRunner:
    """Model, KV cache, block tables, last tokens and sampling settings of `slots` slots."""

    def __init__(self, model: StepModel, cache: KVCache, slots: int, max_blocks: int) -> None:
        """Begin with empty tables; `max_blocks` is the length of a slot's block table."""
        self.device = cache.k[0].device
        self._model = model
        self._cache = cache
        self._sampler = Sampler(slots, self.device)
        self._block_table = torch.zeros((slots, max_blocks), dtype=torch.int32, device=self.device)
        self._last_token = torch.zeros(slots, dtype=torch.int64, device=self.device)

    def new_output(self) -> StepOutput:
        """Return buffers for one step in flight."""
        slots = len(self._last_token)
        return StepOutput(
            token=torch.zeros(slots, dtype=torch.int64, device=self.device),
            status=torch.zeros(slots, dtype=torch.uint8, device=self.device),
        )

    @torch.inference_mode()
    def run(
        self,
        plan: Plan,
        host: HostColumns,
        columns: StepColumns,
        output: StepOutput,
        before_sampling: Callable[[], None] = lambda: None,
    ) -> None:
        """Compute one step; runs on the compute stream. Of `plan` only what no kernel needs is read.

        `before_sampling` is called between the forward pass and the sampler.
        """
        self._block_table[columns.table_slot.long(), columns.table_index.long()] = columns.table_block
        if len(plan.begin_slot):
            self._sampler.admit(plan.begin_slot, plan.temperature, plan.top_k, plan.top_p, plan.min_p, plan.seed)
        tokens = columns.tokens.long()
        # The step before has just sampled these, or is about to: the stream's order makes them right.
        tokens[columns.carry_at.long()] = self._last_token[columns.carry_slot.long()]
        blocks = -(-host.longest // self._cache.block_size)
        tables = self._block_table[columns.row_slot.long(), :blocks]
        attention = self._model.attention.prepare(tables, host.position, host.count)
        logits = self._model.forward(tokens, columns.positions.long(), columns.logits_at.long(), attention, self._cache)
        before_sampling()
        samples = len(host.sample_slot)
        if samples:
            slots = columns.sample_slot.long()
            token, status = self._sampler.sample(
                logits,
                slots,
                columns.sample_position.long(),
                self._sampler.needs_random(host.sample_slot),
                host.sample_slot,
            )
            self._last_token[slots] = token
            output.token[:samples] = token
            output.status[:samples] = status
