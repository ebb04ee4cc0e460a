"""Writes the rows of one plan, once everything about it has been decided."""

from __future__ import annotations

from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from protocol.messages import MOST_NOTES, Opened, Plan, RowFlag
from scheduler_proc.adjustments import adjustment_columns, most_notes
from scheduler_proc.in_flight import InFlight, SentPlan
from scheduler_proc.request import Request
from scheduler_proc.slots import SlotTable

_DECODE = np.uint8(RowFlag.CARRY | RowFlag.SAMPLE)
_NO_SLOTS = np.zeros(0, np.intp)
_NO_POSITIONS = np.zeros(0, np.int32)
_NO_TOKENS = np.zeros(0, np.uint32)


class _Settings(TypedDict):
    """The columns of a plan that say how to sample those who begin."""

    begin_slot: NDArray[np.uint32]
    temperature: NDArray[np.float32]
    top_k: NDArray[np.uint32]
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]
    seed: NDArray[np.uint64]
    listed: NDArray[np.uint8] | None


def _settings(begins: list[Request]) -> _Settings:
    asks = [request.ask for request in begins]
    listed = [0 if ask.logprobs is None else 1 + ask.logprobs for ask in asks]
    return _Settings(
        begin_slot=np.array([request.slot for request in begins], np.uint32),
        temperature=np.array([ask.temperature for ask in asks], np.float32),
        top_k=np.array([ask.top_k for ask in asks], np.uint32),
        top_p=np.array([ask.top_p for ask in asks], np.float32),
        min_p=np.array([ask.min_p for ask in asks], np.float32),
        seed=np.array([ask.seed for ask in asks], np.uint64),
        listed=np.array(listed, np.uint8) if any(listed) else None,
    )


_NO_SETTINGS = _settings([])


class PlanBuilder:
    """Collects decode rows first, then prompt chunks; `build` makes the message and the record of what was sent."""

    def __init__(self, slots: SlotTable, worker: Opened) -> None:
        """Begin a plan without rows."""
        self._slots = slots
        self._end_tokens = worker.eos_token_ids
        self._room_for_notes = worker.max_model_len + MOST_NOTES
        self._decode = _NO_SLOTS
        self._decode_position = _NO_POSITIONS
        self._chunks: list[tuple[int, int, int, int]] = []  # slot, position, count, flags
        self._tokens: list[NDArray[np.uint32]] = []
        self._scored: list[tuple[int, int, int, int]] = []  # as `Scoring`, but rows count from the first chunk
        self._successors: list[NDArray[np.uint32]] = []
        self._tables: list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]] = []
        self.table_entries = 0
        self._begins: list[Request] = []

    def decode(self, slots: NDArray[np.intp]) -> None:
        """Add one row for each of `slots`, intp[n], that takes its last token, known yet or not."""
        self._decode = slots
        self._decode_position = self._slots.planned_len[slots]

    def chunk(self, slot: int, count: int, tokens: NDArray[np.uint32]) -> None:
        """Add the next `count` of a prefilling request's `tokens` (all that are known, u4[known_len])."""
        position = int(self._slots.planned_len[slot])
        stop = position + count
        self._chunks.append((slot, position, count, RowFlag.SAMPLE if stop == len(tokens) else 0))
        self._tokens.append(tokens[position:stop])

    def score(self, request: Request, start: int, stop: int) -> None:
        """Have the prompt's tokens scored behind the inputs [start, stop) of the chunk just added, if not yet done.

        The last of them may be the first token of the next chunk. What stands behind the prompt is no part of it.
        """
        ask, first = request.ask, max(start, request.scored)
        last = min(stop, request.to_score)
        if first < last:
            assert ask.prompt_logprobs is not None
            self._scored.append((len(self._chunks) - 1, first - start, last - first, 1 + ask.prompt_logprobs))
            self._successors.append(ask.prompt[first + 1 : last + 1])

    def table(self, slots: NDArray[np.intp], indices: NDArray[np.integer[Any]], blocks: NDArray[np.int32]) -> None:
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
        slots, position = self._decode, self._decode_position
        count = np.ones(len(slots), np.int32)
        flags = np.full(len(slots), _DECODE)
        sampled: NDArray[np.intp] | slice = slice(None)
        samples = len(slots)
        if self._chunks:
            chunks = np.array(self._chunks, np.int32)
            slots = np.concatenate((slots, chunks[:, 0]))
            position = np.concatenate((position, chunks[:, 1]))
            count = np.concatenate((count, chunks[:, 2]))
            flags = np.concatenate((flags, chunks[:, 3].astype(np.uint8)))
            sampled = np.flatnonzero(flags & RowFlag.SAMPLE)
            samples = len(sampled)
        scored = [(len(self._decode) + chunk, *rest) for chunk, *rest in self._scored]
        plan = Plan(
            session=session,
            step=in_flight.last_step + 1,
            settled=in_flight.last_settled,
            slot=slots.astype(np.uint32),
            position=position.view(np.uint32),
            count=count.view(np.uint32),
            flags=flags,
            token=np.concatenate(self._tokens) if self._tokens else _NO_TOKENS,
            table_slot=_joined([change[0] for change in self._tables]),
            table_index=_joined([change[1] for change in self._tables]),
            table_block=_joined([change[2] for change in self._tables]),
            **(_settings(self._begins) if self._begins else _NO_SETTINGS),
            **adjustment_columns(self._begins, self._end_tokens),
            scored=np.array(scored, np.uint32).reshape(-1) if scored else None,
            scored_token=np.concatenate(self._successors) if scored else None,
        )
        in_rows = tuple((row, count) for row, _, count, _ in scored)
        epochs = self._slots.epoch[slots]
        return plan, SentPlan(plan.step, slots, epochs, position + count, sampled, samples, in_rows)


def _joined(columns: list[NDArray[Any]]) -> NDArray[np.uint32]:
    return np.concatenate(columns, dtype=np.uint32, casting="unsafe") if columns else _NO_TOKENS
