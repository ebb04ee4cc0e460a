"""A part of a recording: what lies wholly between two moments, such as all that came after a warm-up."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace

import numpy as np

from timeline.errors import TraceError
from timeline.trace import COLUMNS, COMPUTE, Lane, Trace


def seconds(text: str) -> float:
    """Return what a command line says; raises `ArgumentTypeError`."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return found


def part_of(trace: Trace, start: float | None, end: float | None) -> Trace:
    """Return what began and ended between two moments, in seconds since the recording began; None is no limit.

    A step counts if all of its computation is there. Raises `TraceError` if nothing is.
    """
    if start is None and end is None:
        return trace
    if start is not None and end is not None and end <= start:
        raise TraceError(f"--to {end:g} is not after --from {start:g}")
    low = 0 if start is None else round(start * 1e9)
    high = np.iinfo(np.int64).max if end is None else round(end * 1e9)
    lanes = tuple(lane for lane in (_cut(lane, low, high) for lane in trace.lanes) if len(lane))
    if not lanes and trace.lanes:
        first, last = min(int(lane.start[0]) for lane in trace.lanes), max(int(lane.end.max()) for lane in trace.lanes)
        raise TraceError(f"{trace.name}: nothing lies there: the run is from {first / 1e9:.3f} s to {last / 1e9:.3f} s")
    told = [(counter, (counter.at >= low) & (counter.at <= high)) for counter in trace.counters]
    counters = tuple(
        replace(counter, at=counter.at[at], values={name: column[at] for name, column in counter.values.items()})
        for counter, at in told
        if at.any()
    )
    return replace(trace, lanes=lanes, counters=counters)


def _cut(lane: Lane, low: int, high: int) -> Lane:
    inside = (lane.start >= low) & (lane.end <= high)
    if lane.tid == COMPUTE:
        _, of = np.unique(np.stack((lane.session, lane.step)), axis=1, return_inverse=True)
        outside = np.bincount(of, weights=~inside) > 0
        inside &= ~outside[of] | (lane.step == 0)
    return replace(lane, **{name: getattr(lane, name)[inside] for name in COLUMNS})
