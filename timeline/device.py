"""When a device computed, and when it could have but had to wait."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.messages import SpanKind
from timeline.intervals import Intervals, Times, joined, union
from timeline.trace import COMPUTE, COPY_IN, HOST, NOT_WORK, SCHEDULER, Lane, Trace

StepId = tuple[int, int]
"""(session, step)"""


@dataclass(frozen=True, slots=True)
class Device:
    """One device's time. It is steady from the start of its first step to the end of its last, less what is no work.

         busy        gap       busy     no work      gap     busy
    ├────────────┤········├────────────┤─ ─ ─ ─ ─ ─ ─ ─ ─ ─┤········├────────────┤
                                           ├── IDLE ──┤├IDLE┤   of its scheduler

    Where its scheduler had nothing to do while the device stood still, all until the end of the last such IDLE span is
    no work: the device had done whatever there was. What follows it, from the arrival of work to the device's start,
    is a gap like any other. So busy and gaps add up to the steady state, and a gap is time that somebody wasted.
    """

    lane: Lane  # what it computed
    busy: Intervals
    gaps: Intervals
    stopped: Times  # for each gap, when the device stopped: the gap's start, or earlier if no work is between
    chain: tuple[Lane, ...]  # who must act until the next step starts: its schedulers, its worker, its copy in

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


def working(lane: Lane) -> NDArray[np.bool_]:
    """Return for each span whether something was done in it."""
    return ~np.isin(lane.kind, NOT_WORK)


def _device(trace: Trace, lane: Lane) -> Device:
    busy = union(lane.start, lane.end)
    schedulers = _schedulers(trace, lane)
    no_work = joined([_idle(each) for each in schedulers])
    stopped = busy.gaps()
    gaps = Intervals(_end_of_last(no_work, stopped), stopped.end)
    some = gaps.end > gaps.start
    own = (each for each in trace.lanes if each.pid == lane.pid and each.tid in (HOST, COPY_IN))
    return Device(lane, busy, Intervals(gaps.start[some], gaps.end[some]), stopped.start[some], (*schedulers, *own))


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
