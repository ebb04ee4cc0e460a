"""What the live page shows: the last seconds, cut into bins."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from protocol.messages import COUNT_MAX, Load, SpanKind, Spans, View
from timeline.intervals import Intervals, Times, joined, union
from timeline.member import Member

SHOWN_SECONDS = 6.0
BIN_NANOSECONDS = 5_000_000
LATE_NANOSECONDS = 500_000_000
"""The view ends so long before now: what was done since then is mostly not told yet."""

SECOND = 1_000_000_000
MOST_SPANS = 2**19
MOST_LOADS = 2**10
MOST_LAUNCHED = 2**8
"""Kept of one member at most."""

MOST_A_SECOND = 1e12
"""Tokens that a view can tell of."""

LUMPS = 4
"""Steps whose tokens are counted, at least, unless they are very long."""

_DEVICE = (SpanKind.FORWARD, SpanKind.SAMPLE)
_BLOCKED = (SpanKind.WAIT, SpanKind.IDLE)
_ON_DEVICE = (SpanKind.COPY_IN, *_DEVICE, SpanKind.COPY_OUT)
_ENDED = (SpanKind.FORWARD, SpanKind.REPLY)
"""Either says that a step is done; of one that failed there is only the reply."""

NOTHING: Times = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class _Piece:
    """What came in one message: columns of spans, by our clock."""

    kind: NDArray[np.uint8]
    start: Times
    end: Times
    step: Times  # of all sessions, see `_steps`


@dataclass(slots=True)
class _Recent:
    """The newest spans of one member.

    A device's spans are told when their step has ended, all others at once. So a step is in flight, and the device at
    work, if it was launched and nothing says that it has ended:

        told until          ┊
        host    ─LAUNCH 8─┐ ┊
        device  ──7──┐    └─8 ┄ computes up to here at least
    """

    role: str
    pieces: deque[_Piece] = field(default_factory=deque)
    spans: int = 0
    loads: deque[tuple[int, Load]] = field(default_factory=deque)  # with when it was, by our clock
    told: int = 0  # until when all is known but for the device's steps in flight
    computed: int = 0  # until when the device's spans are known
    began: int = 0  # the first of the device's spans
    launched: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=MOST_LAUNCHED))
    """Steps in flight, and when they were launched."""

    def take(self, spans: Spans, offset: int, latest: int) -> None:
        """Keep spans, of which there are some; their clock + `offset` is ours, and none can end after `latest`."""
        start, end = (np.clip(column.astype(np.int64) + offset, 0, latest) for column in (spans.start, spans.end))
        piece = _Piece(spans.kind, start, end, _steps(spans))
        self.pieces.append(piece)
        self.spans += len(start)
        self.told = max(self.told, int(end.max()))
        of_device = np.isin(spans.kind, _DEVICE)
        if of_device.any():
            self.computed = max(self.computed, int(end[of_device].max()))
            self.began = self.began or int(start[of_device].min())
        for at in np.flatnonzero(np.isin(spans.kind, (SpanKind.LAUNCH, *_ENDED))):
            step = int(piece.step[at])
            if spans.kind[at] == SpanKind.LAUNCH:
                self.launched.append((step, int(end[at])))
            elif any(step == launched for launched, _ in self.launched):
                while self.launched.popleft()[0] != step:
                    pass  # steps end in order: that of an earlier one was lost

    def forget_before(self, clock: int) -> None:
        while self.pieces and (self.spans > MOST_SPANS or int(self.pieces[0].end.max()) < clock):
            self.spans -= len(self.pieces.popleft().end)
        while self.loads and self.loads[0][0] < clock:
            self.loads.popleft()

    def stretches(self, kinds: tuple[SpanKind, ...], *, others: bool = False) -> tuple[Times, Times]:
        """Return starts and ends of the spans of these kinds, or of all others, as they came."""
        parts = [(each, np.isin(each.kind, kinds, invert=others)) for each in self.pieces]
        return (
            np.concatenate([NOTHING, *(each.start[wanted] for each, wanted in parts)]),
            np.concatenate([NOTHING, *(each.end[wanted] for each, wanted in parts)]),
        )

    def busy(self) -> Intervals:
        """Return when a worker's device computed, as far as it is known."""
        computed = union(*self.stretches(_DEVICE))
        # Steps that were launched before anybody looked have no spans of their own: the worker waited for them.
        start, end = self.stretches((SpanKind.WAIT,))
        before = self.began or self.told
        waited = union(start, np.minimum(end, before))
        in_flight = union(*(np.array([time], np.int64) for time in self._in_flight()))
        return joined([computed, waited, in_flight])

    def step_seconds(self, since: int) -> NDArray[np.float64]:
        """Return how long each step took that has ended `since` then, or else the last one."""
        start, end = self.stretches(_DEVICE)
        step = np.concatenate([NOTHING, *(each.step[np.isin(each.kind, _DEVICE)] for each in self.pieces)])
        steps, which = np.unique(step, return_inverse=True)
        begins, ends = np.full(len(steps), np.iinfo(np.int64).max), np.zeros(len(steps), np.int64)
        np.minimum.at(begins, which, start)
        np.maximum.at(ends, which, end)
        seconds: NDArray[np.float64] = (ends - begins)[ends >= min(since, self.computed)] / SECOND
        return seconds

    def _in_flight(self) -> tuple[int, int]:
        """Return since when a step computes of which no end is known, and until when at least."""
        if not self.launched:
            return self.told, self.told
        return max(self.computed, self.launched[0][1]), self.told


