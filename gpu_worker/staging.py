"""A plan's columns as the device wants them: one buffer, one copy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gpu_worker.device import Device
from protocol.messages import Plan, RowFlag

_COLUMNS_OF_TOKENS = 4  # tokens, positions, carry_at, carry_slot
_COLUMNS_OF_ROWS = 4  # row_slot, logits_at, sample_slot, sample_position
_COLUMNS_OF_TABLES = 3


@dataclass(frozen=True, slots=True)
class HostColumns:
    """What the host itself needs of a plan to decide shapes; nothing of it is read back from the device.

    `position` and `count` are int32[rows]; `sample_slot` int32[samples].
    """

    position: NDArray[np.int32]
    count: NDArray[np.int32]
    sample_slot: NDArray[np.int32]
    longest: int  # positions that the longest row reaches, its own included


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


class StagingBuffer:
    """Host and device memory for one plan in flight; there are as many of these as plans in flight.

    It is filled again only after the answer to its last plan has been collected: then the step that read it is over.
    """

    def __init__(self, device: Device, max_tokens: int, slots: int, blocks: int) -> None:
        """Make room for any plan of `max_tokens` tokens over `slots` slots that gives out at most `blocks` blocks."""
        size = _COLUMNS_OF_TOKENS * max_tokens + _COLUMNS_OF_ROWS * slots + _COLUMNS_OF_TABLES * blocks
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
        )
        longest = int((position + count).max()) if len(count) else 0
        return HostColumns(position, count, sample_slot, longest), columns

    def copy(self) -> None:
        """Bring what was staged to the device; runs on the copy-in stream."""
        self._device[: self._used].copy_(self._host[: self._used], non_blocking=True)

    def _put(self, column: NDArray[np.int32] | NDArray[np.uint32] | NDArray[np.intp]) -> torch.Tensor:
        start, self._used = self._used, self._used + len(column)
        self._numpy[start : self._used] = column
        return self._device[start : self._used]
