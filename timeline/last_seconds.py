"""What the live page shows: the last seconds, cut into bins."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from protocol.messages import Load, SpanKind, Spans, View
from timeline.intervals import Intervals, Times, joined, union
from timeline.member import Member

SHOWN_SECONDS = 6.0
BIN_NANOSECONDS = 5_000_000
LATE_NANOSECONDS = 500_000_000
"""The view ends so long before now: what was done since then is mostly not told yet."""

SECOND = 1_000_000_000
MOST_SPANS = 2**19
"""Kept of one member at most."""

_DEVICE = (SpanKind.FORWARD, SpanKind.SAMPLE)
_BLOCKED = (SpanKind.WAIT, SpanKind.IDLE)
_ON_DEVICE = (SpanKind.COPY_IN, *_DEVICE, SpanKind.COPY_OUT)


@dataclass(slots=True)
class _Recent:
    """The newest spans of one member."""

    role: str
    pieces: deque[tuple[NDArray[np.uint8], Times, Times]] = field(default_factory=deque)
    spans: int = 0
    loads: deque[tuple[int, Load]] = field(default_factory=deque)  # with when it was, by our clock

    def forget_before(self, clock: int) -> None:
        while self.pieces and (self.spans > MOST_SPANS or int(self.pieces[0][2].max()) < clock):
            self.spans -= len(self.pieces.popleft()[0])
        while self.loads and self.loads[0][0] < clock:
            self.loads.popleft()

    def stretches(self, kinds: tuple[SpanKind, ...], *, others: bool = False) -> tuple[Times, Times]:
        """Return starts and ends of the spans of these kinds, or of all others, as they came."""
        if not self.pieces:
            none = np.zeros(0, np.int64)
            return none, none
        kind, start, end = (np.concatenate(columns) for columns in zip(*self.pieces, strict=True))
        wanted = np.isin(kind, kinds, invert=others)
        return start[wanted], end[wanted]


class LastSeconds:
    """Keeps what members told lately, and makes views of it."""

    def __init__(self) -> None:
        """Begin empty."""
        self._members: dict[int, _Recent] = {}

    def take(self, member: Member, news: Spans | Load, clock: int) -> None:
        """Keep what a member has told at `clock`."""
        recent = self._members.setdefault(member.number, _Recent(member.joined.role))
        if isinstance(news, Load):
            recent.loads.append((news.time + member.offset, news))
        else:
            start, end = (column.astype(np.int64) + member.offset for column in (news.start, news.end))
            if len(start):
                recent.pieces.append((news.kind, start, end))
                recent.spans += len(start)
        recent.forget_before(clock - int(SHOWN_SECONDS * SECOND) - LATE_NANOSECONDS)

    def clear(self) -> None:
        """Forget everything: nobody looks any more."""
        self._members.clear()

    def view(self, clock: int) -> View:
        """Return the view at `clock`; shares of several devices are averaged."""
        newest = (clock - LATE_NANOSECONDS) // BIN_NANOSECONDS * BIN_NANOSECONDS
        edges = np.arange(newest - int(SHOWN_SECONDS * SECOND), newest + 1, BIN_NANOSECONDS)
        for recent in self._members.values():
            recent.forget_before(int(edges[0]))
        workers = [recent for recent in self._members.values() if recent.role == "worker" and recent.pieces]
        schedulers = [recent for recent in self._members.values() if recent.role == "scheduler"]
        scheduler = joined([union(*each.stretches(_BLOCKED, others=True)) for each in schedulers])
        host = joined([union(*each.stretches((*_BLOCKED, *_ON_DEVICE), others=True)) for each in workers])
        work = joined([scheduler, host])
        device, both = np.zeros(len(edges) - 1), np.zeros(len(edges) - 1)
        for worker in workers:
            computed = union(*worker.stretches(_DEVICE))
            alone = _in_bins(computed, edges)
            device += alone / len(workers)
            # What is in both is what is in each, less what is in either.
            both += (alone + _in_bins(work, edges) - _in_bins(joined([computed, work]), edges)) / len(workers)
        last_second = SECOND // BIN_NANOSECONDS
        loads = [recent.loads[-1][1] for recent in schedulers if recent.loads]
        return View(
            start=int(edges[0]),
            bin=BIN_NANOSECONDS,
            device=_bytes(device),
            scheduler=_bytes(_in_bins(scheduler, edges)),
            worker=_bytes(_in_bins(host, edges)),
            both=_bytes(both),
            busy=float(np.clip(device[-last_second:].sum() / SECOND, 0.0, 1.0)),
            step_seconds=_step_seconds(workers, int(edges[-1]) - SECOND),
            tokens_per_second=sum(_tokens_per_second(recent.loads) for recent in schedulers),
            running=sum(load.running for load in loads),
            waiting=sum(load.waiting for load in loads),
            blocks_used=sum(load.blocks_used for load in loads),
            blocks=sum(load.blocks for load in loads),
        )


def _in_bins(moments: Intervals, edges: Times) -> NDArray[np.float64]:
    """Return how much of each bin between `edges` is covered, in nanoseconds."""
    return moments.within(edges[:-1], edges[1:]).astype(np.float64)


def _bytes(nanoseconds: NDArray[np.float64]) -> NDArray[np.uint8]:
    return np.clip(np.rint(nanoseconds * (255 / BIN_NANOSECONDS)), 0, 255).astype(np.uint8)


def _step_seconds(workers: list[_Recent], since: int) -> float:
    lengths = []
    for worker in workers:
        begins, _ = worker.stretches((SpanKind.FORWARD,))
        _, ends = worker.stretches((SpanKind.SAMPLE,))
        both = min(len(begins), len(ends))
        begins, ends = begins[len(begins) - both :], ends[len(ends) - both :]
        lengths.append((ends - begins)[ends >= since])
    every = np.concatenate([np.zeros(0, np.int64), *lengths])
    return float(np.median(np.maximum(every, 0))) / 1e9 if len(every) else 0.0


def _tokens_per_second(loads: deque[tuple[int, Load]]) -> float:
    """Return what was settled between the newest load and the first one within a second before it."""
    if not loads:
        return 0.0
    newest, last = loads[-1]
    clock, first = next((when, load) for when, load in loads if when >= newest - SECOND)
    return max(0.0, (last.settled_tokens - first.settled_tokens) / (newest - clock) * 1e9) if newest > clock else 0.0
