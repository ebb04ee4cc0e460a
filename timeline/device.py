"""When a device computed, and when it could have but had to wait."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.messages import SpanKind
from timeline.intervals import Intervals, Times, joined, union
from timeline.trace import COMPUTE, COPY_IN, COPY_OUT, HOST, NOT_WORK, SCHEDULER, WORKER, Lane, Trace, name_of

StepId = tuple[int, int]
"""(session, step)"""

ON_THE_WAY = "on the way"
"""Before the next step was launched, and no span accounts for it: messages travel, or a process is being woken."""

NOT_STARTED = "launched, not started"
"""The next step was launched, and neither ran nor was copied in: it is the device that takes its time."""

CHAIN = (
    (WORKER, SpanKind.COPY_OUT),
    (WORKER, SpanKind.REPLY),
    (SCHEDULER, SpanKind.RECEIVE),
    (SCHEDULER, SpanKind.SETTLE),
    (SCHEDULER, SpanKind.PLAN),
    (SCHEDULER, SpanKind.SEND),
    (WORKER, SpanKind.RECEIVE),
    (WORKER, SpanKind.STAGE),
    (WORKER, SpanKind.LAUNCH),
    (WORKER, SpanKind.COPY_IN),
)
"""What leads from one step to the next, in its order. All else is beside it: intake, deliver, flush."""


@dataclass(frozen=True, slots=True)
class Wait:
    """What a device waited for, and when. No process is named where no span accounts for the time."""

    process: str
    span: str
    time: Intervals


@dataclass(frozen=True, slots=True)
class Device:
    """One device's time. It is steady from the start of its first step to the end of its last, less what is no work.

         busy        gap       busy     no work      gap     busy
    ├────────────┤········├────────────┤─ ─ ─ ─ ─ ─ ─ ─ ─ ─┤········├────────────┤
                                           ├── IDLE ──┤├IDLE┤   of its scheduler

    Where its scheduler had nothing to do while the device stood still, all until the end of the last such IDLE span is
    no work: the device had done whatever there was. What follows it, from the arrival of work to the device's start,
    is a gap like any other. A scheduler that waits for another of its devices is not IDLE. So busy and gaps add up to
    the steady state, and a gap is time that somebody wasted.
    """

    lane: Lane  # what it computed
    busy: Intervals
    gaps: Intervals
    stopped: Times  # for each gap, when the device stopped: the gap's start, or earlier if no work is between
    launched: Times  # for each gap, when the launch of the next step ended; the gap's end if it took longer
    hosts: tuple[Lane, ...]  # who must act until then: its schedulers and its worker
    copies: tuple[Lane, ...]  # to and from it

    @property
    def steady(self) -> Intervals:
        """Return busy and gaps together."""
        return joined((self.busy, self.gaps))

    def before(self, gap: int) -> StepId:
        """Return the step after which a gap began."""
        return self._step(int(np.flatnonzero(self.lane.end == self.stopped[gap])[-1]))

    def after(self, gap: int) -> StepId:
        """Return the step that a gap was a wait for."""
        return self._step(int(np.searchsorted(self.lane.start, self.gaps.end[gap])))

    def waits(self) -> Iterator[Wait]:
        """Yield what the device waited for in its gaps: each moment of them is in one of these, and in one only.

        Until the launch, that is what is furthest along `CHAIN` of all that was done at that moment; if none of it was,
        what schedulers did beside it, and then what the worker did. After the launch only the copy in counts.
        """
        copy_in = [lane for lane in self.copies if lane.tid == COPY_IN]
        launched = union(self.gaps.start, self.launched)
        yield from _shared_out(launched, (*self.hosts, *self.copies), ON_THE_WAY)
        yield from _shared_out(union(self.launched, self.gaps.end), copy_in, NOT_STARTED)

    def _step(self, span: int) -> StepId:
        return int(self.lane.session[span]), int(self.lane.step[span])


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of devices, as columns: nanoseconds from the first span's start to the last one's end, and counts."""

    time: Times
    rows: NDArray[np.int64]
    tokens: NDArray[np.int64]
    decodes: NDArray[np.int64]


def devices(trace: Trace) -> tuple[Device, ...]:
    """Return the devices that computed anything, in the trace's order."""
    return tuple(_device(trace, lane) for lane in trace.lanes if lane.tid == COMPUTE and (lane.end > lane.start).any())


