"""A step's way through the processes: planned, computed, settled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.messages import SpanKind
from timeline.trace import COMPUTE, HOST, Lane, Trace
from timeline.window import Window


@dataclass(frozen=True, slots=True)
class Flow:
    """One step. Times are nanoseconds since the recording began; None where no span says."""

    session: int
    step: int
    scheduler: int | None  # its pid; None if no span of one names the step
    worker: int  # its pid
    planned: int | None  # the end of the scheduler's PLAN
    began: int  # on the device
    ended: int
    settled: int | None  # the start of the scheduler's SETTLE


def flows(trace: Trace, window: Window) -> list[Flow]:
    """Return the steps that a device computed in `window`, by device and then time."""
    planned = _times(trace, SpanKind.PLAN, "end")
    settled = _times(trace, SpanKind.SETTLE, "start")
    unknown = None, None
    found = []
    for lane in trace.lanes:
        if lane.tid == COMPUTE:
            for first, last in _steps(lane, window):
                key = int(lane.session[first]), int(lane.step[first])
                began, ended = int(lane.start[first]), int(lane.end[last])
                planner, plan = planned.get(key, unknown)
                settler, settle = settled.get(key, unknown)
                scheduler = settler if planner is None else planner
                found.append(Flow(*key, scheduler, lane.pid, plan, began, ended, settle))
    return found


def _steps(lane: Lane, window: Window) -> list[tuple[int, int]]:
    """Return the first and the last span of each step that is in `window`."""
    inside = np.flatnonzero((lane.end > window.start) & (lane.start < window.end))
    if not len(inside):
        return []
    new = np.flatnonzero(np.diff(lane.step[inside]) | np.diff(lane.session[inside])) + 1
    firsts = inside[np.concatenate([[0], new])]
    lasts = inside[np.concatenate([new - 1, [-1]])]
    return [(int(first), int(last)) for first, last in zip(firsts, lasts, strict=True)]


def _times(trace: Trace, kind: SpanKind, column: str) -> dict[tuple[int, int], tuple[int, int]]:
    """Return in which process and when each step's span of `kind` started or ended, by (session, step)."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for lane in trace.lanes:
        if lane.tid == HOST:
            at = lane.kind == kind
            times: NDArray[np.int64] = getattr(lane, column)[at]
            keys = zip(lane.session[at].tolist(), lane.step[at].tolist(), strict=True)
            found.update((key, (lane.pid, time)) for key, time in zip(keys, times.tolist(), strict=True))
    return found
