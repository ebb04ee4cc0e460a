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
LONG = 5
"""A step that takes so many times the median until the next one begins is not shown unasked: a first one, a pause."""


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

    The device that computed most steps is asked. Of a run of fewer steps it is the longest row of ordinary ones: what
    came before the first step is not shown. Where nothing was computed, the whole run is.
    """
    shown = _steps_of(trace, steps)
    return _around(trace, shown, shown.margin)


def side_by_side(traces: Sequence[Trace]) -> list[Window]:
    """Return a `telling` window of each run, all as long as the longest if the runs are; first steps are aligned."""
    shown = [_steps_of(trace, STEPS) for trace in traces]
    margin = max(each.margin for each in shown)
    windows = [_around(trace, each, margin) for trace, each in zip(traces, shown, strict=True)]
    longest = max(window.end - window.start for window in windows)
    return [
        Window(window.start, min(window.start + longest, whole(trace).end))
        for window, trace in zip(windows, traces, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Steps:
    """Some steps in a row, from the first one's start to the last one's end, and how much to show around them."""

    start: int
    end: int
    margin: int


def _steps_of(trace: Trace, steps: int) -> _Steps:
    devices = [step_starts(lane) for lane in trace.lanes if lane.tid == COMPUTE]
    edges = max(devices, key=len, default=np.empty(0, np.int64))
    if not len(edges):
        run = whole(trace)
        return _Steps(run.start, run.end, 0)
    if len(edges) - 1 > steps:
        lengths = edges[steps:] - edges[:-steps]
        low, high = len(lengths) // 4, len(lengths) - len(lengths) // 4
        middle = lengths[low:high]
        first = low + int(np.argmin(np.abs(middle - np.median(middle))))
        last = first + steps
    else:
        first, last = _longest_row(np.diff(edges))
    start, end = int(edges[first]), int(edges[last])
    return _Steps(start, end, int(MARGIN * (end - start) / (last - first)))


def _longest_row(lengths: NDArray[np.int64]) -> tuple[int, int]:
    """Return the first step of the longest row of ordinary ones, and the one behind its last."""
    ordinary = np.concatenate(([False], lengths <= LONG * np.median(lengths), [False]))
    firsts = np.flatnonzero(~ordinary[:-1] & ordinary[1:])
    lasts = np.flatnonzero(ordinary[:-1] & ~ordinary[1:])
    longest = int(np.argmax(lasts - firsts))
    return int(firsts[longest]), int(lasts[longest])


def _around(trace: Trace, steps: _Steps, margin: int) -> Window:
    """Return `steps` with a margin, as far as the run goes."""
    run = whole(trace)
    return Window(max(run.start, steps.start - margin), min(run.end, steps.end + margin))
