"""One step on the device: carry-over, forward pass, sampling. Everything that lasts there is owned and written here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from gpu_worker.adjustments import AdjustedSamples, Adjustments
from gpu_worker.attention import Attention, AttentionStep, TorchAttention
from gpu_worker.bad_words import BadWords
from gpu_worker.device import Device
from gpu_worker.kv_cache import KVCache
from gpu_worker.logprobs import SCORED_AT_A_TIME, list_logprobs, list_scores, score_size
from gpu_worker.model import Decoder
from gpu_worker.paged_columns import PagedStep, Samples
from gpu_worker.sampler import LOWER_HALF, Sampler, greedy, packed
from gpu_worker.staging import HostColumns, ScoredTokens, StepColumns, TableEntries, TokenColumns
from protocol.logprobs import MOST_LOGPROBS
from protocol.messages import Plan

if TYPE_CHECKING:
    from gpu_worker.paged_steps import Decoded, PagedSteps  # which needs Triton

LISTED = 1 + MOST_LOGPROBS
"""Log probabilities of one sample, at most."""


class StepModel(Protocol):
    """What computes a step: the lean `Decoder`, or a `ForeignModel`."""

    @property
    def attention(self) -> Attention:
        """What attends; `TorchAttention` prepares the step that `forward` gets."""

    def forward(
        self, tokens: Tensor, positions: Tensor, logits_at: Tensor, step: AttentionStep, cache: KVCache
    ) -> Tensor:
        """As `Decoder.forward`."""

    def forward_in_parts(
        self, tokens: Tensor, positions: Tensor, parts: Sequence[Tensor], step: AttentionStep, cache: KVCache
    ) -> Iterator[Tensor]:
        """As `Decoder.forward_in_parts`."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """One step's own device buffers for what it samples, and what it says of prompts.

    What is listed fills the beginning of the next two: L times the step's greatest number of entries, row after row. So
    does what is scored of the last.
    """

    sampled: torch.Tensor  # int64 [slots], `packed`
    listed_token: torch.Tensor  # int64 [slots * LISTED]
    logprob: torch.Tensor  # float32 [slots * LISTED]
    scores: torch.Tensor  # int32 [max_tokens * score_size(LISTED)], as `list_scores` makes them


class ModelRunner:
    """Model, KV cache, block tables, last tokens and sampling settings of `slots` slots."""

    def __init__(
        self, model: StepModel, cache: KVCache, slots: int, max_blocks: int, vocabulary: int, max_tokens: int
    ) -> None:
        """Begin with empty tables; `max_blocks` is the length of a slot's block table.

        A step has at most `max_tokens` tokens.
        """
        self.device = cache.k[0].device
        self._model = model
        self.cache = cache
        self._adjustments = Adjustments(vocabulary, self.device)
        self._bad_words = BadWords(self.device)
        # One slot more than there are: padded rows have it. It is greedy, and its blocks are all block 0.
        self._sampler = Sampler(slots + 1, self.device)
        self._block_table = torch.zeros((slots + 1, max_blocks), dtype=torch.int32, device=self.device)
        self._last_token = torch.zeros(slots + 1, dtype=torch.int64, device=self.device)
        self._slots, self._max_tokens = slots, max_tokens
        self.paged: PagedSteps | None = None  # if kernels over pages compute the steps

    def new_output(self) -> StepOutput:
        """Return buffers for one step in flight."""
        return StepOutput(
            sampled=torch.zeros(self._slots, dtype=torch.int64, device=self.device),
            listed_token=torch.zeros(self._slots * LISTED, dtype=torch.int64, device=self.device),
            logprob=torch.zeros(self._slots * LISTED, dtype=torch.float32, device=self.device),
            scores=torch.zeros(self._max_tokens * score_size(LISTED), dtype=torch.int32, device=self.device),
        )

    def use_paged_kernels(self, device: Device, share: Callable[[float, str], None], *, graphs: bool) -> str:
        """Have all steps computed by kernels over pages, for which the model must have been made.

        Everything is compiled, and captured if `graphs`; return in words what it took.
        """
        from gpu_worker.paged_steps import PagedSteps

        assert isinstance(self._model, Decoder)
        self.paged = PagedSteps(
            self._model, self.cache, self._block_table, self._last_token, self._sampler.settings, self._max_tokens,
            graphs=graphs,
        )  # fmt: skip
        self.paged.warm_up(device, share)
        return self.paged.capture(device, share) if graphs else "no CUDA graphs: kernels are launched one by one"

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
        if columns.tables is not None:
            self._write_tables(columns.tables)
        if columns.settings is not None:
            self._sampler.admit_staged(plan.begin_slot, plan.temperature, plan.top_k, plan.top_p, columns.settings)
        if columns.adjusting is not None:
            self._adjustments.begin(columns.adjusting, host.adjusted_rows)
            self._bad_words.begin(columns.adjusting.row, columns.words, host.adjusted_rows)
        scored = columns.scored
        if isinstance(columns.step, PagedStep):
            self._run_paged(columns.step, host, columns, output, before_sampling)
            if scored is not None:
                assert self.paged is not None
                self._score(map(self.paged.logits, scored.at.split(SCORED_AT_A_TIME)), scored, host, output)
            return
        assert columns.samples is not None
        logits, more = self._logits(host, columns.step, columns.samples, scored)
        before_sampling()
        if len(host.sample_slot):
            self._sample(logits, columns.samples, host, columns, output)
        if scored is not None:
            self._score(more, scored, host, output)

    def _run_paged(
        self,
        step: PagedStep,
        host: HostColumns,
        columns: StepColumns,
        output: StepOutput,
        before_sampling: Callable[[], None],
    ) -> None:
        assert self.paged is not None
        rows, samples = len(host.sample_slot), columns.samples
        decoded = self.paged.decode(step, rows) if samples is None else self.paged.mixed(step, samples)
        before_sampling()
        if not rows:
            return
        if any_random := self._sampler.needs_random(host.sample_slot):
            self.paged.draw(step, samples, decoded, cut=self._sampler.needs_cut(host.sample_slot))
        if columns.adjusted is not None:
            self._adjust(self.paged, decoded, samples or step.samples(rows), columns.adjusted, any_random)
        if columns.listed_at is not None:
            at = columns.listed_at.long()
            self._list(self.paged.scaled(decoded.logits[at]), decoded.sampled[at] & LOWER_HALF, host, output)
        output.sampled[:rows].copy_(decoded.sampled)

    def _adjust(
        self, paged: PagedSteps, decoded: Decoded, samples: Samples, adjusted: AdjustedSamples, any_random: bool
    ) -> None:
        """Sample those rows anew whose logits are adjusted, and only those: they must not change who is beside them."""
        at, row = adjusted.at.long(), adjusted.row.long()
        own = Samples(samples.slot[at], samples.position[at])
        logits = self._adjustments.adjusted(paged.scaled(decoded.logits[at]), row, own.position.long())
        if adjusted.worded:
            self._bad_words.ban(logits, row)
        sampled = packed(*greedy(logits))
        if any_random:
            paged.draw_from(logits, own, sampled, raw=False, cut=True)
        decoded.sampled.index_copy_(0, at, sampled)
        token = sampled & LOWER_HALF
        self._last_token[own.slot.long()] = token
        self._adjustments.count(row, token)
        if adjusted.worded:
            self._bad_words.follow(row, token)

    def _write_tables(self, entries: TableEntries) -> None:
        if self.paged is not None:
            self.paged.write_tables(entries.slot, entries.index, entries.block)
        else:
            self._block_table[entries.slot.long(), entries.index.long()] = entries.block

    def _logits(
        self, host: HostColumns, step: TokenColumns, samples: Samples, scored: ScoredTokens | None
    ) -> tuple[Tensor, Iterable[Tensor]]:
        """Compute a step up to its logits, float32 [S, vocabulary]; return them, and parts of those to score by."""
        attention, at = self._model.attention, samples.at
        assert isinstance(attention, TorchAttention)
        assert at is not None
        tokens = step.tokens.long()
        # The step before has just sampled these, or is about to: the stream's order makes them right.
        tokens[step.carry_at.long()] = self._last_token[step.carry_slot.long()]
        blocks = -(-host.longest // self.cache.block_size)
        tables = self._block_table[step.row_slot.long(), :blocks]
        prepared = attention.prepare(tables, host.position, host.count)
        positions = step.positions.long()
        if scored is None:
            return self._model.forward(tokens, positions, at.long(), prepared, self.cache), ()
        parts = (at.long(), *scored.at.long().split(SCORED_AT_A_TIME))
        logits = self._model.forward_in_parts(tokens, positions, parts, prepared, self.cache)
        return next(logits), logits

    def _sample(
        self, logits: Tensor, samples: Samples, host: HostColumns, columns: StepColumns, output: StepOutput
    ) -> None:
        slots, positions = samples.slot.long(), samples.position.long()
        adjusted, listed = columns.adjusted, columns.listed_at
        own = None if listed is None else logits[listed.long()]  # as the model made them
        if adjusted is not None:
            at, row = adjusted.at.long(), adjusted.row.long()
            changed = self._adjustments.adjusted(logits[at], row, positions[at])
            if adjusted.worded:
                self._bad_words.ban(changed, row)
            logits.index_copy_(0, at, changed)
        token, status = self._sampler.sample(
            logits, slots, positions, self._sampler.needs_random(host.sample_slot), host.sample_slot
        )
        if adjusted is not None:
            self._adjustments.count(row, token[at])
            if adjusted.worded:
                self._bad_words.follow(row, token[at])
        if listed is not None and own is not None:
            self._list(own, token[listed.long()], host, output)
        self._last_token[slots] = token
        output.sampled[: len(slots)].copy_(packed(token, status))

    def _list(self, logits: Tensor, token: Tensor, host: HostColumns, output: StepOutput) -> None:
        """Put out the log probabilities that are wanted of some rows; `logits` as the model made them."""
        assert host.listed is not None
        entries = len(token) * (width := int(host.listed.max()))
        tokens, logprobs = list_logprobs(logits, token, width)
        output.listed_token[:entries] = tokens.view(-1)
        output.logprob[:entries] = logprobs.view(-1)

    def _score(self, parts: Iterable[Tensor], scored: ScoredTokens, host: HostColumns, output: StepOutput) -> None:
        """Put out what is said of prompts' tokens; `parts` are the logits before them, as the model made them."""
        assert host.scored is not None
        width, token, done = int(host.scored.max()), scored.token.long(), 0
        scores = output.scores[: len(token) * score_size(width)].view(len(token), -1)
        for logits in parts:
            some = slice(done, done + len(logits))
            scores[some] = list_scores(logits, token[some], width)
            done += len(logits)
