"""Writes the rows of one plan, once everything about it has been decided."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocol.messages import MOST_NOTES, Opened, Plan, RowFlag, Submit
from scheduler_proc.adjustments import adjustment_columns, most_notes
from scheduler_proc.in_flight import InFlight, SentPlan
from scheduler_proc.request import Request
from scheduler_proc.slots import SlotTable

_DECODE = np.uint8(RowFlag.CARRY | RowFlag.SAMPLE)
_NONE = np.zeros(0, np.int32)


class PlanBuilder:
    """Collects decode rows first, then prompt chunks; `build` makes the message and the record of what was sent."""

    def __init__(self, slots: SlotTable, worker: Opened) -> None:
        """Begin a plan without rows."""
        self._slots = slots
        self._end_tokens = worker.eos_token_ids
        self._room_for_notes = worker.max_model_len + MOST_NOTES
        self._decode = _NONE
        self._decode_position = _NONE
        self._chunks: list[tuple[int, int, int, int]] = []  # slot, position, count, flags
        self._tokens: list[NDArray[np.uint32]] = []
        self._tables: list[tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]] = []
        self.table_entries = 0
        self._begins: list[Request] = []

    def decode(self, slots: NDArray[np.int32]) -> None:
        """Add one row for each of `slots`, int32[n], that takes its last token, known yet or not."""
        self._decode = slots
        self._decode_position = self._slots.planned_len[slots]

    def chunk(self, slot: int, count: int, tokens: NDArray[np.uint32]) -> None:
        """Add the next `count` of a prefilling request's `tokens` (all that are known, u4[known_len])."""
        position = int(self._slots.planned_len[slot])
        stop = position + count
        self._chunks.append((slot, position, count, RowFlag.SAMPLE if stop == len(tokens) else 0))
        self._tokens.append(tokens[position:stop])

    def table(self, slots: NDArray[np.int32], indices: NDArray[np.int32], blocks: NDArray[np.int32]) -> None:
        """Add block table entries: table[slots[i]][indices[i]] = blocks[i]."""
        self._tables.append((slots, indices, blocks))
        self.table_entries += len(blocks)

    def has_room_for(self, request: Request) -> bool:
        """Whether what is noted of a request's tokens fits into this plan; into one of its own it always does."""
        return most_notes(request, self._end_tokens) <= self._room_for_notes

    def begin(self, request: Request) -> None:
        """Add the sampling settings of a request that has just got its slot."""
        self._begins.append(request)
        self._room_for_notes -= most_notes(request, self._end_tokens)

    @property
    def empty(self) -> bool:
        """Whether there is no row."""
        return not (len(self._decode) or self._chunks)

    def build(self, session: int, in_flight: InFlight) -> tuple[Plan, SentPlan]:
        """Return the plan for the next step of a worker's `session`, and what to remember of it."""
        slots = self._slots
        row_slot, position = self._decode, self._decode_position
        count = np.ones(len(row_slot), np.int32)
        flags = np.full(len(row_slot), _DECODE)
        if self._chunks:
            chunks = np.array(self._chunks, np.int32)
            row_slot = np.concatenate((row_slot, chunks[:, 0]))
            position = np.concatenate((position, chunks[:, 1]))
            count = np.concatenate((count, chunks[:, 2]))
            flags = np.concatenate((flags, chunks[:, 3].astype(np.uint8)))
        asks = [request.ask for request in self._begins]
        plan = Plan(
            session=session,
            step=in_flight.last_step + 1,
            settled=in_flight.last_settled,
            slot=_unsigned(row_slot),
            position=_unsigned(position),
            count=_unsigned(count),
            flags=flags,
            token=np.concatenate(self._tokens) if self._tokens else np.zeros(0, np.uint32),
            table_slot=_joined([change[0] for change in self._tables]),
            table_index=_joined([change[1] for change in self._tables]),
            table_block=_joined([change[2] for change in self._tables]),
            begin_slot=np.array([request.slot for request in self._begins], np.uint32),
            temperature=np.array([ask.temperature for ask in asks], np.float32),
            top_k=np.array([ask.top_k for ask in asks], np.uint32),
            top_p=np.array([ask.top_p for ask in asks], np.float32),
            min_p=np.array([ask.min_p for ask in asks], np.float32),
            seed=np.array([ask.seed for ask in asks], np.uint64),
            listed=_listed(asks),
            **adjustment_columns(self._begins, self._end_tokens),
        )
        sampled: NDArray[np.intp] | slice = slice(None)
        samples = len(row_slot)
        if self._chunks:
            sampled = np.flatnonzero(flags & RowFlag.SAMPLE)
            samples = len(sampled)
        return plan, SentPlan(plan.step, row_slot, slots.epoch[row_slot], position + count, sampled, samples)


def _listed(asks: list[Submit]) -> NDArray[np.uint8] | None:
    wanted = [0 if ask.logprobs is None else 1 + ask.logprobs for ask in asks]
    return np.array(wanted, np.uint8) if any(wanted) else None


def _unsigned(column: NDArray[np.int32]) -> NDArray[np.uint32]:
    return column.view(np.uint32)


def _joined(columns: list[NDArray[np.int32]]) -> NDArray[np.uint32]:
    if not columns:
        return np.zeros(0, np.uint32)
    return _unsigned(columns[0] if len(columns) == 1 else np.concatenate(columns))
