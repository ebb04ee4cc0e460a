"""A plan's columns as the device wants them: one buffer, one copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from gpu_worker.adjusted_rows import NO_ROW, AdjustedRows
from gpu_worker.adjustments import COUNTED, AdjustedSamples, StagedAdjustments
from gpu_worker.bad_words import StagedWords, word_places
from gpu_worker.device import Device
from gpu_worker.paged_columns import CARRIED, PagedShape, PagedStep, Samples, aligned, cut_tiles
from gpu_worker.sampler import StagedSettings
from protocol.messages import Note, Plan, RowFlag

_COLUMNS_OF_TOKENS = 6  # tokens, positions, carry_at, carry_slot; 2 of scores
# row_slot, logits_at, sample_slot, sample_position, listed_at; 7 of settings, 8 of adjusted
_COLUMNS_OF_ROWS = 20
_COLUMNS_OF_TABLES = 3
_COLUMNS_OF_NOTES = 3
_COLUMNS = 64
"""More than there are: each may take a few numbers more than it has."""

_NO_SLOT = np.zeros(0, np.uint32)
_NONE = np.zeros(0, np.int32)
_DECODE = np.uint8(RowFlag.CARRY | RowFlag.SAMPLE)

Column = NDArray[np.int32] | NDArray[np.uint32] | NDArray[np.signedinteger]


class PagedShapes(Protocol):
    """How long columns must be that paged kernels read: `PagedSteps`."""

    @property
    def padding(self) -> int:
        """The slot of padding."""

    @property
    def tile_tokens(self) -> int:
        """How many tokens of a row are a tile."""

    def decode_shape(self, rows: int) -> PagedShape:
        """As `PagedSteps.decode_shape`."""

    def mixed_shape(self, tokens: int, decode_rows: int, tiles: int) -> PagedShape:
        """As `PagedSteps.mixed_shape`."""


@dataclass(frozen=True, slots=True)
class HostColumns:
    """What the host itself needs of a plan to decide shapes; nothing of it is read back from the device.

    `position` and `count` are int32[rows]; `sample_slot` int32[samples].
    """

    position: NDArray[np.int32]
    count: NDArray[np.int32]
    sample_slot: NDArray[np.int32]
    longest: int  # positions that the longest row reaches, its own included
    adjusted_rows: int  # rows of the pool that have ever been given out
    listed: NDArray[np.uint8] | None  # uint8[samples]: how many log probabilities each wants; None if none wants any
    scored: NDArray[np.uint8] | None  # the same of each token that is scored, if any are


@dataclass(frozen=True, slots=True)
class TableEntries:
    """block_table[slot, index] = block; int32 [n] each."""

    slot: torch.Tensor
    index: torch.Tensor
    block: torch.Tensor


@dataclass(frozen=True, slots=True)
class TokenColumns:
    """A step's T tokens of R rows as torch's attention wants them, int32."""

    tokens: torch.Tensor  # [T], anything where a row carries
    positions: torch.Tensor  # [T]
    carry_at: torch.Tensor  # [C]: tokens[carry_at] = last_token[carry_slot]
    carry_slot: torch.Tensor  # [C]
    row_slot: torch.Tensor  # [R]


@dataclass(frozen=True, slots=True)
class ScoredTokens:
    """Tokens of prompts that are scored, int32 [N] each."""

    at: torch.Tensor  # behind which of the step's tokens each stands
    token: torch.Tensor


@dataclass(frozen=True, slots=True)
class StepColumns:
    """Views of the device's copy of one staged plan of S samples, all int32."""

    step: TokenColumns | PagedStep
    samples: Samples | None  # the last token of each row that samples; None: of a decode step, each is one
    tables: TableEntries | None  # if there are any that the step does not write itself
    settings: StagedSettings | None  # of the slots that begin with this step
    adjusting: StagedAdjustments | None  # of the slots among these whose logits are adjusted, if there are any
    words: StagedWords | None  # of several tokens that these may not say, if there are any
    adjusted: AdjustedSamples | None  # if there are any
    listed_at: torch.Tensor | None  # [L]: which samples' log probabilities are wanted, if any are
    scored: ScoredTokens | None  # if there are any


