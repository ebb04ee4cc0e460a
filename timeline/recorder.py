"""Spans of one process, in a ring that is made once.

Off, `add` costs a test of a flag. On, a span is packed into 45 bytes of a buffer: no object stays alive for it, and a
ring that nobody empties forgets its oldest spans and counts them.
"""

from __future__ import annotations

import time
from struct import Struct
from typing import NamedTuple

import numpy as np

from protocol.messages import Plan, RowFlag, SpanKind, Spans

CAPACITY = 2**15
"""Spans that wait to be taken, 1.5 MiB: a second and more of the fastest process there is."""

MOST_AT_ONCE = 2**13
"""Spans in one message."""

_FIELDS = {
    "kind": "u1", "start": "<u8", "end": "<u8", "step": "<u8", "session": "<u4", "rows": "<u4", "tokens": "<u4",
    "decodes": "<u4", "wasted": "<u4",
}  # fmt: skip
_PACKED = Struct("<BQQQIIIII")
_DTYPE = np.dtype(list(_FIELDS.items()))
_LOWER_HALF = 2**32 - 1

nanoseconds = time.monotonic_ns
"""The clock of all spans: one for all processes of a host."""


class About(NamedTuple):
    """What a span was about; the fields are those of `Spans`."""

    step: int = 0
    session: int = 0
    rows: int = 0
    tokens: int = 0
    decodes: int = 0
    wasted: int = 0

    @classmethod
    def of(cls, session: int, step: int, rows: int = 0, tokens: int = 0, decodes: int = 0) -> About:
        """Return what to say of a step of a worker's session."""
        return cls(step, session & _LOWER_HALF, rows, tokens, decodes)


NOTHING = About()


class Recorder:
    """Takes spans by `add`, from one thread, and gives them by `take`, oldest first."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        """Be off, until somebody says otherwise; what was recorded can always be taken."""
        self.on = False
        self._ring = bytearray(capacity * _PACKED.size)
        self._capacity = capacity
        self._added = 0
        self._taken = 0
        self._columns = np.frombuffer(self._ring, _DTYPE)

    @property
    def crowded(self) -> bool:
        """Whether half of the ring waits to be taken."""
        return 2 * (self._added - self._taken) > self._capacity

    def add(self, kind: SpanKind, start: int, end: int | None = None, about: About = NOTHING) -> int:
        """Record a span from `start` to `end`, by default now.

        Returns its end, where the next one may begin; off, it returns `start` and does nothing.
        """
        if not self.on:
            return start
        if end is None:
            end = nanoseconds()
        _PACKED.pack_into(self._ring, self._added % self._capacity * _PACKED.size, kind, start, end, *about)
        self._added += 1
        return end

    def about(self, plan: Plan) -> About:
        """Return what its spans say of a step; off, nothing."""
        if not self.on:
            return NOTHING
        tokens = int(plan.count.sum(dtype=np.uint64))
        decodes = int(np.count_nonzero(plan.flags & np.uint8(RowFlag.CARRY)))
        return About.of(plan.session, plan.step, len(plan.slot), tokens, decodes)

    def take(self, clock_error: int = 0) -> Spans | None:
        """Return the oldest spans that were not taken yet, at most `MOST_AT_ONCE`; None if there are none."""
        lost = max(0, self._added - self._taken - self._capacity)
        self._taken += lost
        count = min(MOST_AT_ONCE, self._added - self._taken)
        if not count:
            return None
        which = np.arange(self._taken, self._taken + count) % self._capacity
        self._taken += count
        spans = self._columns[which]
        columns = {name: np.ascontiguousarray(spans[name]) for name in _FIELDS}
        return Spans(**columns, lost=lost, clock_error=clock_error)
