"""A plan's columns as the device wants them: one buffer, one copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gpu_worker.adjusted_rows import NO_ROW, AdjustedRows
from gpu_worker.adjustments import AdjustedSamples, StagedAdjustments
from gpu_worker.device import Device
from gpu_worker.sampler import StagedSettings
from protocol.messages import Note, Plan, RowFlag

_COLUMNS_OF_TOKENS = 4  # tokens, positions, carry_at, carry_slot
# row_slot, logits_at, sample_slot, sample_position, listed_at; 2 of decode, 7 of settings, 8 of adjusted
_COLUMNS_OF_ROWS = 22
_COLUMNS_OF_TABLES = 3
_COLUMNS_OF_NOTES = 3

_NO_SLOT = np.zeros(0, np.uint32)
_DECODE = np.uint8(RowFlag.CARRY | RowFlag.SAMPLE)


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


@dataclass(frozen=True, slots=True)
class StepColumns:
    """Views of the device's copy of one staged plan, all int32; T tokens, R rows, S samples, B table entries."""

    tokens: torch.Tensor  # [T], anything where a row carries
    positions: torch.Tensor  # [T]
    carry_at: torch.Tensor  # [C]: tokens[carry_at] = last_token[carry_slot]
    carry_slot: torch.Tensor  # [C]
    row_slot: torch.Tensor  # [R]
    logits_at: torch.Tensor  # [S]: the last token of each row that samples
    sample_slot: torch.Tensor  # [S]
    sample_position: torch.Tensor  # [S]: where the sampled token will stand
    table_slot: torch.Tensor  # [B]: block_table[table_slot, table_index] = table_block
    table_index: torch.Tensor
    table_block: torch.Tensor
    settings: StagedSettings  # of the slots that begin with this step
    adjusting: StagedAdjustments | None  # of the slots among these whose logits are adjusted, if there are any
    adjusted: AdjustedSamples | None  # if there are any
    listed_at: torch.Tensor | None  # [L]: which samples' log probabilities are wanted, if any are
    decode: torch.Tensor | None  # [2, size]: slots and positions of a pure decode step's rows, and padding behind them


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
        size_for: Callable[[int], int] | None = None,
    ) -> None:
        """Make room for any plan of `max_tokens` tokens over `slots` slots that gives out at most `blocks` blocks.

        It has at most `notes` notes. `rows` and `listed`, which has the number of log probabilities that each slot
        wants, are the same for all buffers, whose plans come in turn.
        `size_for` says how long the columns of a pure decode step of so many rows are to be, if it wants them at all.
        """
        self._slots, self._rows, self._listed, self._size_for = slots, rows, listed, size_for
        size = _COLUMNS_OF_TOKENS * max_tokens + _COLUMNS_OF_ROWS * slots + _COLUMNS_OF_TABLES * blocks
        size += _COLUMNS_OF_NOTES * notes
        self._host = device.host_buffer(size, torch.int32)
        self._device = torch.zeros(size, dtype=torch.int32, device=device.torch_device)
        self._numpy: NDArray[np.int32] = self._host.numpy()
        self._used = 0

    def stage(self, plan: Plan) -> tuple[HostColumns, StepColumns]:
        """Write a plan's columns into the host's half; `copy` brings them over."""
        position, count = plan.position.view(np.int32), plan.count.view(np.int32)
        ends = np.cumsum(count, dtype=np.int32)
        firsts = ends - count
        sampled = np.flatnonzero(plan.flags & RowFlag.SAMPLE)
        carried = np.flatnonzero(plan.flags & RowFlag.CARRY)
        total = int(ends[-1]) if len(ends) else 0
        tokens = np.zeros(total, np.int32)
        if len(plan.token):
            own = np.ones(total, bool)
            own[firsts[carried]] = False  # a row that carries has exactly one token
            tokens[own] = plan.token
        sample_slot = plan.slot[sampled].view(np.int32)
        self._used = 0
        adjusting = self._adjusting(plan) if len(plan.begin_slot) else None
        if len(plan.begin_slot):
            self._listed[plan.begin_slot] = 0 if plan.listed is None else plan.listed
        listed = self._listed[sample_slot]
        listed_at = np.flatnonzero(listed)
        columns = StepColumns(
            tokens=self._put(tokens),
            positions=self._put(np.arange(total, dtype=np.int32) + np.repeat(position - firsts, count)),
            carry_at=self._put(firsts[carried]),
            carry_slot=self._put(plan.slot[carried]),
            row_slot=self._put(plan.slot),
            logits_at=self._put(ends[sampled] - 1),
            sample_slot=self._put(sample_slot),
            sample_position=self._put(position[sampled] + count[sampled]),
            table_slot=self._put(plan.table_slot),
            table_index=self._put(plan.table_index),
            table_block=self._put(plan.table_block),
            settings=StagedSettings(
                slot=self._put(plan.begin_slot),
                temperature=self._put(plan.temperature.view(np.int32)),
                top_k=self._put(plan.top_k),
                top_p=self._put(plan.top_p.view(np.int32)),
                min_p=self._put(plan.min_p.view(np.int32)),
                seed_low=self._put(plan.seed.view(np.int32)[0::2]),
                seed_high=self._put(plan.seed.view(np.int32)[1::2]),
            ),
            adjusting=adjusting,
            adjusted=self._adjusted(plan.slot[sampled]) if self._rows.most else None,
            listed_at=self._put(listed_at) if len(listed_at) else None,
            decode=self._decode(plan) if (plan.flags == _DECODE).all() else None,
        )
        longest = int((position + count).max()) if len(count) else 0
        wanted = listed if len(listed_at) else None
        return HostColumns(position, count, sample_slot, longest, self._rows.most, wanted), columns

    def copy(self) -> None:
        """Bring what was staged to the device; runs on the copy-in stream."""
        self._device[: self._used].copy_(self._host[: self._used], non_blocking=True)

    def _decode(self, plan: Plan) -> torch.Tensor | None:
        if self._size_for is None:
            return None
        rows, size = len(plan.slot), self._size_for(len(plan.slot))
        start = self._used
        padded = self._numpy[start : start + 2 * size].reshape(2, size)
        padded[0, :rows], padded[0, rows:] = plan.slot, self._slots
        padded[1, :rows], padded[1, rows:] = plan.position, 0
        self._used += 2 * size
        return self._device[start : self._used].view(2, size)

    def _adjusting(self, plan: Plan) -> StagedAdjustments | None:
        adjusting = plan.adjusting
        row = self._rows.begin(plan.begin_slot, _NO_SLOT if adjusting is None else adjusting.slot)
        if adjusting is None:
            return None
        owner = np.repeat(np.arange(len(row)), adjusting.notes)
        limited = np.zeros(len(row), np.int32)
        limited[owner[adjusting.note == Note.ALLOWED]] = 1
        order = np.argsort(adjusting.note, kind="stable")
        return StagedAdjustments(
            row=self._put(row),
            penalty=self._put(adjusting.penalty.view(np.int32)),
            free_from=self._put(adjusting.free_from),
            limited=self._put(limited),
            note_row=self._put(row[owner[order]]),
            note_token=self._put(adjusting.token[order]),
            bias=self._put(adjusting.bias.view(np.int32)),
            kinds=tuple(np.bincount(adjusting.note, minlength=len(Note)).tolist()),
        )

    def _adjusted(self, slots: NDArray[np.uint32]) -> AdjustedSamples | None:
        row = self._rows.of(slots)
        at = np.flatnonzero(row != NO_ROW)
        return AdjustedSamples(self._put(at), self._put(row[at])) if len(at) else None

    def _put(self, column: NDArray[np.int32] | NDArray[np.uint32] | NDArray[np.intp]) -> torch.Tensor:
        start, self._used = self._used, self._used + len(column)
        self._numpy[start : self._used] = column
        return self._device[start : self._used]