def _steps(spans: Spans) -> Times:
    """Return a number for each span that only spans of the same step have."""
    return spans.session.astype(np.int64) << 32 ^ spans.step.astype(np.int64)


class LastSeconds:
    """Keeps what members told lately, and makes views of it."""

    def __init__(self) -> None:
        """Begin empty."""
        self._members: dict[int, _Recent] = {}

    def take(self, member: Member, news: Spans | Load, clock: int) -> None:
        """Keep what a member has told at `clock`."""
        recent = self._members.setdefault(member.number, _Recent(member.joined.role))
        latest = clock + int(SHOWN_SECONDS * SECOND)  # what lies beyond is a lie, and would never be forgotten
        if isinstance(news, Load):
            recent.loads.append((min(news.time + member.offset, latest), news))
            if len(recent.loads) > MOST_LOADS:
                recent.loads.popleft()
        elif len(news.kind):
            recent.take(news, member.offset, latest)
        recent.forget_before(clock - int(SHOWN_SECONDS * SECOND) - LATE_NANOSECONDS)

    def clear(self) -> None:
        """Forget everything: nobody looks any more."""
        self._members.clear()

    def view(self, clock: int) -> View:
        """Return the view at `clock`; shares of several devices are averaged."""
        newest = (clock - LATE_NANOSECONDS) // BIN_NANOSECONDS * BIN_NANOSECONDS
        edges = np.arange(newest - int(SHOWN_SECONDS * SECOND), newest + 1, BIN_NANOSECONDS)
        for number, recent in list(self._members.items()):
            recent.forget_before(int(edges[0]))
            if not recent.pieces and not recent.loads:
                del self._members[number]
        workers = [recent for recent in self._members.values() if recent.role == "worker" and recent.pieces]
        schedulers = [recent for recent in self._members.values() if recent.role == "scheduler"]
        scheduler = joined([union(*each.stretches(_BLOCKED, others=True)) for each in schedulers])
        host = joined([union(*each.stretches((*_BLOCKED, *_ON_DEVICE), others=True)) for each in workers])
        work = joined([scheduler, host])
        device, both = np.zeros(len(edges) - 1), np.zeros(len(edges) - 1)
        told = min([newest, *(worker.told for worker in workers)])
        known = int(np.searchsorted(edges[1:], told, "right"))
        for worker in workers:
            computed = worker.busy()
            alone = _in_bins(computed, edges)
            device += alone / len(workers)
            # What is in both is what is in each, less what is in either.
            both += (alone + _in_bins(work, edges) - _in_bins(joined([computed, work]), edges)) / len(workers)
        last_second = device[max(0, known - SECOND // BIN_NANOSECONDS) : known]
        steps = np.concatenate([np.zeros(0), *(worker.step_seconds(int(edges[known]) - SECOND) for worker in workers)])
        step_seconds = float(np.median(steps)) if len(steps) else 0.0
        loads = [recent.loads[-1][1] for recent in schedulers if recent.loads]
        return View(
            start=int(edges[0]),
            bin=BIN_NANOSECONDS,
            known=known,
            devices=len(workers),
            device=_bytes(device),
            scheduler=_bytes(_in_bins(scheduler, edges)),
            worker=_bytes(_in_bins(host, edges)),
            both=_bytes(both),
            busy=float(np.clip(last_second.sum() / max(1, len(last_second) * BIN_NANOSECONDS), 0.0, 1.0)),
            step_seconds=step_seconds,
            tokens_per_second=min(
                sum(_tokens_per_second(recent.loads, step_seconds) for recent in schedulers), MOST_A_SECOND
            ),
            running=_count(load.running for load in loads),
            waiting=_count(load.waiting for load in loads),
            blocks_used=_count(load.blocks_used for load in loads),
            blocks=_count(load.blocks for load in loads),
        )


def _in_bins(moments: Intervals, edges: Times) -> NDArray[np.float64]:
    """Return how much of each bin between `edges` is covered, in nanoseconds."""
    return moments.within(edges[:-1], edges[1:]).astype(np.float64)


def _count(counts: Iterable[int]) -> int:
    return min(sum(counts), COUNT_MAX)


def _bytes(nanoseconds: NDArray[np.float64]) -> NDArray[np.uint8]:
    return np.clip(np.rint(nanoseconds * (255 / BIN_NANOSECONDS)), 0, 255).astype(np.uint8)


def _tokens_per_second(loads: deque[tuple[int, Load]], step_seconds: float) -> float:
    """Return what is settled in a second, or in four steps if these take longer; half of what is kept at most.

    It comes in lumps, at the ends of steps. So it is counted from one lump to another: no matter how much of a step is
    left over at either end of a second.
    """
    period = round(min(max(1.0, LUMPS * step_seconds), SHOWN_SECONDS / 2) * SECOND)
    told = [(when, load.settled_tokens) for when, load in loads]
    lumps = [after for before, after in pairwise(told) if after[1] != before[1]]
    if not lumps or lumps[-1][0] < told[-1][0] - period:
        return 0.0
    newest, last = lumps[-1]
    # Where nothing came for long before that, there is no lump to begin at.
    clock, first = next(
        (each for each in reversed(lumps) if newest - 2 * period <= each[0] <= newest - period),
        next((each for each in reversed(told) if each[0] <= newest - period), told[0]),
    )
    return max(0.0, (last - first) / (newest - clock) * SECOND) if newest > clock else 0.0
