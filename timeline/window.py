"""Which part of a run to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from timeline.trace import COMPUTE, Lane, Trace

STEPS = 10
MARGIN = 0.25
"""Of a step, before the first and after the last, so that the first one's plan is seen, and the last one's answer."""


@dataclass(frozen=True, slots=True)
class Window:
    """From `start` to `end`, nanoseconds since the recording began."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class View:
    """One run, and the part of it that is looked at."""

    trace: Trace
    window: Window


def whole(trace: Trace) -> Window:
    """Return the window from the first span's start to the last one's end; an empty one if there are no spans."""
    if not trace.lanes:
        return Window(0, 0)
    return Window(min(int(lane.start[0]) for lane in trace.lanes), max(int(lane.end.max()) for lane in trace.lanes))


def step_starts(lane: Lane) -> NDArray[np.int64]:
    """Return when each step began on a device's compute lane, and when the last one ended: int64, steps + 1."""
    if not len(lane):
        return np.empty(0, np.int64)
    new = np.ones(len(lane), bool)
    new[1:] = (lane.step[1:] != lane.step[:-1]) | (lane.session[1:] != lane.session[:-1])
    return np.append(lane.start[new], lane.end.max())


def telling(trace: Trace, steps: int = STEPS) -> Window:
    """Return the most ordinary `steps` steps in a row: of those in the middle half of the run, the median's nearest.

    The device that computed most steps is asked. A short run is seen whole.
    """
    devices = [step_starts(lane) for lane in trace.lanes if lane.tid == COMPUTE]
    edges = max(devices, key=len, default=np.empty(0, np.int64))
    if len(edges) - 1 <= steps:
        return whole(trace)
    lengths = edges[steps:] - edges[:-steps]
    low, high = len(lengths) // 4, len(lengths) - len(lengths) // 4
    middle = lengths[low:high]
    chosen = low + int(np.argmin(np.abs(middle - np.median(middle))))
    margin = int(MARGIN * lengths[chosen] / steps)
    run = whole(trace)
    start = max(run.start, int(edges[chosen]) - margin)
    return Window(start, min(run.end, int(edges[chosen + steps]) + margin))


def side_by_side(traces: Sequence[Trace]) -> list[Window]:
    """Return a `telling` window of each run, all as long as the longest if the runs are."""
    windows = [telling(trace) for trace in traces]
    longest = max(window.end - window.start for window in windows)
    return [
        Window(window.start, min(window.start + longest, whole(trace).end))
        for window, trace in zip(windows, traces, strict=True)
    ]