def steps_of(device: Device) -> Steps:
    """Return the steps of a device, in order of (session, step); what belongs to no step is not among them."""
    lane = device.lane
    order = np.lexsort((lane.step, lane.session))
    order = order[lane.step[order] > 0]
    session, step = lane.session[order], lane.step[order]
    new = np.ones(len(order), bool)
    new[1:] = (session[1:] != session[:-1]) | (step[1:] != step[:-1])
    first = np.flatnonzero(new)
    if not len(first):
        return Steps(*(np.zeros(0, np.int64) for _ in range(4)))
    time = np.maximum.reduceat(lane.end[order], first) - np.minimum.reduceat(lane.start[order], first)
    counts = (np.maximum.reduceat(column[order], first) for column in (lane.rows, lane.tokens, lane.decodes))
    return Steps(time, *counts)


def step_keys(lane: Lane) -> NDArray[np.int64]:
    """Return for each span a number that no other step of a trace has, as long as steps are fewer than 2**32."""
    keys: NDArray[np.int64] = (lane.session << 32) ^ lane.step
    return keys


def working(lane: Lane) -> NDArray[np.bool_]:
    """Return for each span whether something was done in it."""
    return ~np.isin(lane.kind, NOT_WORK)


def _shared_out(time: Intervals, lanes: Sequence[Lane], otherwise: str) -> Iterator[Wait]:
    """Yield who had which part of a time; what is left is called `otherwise`."""
    done = [(lane, kind) for lane in lanes for kind in np.unique(lane.kind[working(lane)]).tolist()]
    for lane, kind in sorted(done, key=lambda each: -_place(*each)):
        if not len(time):
            return
        at = lane.kind == kind
        spans = union(lane.start[at], lane.end[at])
        yield Wait(lane.process, name_of(kind), time.common(spans))
        time = time.without(spans)
    yield Wait("", otherwise, time)


def _place(lane: Lane, kind: int) -> int:
    """Return how far along `CHAIN` such spans are, from 0; -1 if they are beside it."""
    step = lane.role, SpanKind(kind)
    return CHAIN.index(step) if step in CHAIN else -1


def _device(trace: Trace, lane: Lane) -> Device:
    busy = union(lane.start, lane.end)
    schedulers = _schedulers(trace, lane)
    no_work = joined([_idle(each) for each in schedulers])
    stopped = busy.gaps()
    start = _end_of_last(no_work, stopped)
    some = start < stopped.end
    gaps = Intervals(start[some], stopped.end[some])
    own = [each for each in trace.lanes if each.pid == lane.pid]
    hosts = [each for each in own if each.tid == HOST]
    return Device(
        lane=lane,
        busy=busy,
        gaps=gaps,
        stopped=stopped.start[some],
        launched=_launched(gaps, lane, hosts),
        hosts=(*schedulers, *hosts),
        copies=tuple(each for each in own if each.tid in (COPY_IN, COPY_OUT)),
    )


def _launched(gaps: Intervals, lane: Lane, hosts: Sequence[Lane]) -> Times:
    """Return for each gap the moment in it from which the next step had been launched."""
    launched = gaps.end
    after = np.searchsorted(lane.start, gaps.end)
    for host in hosts:
        launches = np.flatnonzero((host.kind == SpanKind.LAUNCH) & (host.step > 0))
        if len(launches):
            of_launch = step_keys(host)[launches]
            order = np.argsort(of_launch, kind="stable")
            wanted = step_keys(lane)[after]
            found = launches[order[np.searchsorted(of_launch[order], wanted).clip(max=len(order) - 1)]]
            known = step_keys(host)[found] == wanted
            launched = np.where(known, host.end[found].clip(gaps.start, gaps.end), launched)
    return launched


def _schedulers(trace: Trace, lane: Lane) -> list[Lane]:
    """Return those who planned steps of a device's sessions."""
    sessions = np.setdiff1d(lane.session, [0])
    return [each for each in trace.lanes if each.role == SCHEDULER and np.isin(each.session, sessions).any()]


def _idle(lane: Lane) -> Intervals:
    idle = lane.kind == SpanKind.IDLE
    return union(lane.start[idle], lane.end[idle])


def _end_of_last(no_work: Intervals, gaps: Intervals) -> Times:
    """Return for each gap where the last of `no_work` in it ends; the gap's start if there is none."""
    if not len(no_work):
        return gaps.start
    last = np.searchsorted(no_work.start, gaps.end) - 1  # of those that begin before the gap ends
    return np.where(last >= 0, np.clip(no_work.end[last], gaps.start, gaps.end), gaps.start)
