"""One step on the device: carry-over, forward pass, sampling. Everything that lasts there is owned and written here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from gpu_worker.adjustments import Adjustments
from gpu_worker.attention import Attention, AttentionStep
from gpu_worker.device import Device
from gpu_worker.kv_cache import KVCache
from gpu_worker.logprobs import list_logprobs
from gpu_worker.model import Decoder
from gpu_worker.sampler import Sampler
from gpu_worker.staging import HostColumns, StepColumns
from protocol.logprobs import MOST_LOGPROBS
from protocol.messages import Plan

LISTED = 1 + MOST_LOGPROBS
"""Log probabilities of one sample, at most."""

if TYPE_CHECKING:
    from gpu_worker.decode_graphs import DecodeGraphs  # which needs Triton


class StepModel(Protocol):
    """What computes a step: the lean `Decoder`, or a `ForeignModel`."""

    @property
    def attention(self) -> Attention:
        """What prepares the step that `forward` gets."""

    def forward(
        self, tokens: Tensor, positions: Tensor, logits_at: Tensor, step: AttentionStep, cache: KVCache
    ) -> Tensor:
        """As `Decoder.forward`."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """One step's own device buffers for what it samples: token int64[slots], status uint8[slots].

    What is listed fills the beginning of the other two: L times the step's greatest number of entries, row after row.
    """

    token: torch.Tensor
    status: torch.Tensor
    listed_token: torch.Tensor  # int64 [slots * LISTED]
    logprob: torch.Tensor  # float32 [slots * LISTED]


class ModelRunner:
    """Model, KV cache, block tables, last tokens and sampling settings of `slots` slots."""

    def __init__(self, model: StepModel, cache: KVCache, slots: int, max_blocks: int, vocabulary: int) -> None:
        """Begin with empty tables; `max_blocks` is the length of a slot's block table."""
        self.device = cache.k[0].device
        self._model = model
        self.cache = cache
        self._sampler = Sampler(slots, self.device)
        self._adjustments = Adjustments(vocabulary, self.device)
        # One slot more than there are: padded rows have it, and its blocks are all block 0.
        self._block_table = torch.zeros((slots + 1, max_blocks), dtype=torch.int32, device=self.device)
        self._last_token = torch.zeros(slots + 1, dtype=torch.int64, device=self.device)
        self._slots = slots
        self._graphs: DecodeGraphs | None = None

    def new_output(self) -> StepOutput:
        """Return buffers for one step in flight."""
        return StepOutput(
            token=torch.zeros(self._slots, dtype=torch.int64, device=self.device),
            status=torch.zeros(self._slots, dtype=torch.uint8, device=self.device),
            listed_token=torch.zeros(self._slots * LISTED, dtype=torch.int64, device=self.device),
            logprob=torch.zeros(self._slots * LISTED, dtype=torch.float32, device=self.device),
        )

    def capture_graphs(self, device: Device, share: Callable[[float, str], None]) -> str:
        """Capture the decode step of each batch size; return in words what it took. The model must be able to."""
        from gpu_worker.decode_graphs import DecodeGraphs

        assert isinstance(self._model, Decoder)
        self._graphs = DecodeGraphs(self._model, self.cache, self._block_table, self._last_token)
        return self._graphs.capture(device, share)

    @property
    def size_for(self) -> Callable[[int], int] | None:
        """How long the columns of a pure decode step of so many rows must be; None if they are not wanted."""
        return None if self._graphs is None else self._graphs.size_for

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
            self._sampler.admit_staged(plan.begin_slot, plan.temperature, plan.top_k, plan.top_p, columns.settings)
        if columns.adjusting is not None:
            self._adjustments.begin(columns.adjusting, host.adjusted_rows)
        if self._graphs is not None and columns.decode is not None:
            self._decode(self._graphs, host, columns, columns.decode, output, before_sampling)
            return
        tokens = columns.tokens.long()
        # The step before has just sampled these, or is about to: the stream's order makes them right.
        tokens[columns.carry_at.long()] = self._last_token[columns.carry_slot.long()]
        blocks = -(-host.longest // self.cache.block_size)
        tables = self._block_table[columns.row_slot.long(), :blocks]
        attention = self._model.attention.prepare(tables, host.position, host.count)
        logits = self._model.forward(tokens, columns.positions.long(), columns.logits_at.long(), attention, self.cache)
        before_sampling()
        if len(host.sample_slot):
            self._sample(logits, host, columns, output)

    def _decode(
        self,
        graphs: DecodeGraphs,
        host: HostColumns,
        columns: StepColumns,
        rows: torch.Tensor,
        output: StepOutput,
        before_sampling: Callable[[], None],
    ) -> None:
        """Compute a step of one token a row, all of which carry and sample, by a graph; it ends with the likeliest."""
        decoded = graphs.run(rows)
        before_sampling()
        samples = len(host.sample_slot)
        eager = columns.adjusted is not None or columns.listed_at is not None
        if eager or self._sampler.needs_random(host.sample_slot):
            self._sample(decoded.logits[:samples], host, columns, output)
        else:
            output.token[:samples] = decoded.token[:samples]
            output.status[:samples] = decoded.status[:samples]

    def _sample(self, logits: Tensor, host: HostColumns, columns: StepColumns, output: StepOutput) -> None:
        samples, slots, positions = len(host.sample_slot), columns.sample_slot.long(), columns.sample_position.long()
        adjusted, listed = columns.adjusted, columns.listed_at
        own = None if listed is None else logits[listed.long()]  # as the model made them
        if adjusted is not None:
            at, row = adjusted.at.long(), adjusted.row.long()
            logits.index_copy_(0, at, self._adjustments.adjusted(logits[at], row, positions[at]))
        token, status = self._sampler.sample(
            logits, slots, positions, self._sampler.needs_random(host.sample_slot), host.sample_slot
        )
        if adjusted is not None:
            self._adjustments.count(row, token[at])
        if listed is not None and own is not None and host.listed is not None:
            entries = len(listed) * (width := int(host.listed.max()))
            tokens, logprobs = list_logprobs(own, token[listed.long()], width)
            output.listed_token[:entries] = tokens.view(-1)
            output.logprob[:entries] = logprobs.view(-1)
        self._last_token[slots] = token
        output.token[:samples] = token
        output.status[:samples] = status
