"""What each moment of a device's run was: device and CPU busy, the device alone, or the device idle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from timeline.colours import BOTH, DEVICE_IDLE, DEVICE_ONLY, NO_WORK
from timeline.device import Device, devices, working
from timeline.intervals import Intervals, joined, union
from timeline.trace import Lane, Trace


@dataclass(frozen=True, slots=True)
class Strip:
    """Moments of one worker's device, from its first step's start to its last one's end, without gaps.

    edges: int64, nanoseconds since the recording began, one more than moments. moments: uint8, DEVICE_IDLE and its
    like; no two neighbours are equal. The device is idle where `Device` says that there is a gap; the CPU is busy where
    the worker or a scheduler of its steps works.
    """

    process: str
    pid: int
    edges: NDArray[np.int64]
    moments: NDArray[np.uint8]

    def times(self, moment: int) -> Intervals:
        """Return when it was such a moment."""
        at = self.moments == moment
        return Intervals(self.edges[:-1][at], self.edges[1:][at])


def strips(trace: Trace) -> tuple[Strip, ...]:
    """Return one strip for each worker whose device computed."""
    return tuple(_strip(device) for device in devices(trace))


def _strip(device: Device) -> Strip:
    cpu = joined([_work(lane) for lane in device.hosts])
    first, last = device.busy.start[0], device.busy.end[-1]
    ends = [time for times in (cpu, device.busy, device.gaps) for time in (times.start, times.end)]
    edges = np.unique(np.clip(np.concatenate(ends), first, last))
    busy, gap, work = (_covered(edges, times) for times in (device.busy, device.gaps, cpu))
    moments = np.select([busy & work, busy, gap], [BOTH, DEVICE_ONLY, DEVICE_IDLE], NO_WORK).astype(np.uint8)
    new = np.concatenate(([True], moments[1:] != moments[:-1]))
    return Strip(device.lane.process, device.lane.pid, np.append(edges[:-1][new], last), moments[new])


def _work(lane: Lane) -> Intervals:
    at = working(lane)
    return union(lane.start[at], lane.end[at])


def _covered(edges: NDArray[np.int64], times: Intervals) -> NDArray[np.bool_]:
    """Return for each moment between two `edges` whether `times` has it."""
    return times.within(edges[:-1], edges[1:]) > 0
