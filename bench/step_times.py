"""When a device computed each step of a run: what is between two steps is idle time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.contestant import BenchmarkError
from timeline.device import step_keys
from timeline.errors import TraceError
from timeline.trace import COMPUTE, read_trace

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


def from_timeline(path: Path) -> StepTimes:
    """Return the steps of the one device in a recording; raises `BenchmarkError` if it has not all of them."""
    try:
        trace = read_trace(path)
    except (TraceError, OSError) as error:
        raise BenchmarkError(f"the timeline cannot be read: {error}") from None
    lanes = [lane for lane in trace.lanes if lane.tid == COMPUTE]
    if trace.lost:
        raise BenchmarkError(f"the timeline lost {trace.lost:,} spans: there is no idle share")
    if len(lanes) != 1:
        raise BenchmarkError(f"the timeline has {len(lanes)} devices that computed, not one")
    (lane,) = lanes
    keys = step_keys(lane)
    first = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    if len(first) < 2:
        raise BenchmarkError("the timeline has fewer than two steps")
    return StepTimes(lane.start[first] / 1e9, np.maximum.reduceat(lane.end, first) / 1e9)
