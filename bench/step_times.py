"""When a device computed each step of a run: what is between two steps is idle time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.contestant import BenchmarkError
from timeline.device import devices, step_keys
from timeline.errors import TraceError
from timeline.trace import COMPUTE, Lane, Trace, read_trace

LONGEST_WINDOW = 500
FIRST_OF_WINDOW = 100
"""Early is from step 100 on: first steps take in prompts, and are slow for reasons of their own."""


@dataclass(frozen=True, slots=True)
class Window:
    """Some steps in a row: how long one took from its start to that of the next, and the device's idle share."""

    first: int
    steps: int
    milliseconds_a_step: float
    idle_share: float


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Start and end of each step in order, float64 seconds [steps] by any clock; a step begins after the last ended."""

    start: NDArray[np.float64]
    end: NDArray[np.float64]

    @property
    def idle_share(self) -> float:
        """Return the share of the time from the first step's start to the last one's end in which none was computed."""
        return float(1.0 - (self.end - self.start).sum() / (self.end[-1] - self.start[0]))

    @property
    def early(self) -> Window:
        """Return the first steps of the run that are ordinary ones."""
        return self._window(min(FIRST_OF_WINDOW, (len(self.start) - 1) // 8))

    @property
    def late(self) -> Window:
        """Return the last steps of the run."""
        return self._window(len(self.start) - 1 - self._steps)

    @property
    def _steps(self) -> int:
        """How many steps are a window: a quarter of a short run."""
        return min(LONGEST_WINDOW, max(1, (len(self.start) - 1) // 4))

    def _window(self, first: int) -> Window:
        behind = first + self._steps
        time = self.start[behind] - self.start[first]
        busy = (self.end[first:behind] - self.start[first:behind]).sum()
        return Window(first, self._steps, float(1e3 * time / self._steps), float(1.0 - busy / time))


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """Where a device's time went from the start of its first step to the end of its last, in seconds.

    It was `busy` while it computed. It had `no_work` from the end of a step, when everything had been done, to the
    moment at which its scheduler, which was idle, heard of the next request. All other time between two steps it was
    `idle` while there was work.
    """

    steps: int
    busy: float
    idle: float
    no_work: float

    @property
    def active_share(self) -> float:
        """Return which share of the time in which there was work the device computed."""
        return self.busy / (self.busy + self.idle)


def from_timeline(path: Path) -> StepTimes:
    """Return the steps of the one device in a recording; raises `BenchmarkError` if it has not all of them."""
    lane = _only_device(_trace(path))
    first = _first_spans(lane)
    return StepTimes(lane.start[first] / 1e9, np.maximum.reduceat(lane.end, first) / 1e9)


def device_time(path: Path) -> DeviceTime:
    """Return where the time of the one device in a recording went; raises `BenchmarkError` as `from_timeline`."""
    trace = _trace(path)
    steps = len(_first_spans(_only_device(trace)))
    (device,) = devices(trace)
    whole, busy, idle = device.busy.end[-1] - device.busy.start[0], device.busy.total, device.gaps.total
    return DeviceTime(steps, busy / 1e9, idle / 1e9, (int(whole) - busy - idle) / 1e9)


def _trace(path: Path) -> Trace:
    try:
        trace = read_trace(path)
    except (TraceError, OSError) as error:
        raise BenchmarkError(f"the timeline cannot be read: {error}") from None
    if trace.lost:
        raise BenchmarkError(f"the timeline lost {trace.lost:,} spans: there is no idle share")
    return trace


def _only_device(trace: Trace) -> Lane:
    lanes = [lane for lane in trace.lanes if lane.tid == COMPUTE]
    if len(lanes) != 1:
        raise BenchmarkError(f"the timeline has {len(lanes)} devices that computed, not one")
    return lanes[0]


def _first_spans(lane: Lane) -> NDArray[np.intp]:
    """Return the place of each step's first span."""
    keys = step_keys(lane)
    first = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    if len(first) < 2:
        raise BenchmarkError("the timeline has fewer than two steps")
    return first