class StagingBuffer:
    """Host and device memory for one plan in flight; there are as many of these as plans in flight.

    It is filled again only after the answer to its last plan has been collected: then the step that read it is over.
    """

    def __init__(
        self,
        device: Device,
        max_tokens: int,
        slots: int,
        blocks: int,
        notes: int,
        rows: AdjustedRows,
        listed: NDArray[np.uint8],
        paged: PagedShapes | None = None,
    ) -> None:
        """Make room for any plan of `max_tokens` tokens over `slots` slots that gives out at most `blocks` blocks.

        It has at most `notes` notes. `rows` and `listed`, which has the number of log probabilities that each slot
        wants, are the same for all buffers, whose plans come in turn. `paged`: columns are for paged kernels.
        """
        self._rows, self._listed, self._paged = rows, listed, paged
        size = _COLUMNS_OF_TOKENS * max_tokens + _COLUMNS_OF_ROWS * slots + _COLUMNS_OF_TABLES * blocks
        if paged is not None:
            size += max(paged.decode_shape(slots).size, paged.mixed_shape(max_tokens, slots, max_tokens).size)
        size += _COLUMNS_OF_NOTES * notes + _COLUMNS * aligned(1)
        self._host = device.host_buffer(size, torch.int32)
        self._device = torch.zeros(size, dtype=torch.int32, device=device.torch_device)
        self._numpy: NDArray[np.int32] = self._host.numpy()
        self._used = 0

    def stage(self, plan: Plan) -> tuple[HostColumns, StepColumns]:
        """Write a plan's columns into the host's half; `copy` brings them over."""
        self._used = 0
        position, count = plan.position.view(np.int32), plan.count.view(np.int32)
        adjusting, words = self._adjusting(plan) if len(plan.begin_slot) else (None, None)
        if len(plan.begin_slot):
            self._listed[plan.begin_slot] = 0 if plan.listed is None else plan.listed
        step: TokenColumns | PagedStep
        if self._paged is not None and (plan.flags == _DECODE).all():
            step, samples, sample_slot = self._decode(plan, self._paged), None, plan.slot.view(np.int32)
        else:
            ends = np.cumsum(count, dtype=np.int32)
            sampled = np.flatnonzero(plan.flags & RowFlag.SAMPLE)
            step = self._tokens(plan, ends) if self._paged is None else self._mixed(plan, ends, self._paged)
            sample_slot = plan.slot[sampled].view(np.int32)
            where = position[sampled] + count[sampled]
            samples = Samples(self._put(sample_slot), self._put(where), at=self._put(ends[sampled] - 1))
        listed = self._listed[sample_slot]
        listed_at = np.flatnonzero(listed)
        scored, entries = (None, None) if plan.scored is None else self._scored(plan)
        columns = StepColumns(
            step=step,
            samples=samples,
            tables=self._tables(plan, step) if len(plan.table_slot) else None,
            settings=self._settings(plan) if len(plan.begin_slot) else None,
            adjusting=adjusting,
            words=words,
            adjusted=self._adjusted(sample_slot.view(np.uint32)) if self._rows.most else None,
            listed_at=self._put(listed_at) if len(listed_at) else None,
            scored=scored,
        )
        longest = int((position + count).max()) if len(count) else 0
        wanted = listed if len(listed_at) else None
        return HostColumns(position, count, sample_slot, longest, self._rows.most, wanted, entries), columns

    def copy(self) -> None:
        """Bring what was staged to the device; runs on the copy-in stream."""
        self._device[: self._used].copy_(self._host[: self._used], non_blocking=True)

    def _decode(self, plan: Plan, paged: PagedShapes) -> PagedStep:
        rows = len(plan.slot)
        shape = paged.decode_shape(rows)
        begin = self._used
        self._new_blocks(plan, shape, paged)
        self._pad(_NONE, shape.tokens, CARRIED)
        self._pad(plan.position, shape.tokens, 0)
        self._pad(plan.slot, shape.tokens, paged.padding)
        self._pad(plan.position + 1, shape.tokens, 0)
        return PagedStep(shape, self._device[begin : self._used])

    def _mixed(self, plan: Plan, ends: NDArray[np.int32], paged: PagedShapes) -> PagedStep:
        position, count = plan.position.view(np.int32), plan.count.view(np.int32)
        first = ends - count
        single, several = np.flatnonzero(count == 1), np.flatnonzero(count > 1)
        of, offset, length = cut_tiles(count[several], paged.tile_tokens)
        row = several[of]
        shape = paged.mixed_shape(int(ends[-1]) if len(ends) else 0, len(single), len(row))
        begin = self._used
        self._new_blocks(plan, shape, paged)
        self._pad(self._own_tokens(plan, ends, CARRIED), shape.tokens, CARRIED)
        self._pad(_positions(position, count, ends), shape.tokens, 0)
        self._pad(np.repeat(plan.slot, count), shape.tokens, paged.padding)
        self._pad(first[single], shape.decode_rows, 0)
        self._pad(plan.slot[single], shape.decode_rows, paged.padding)
        self._pad(position[single] + 1, shape.decode_rows, 0)
        tiles = shape.tiles or 0
        self._pad(first[row] + offset, tiles, 0)
        self._pad(length, tiles, 0)
        self._pad(plan.slot[row], tiles, paged.padding)
        self._pad(position[row] + offset, tiles, 0)
        return PagedStep(shape, self._device[begin : self._used])

    def _tokens(self, plan: Plan, ends: NDArray[np.int32]) -> TokenColumns:
        position, count = plan.position.view(np.int32), plan.count.view(np.int32)
        carried = np.flatnonzero(plan.flags & RowFlag.CARRY)
        return TokenColumns(
            tokens=self._put(self._own_tokens(plan, ends, 0)),
            positions=self._put(_positions(position, count, ends)),
            carry_at=self._put((ends - count)[carried]),
            carry_slot=self._put(plan.slot[carried]),
            row_slot=self._put(plan.slot),
        )

    def _own_tokens(self, plan: Plan, ends: NDArray[np.int32], carried: int) -> NDArray[np.int32]:
        """Return a step's tokens, with `carried` in the place of each that is not in the plan."""
        tokens = np.full(int(ends[-1]) if len(ends) else 0, carried, np.int32)
        if len(plan.token):
            own = np.ones(len(tokens), bool)
            own[ends[np.flatnonzero(plan.flags & RowFlag.CARRY)] - 1] = False  # such a row has exactly one token
            tokens[own] = plan.token
        return tokens

    def _new_blocks(self, plan: Plan, shape: PagedShape, paged: PagedShapes) -> None:
        fits = len(plan.table_slot) <= shape.tokens
        self._pad(plan.table_slot if fits else _NONE, shape.tokens, paged.padding)
        self._pad(plan.table_index if fits else _NONE, shape.tokens, 0)
        self._pad(plan.table_block if fits else _NONE, shape.tokens, 0)

    def _tables(self, plan: Plan, step: TokenColumns | PagedStep) -> TableEntries | None:
        if isinstance(step, PagedStep) and len(plan.table_slot) <= step.shape.tokens:
            return None
        return TableEntries(self._put(plan.table_slot), self._put(plan.table_index), self._put(plan.table_block))

    def _settings(self, plan: Plan) -> StagedSettings:
        return StagedSettings(
            slot=self._put(plan.begin_slot),
            temperature=self._put(plan.temperature.view(np.int32)),
            top_k=self._put(plan.top_k),
            top_p=self._put(plan.top_p.view(np.int32)),
            min_p=self._put(plan.min_p.view(np.int32)),
            seed_low=self._put(plan.seed.view(np.int32)[0::2]),
            seed_high=self._put(plan.seed.view(np.int32)[1::2]),
        )

    def _adjusting(self, plan: Plan) -> tuple[StagedAdjustments | None, StagedWords | None]:
        adjusting = plan.adjusting
        if adjusting is None:
            self._rows.begin(plan.begin_slot, _NO_SLOT, _NO_SLOT)
            return None, None
        owner = np.repeat(np.arange(len(adjusting.slot)), adjusting.notes)
        ends = adjusting.note == Note.WORD_END
        row = self._rows.begin(plan.begin_slot, adjusting.slot, adjusting.slot[owner[ends]])
        limited = np.zeros(len(row), np.int32)
        limited[owner[adjusting.note == Note.ALLOWED]] = 1
        order = np.argsort(adjusting.note, kind="stable")
        order = order[: np.count_nonzero(adjusting.note < len(COUNTED))]
        staged = StagedAdjustments(
            row=self._put(row),
            penalty=self._put(adjusting.penalty.view(np.int32)),
            free_from=self._put(adjusting.free_from),
            limited=self._put(limited),
            note_row=self._put(row[owner[order]]),
            note_token=self._put(adjusting.token[order]),
            bias=self._put(adjusting.bias.view(np.int32)),
            kinds=tuple(np.bincount(adjusting.note[order], minlength=len(COUNTED)).tolist()),
        )
        if not np.count_nonzero(ends):
            return staged, None
        words = (adjusting.note >= len(COUNTED)).nonzero()[0]
        place = word_places(adjusting.note[words], row[owner[words]])
        return staged, StagedWords(self._put(place), self._put(adjusting.token[words]))

    def _adjusted(self, slots: NDArray[np.uint32]) -> AdjustedSamples | None:
        row = self._rows.of(slots)
        at = np.flatnonzero(row != NO_ROW)
        if not len(at):
            return None
        return AdjustedSamples(self._put(at), self._put(row[at]), self._rows.any_worded(slots[at]))

    def _scored(self, plan: Plan) -> tuple[ScoredTokens, NDArray[np.uint8]] | tuple[None, None]:
        """Put the tokens that are scored; return them, and how many log probabilities each wants."""
        scoring = plan.scoring
        if scoring is None or not len(scoring.token):
            return None, None
        row, skipped, length, entries, token = scoring
        first = np.cumsum(plan.count, dtype=np.int64)[row] - plan.count[row] + skipped
        at = np.repeat(first - np.cumsum(length, dtype=np.int64) + length, length) + np.arange(len(token))
        return ScoredTokens(self._put(at), self._put(token)), np.repeat(entries, length).astype(np.uint8)

    def _put(self, column: Column) -> torch.Tensor:
        start, end = self._used, self._used + len(column)
        self._numpy[start:end] = column
        self._used += aligned(len(column))
        return self._device[start:end]

    def _pad(self, column: Column, length: int, padding: int) -> None:
        """Put a column, and padding behind it."""
        start, own = self._used, len(column)
        self._numpy[start : start + own] = column
        self._numpy[start + own : start + length] = padding
        self._used += aligned(length)


def _positions(position: NDArray[np.int32], count: NDArray[np.int32], ends: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the position of each of a step's tokens."""
    shift = np.repeat(position - (ends - count), count)
    found: NDArray[np.int32] = np.add(shift, np.arange(len(shift)), dtype=np.int32)
    return found
