"""Which lanes a picture shows, from top to bottom, and what they are called."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from timeline.strip import Strip, strips
from timeline.trace import COMPUTE, COPY_IN, COPY_OUT, FRONTEND, HOST, SCHEDULER, WORKER, Lane, Trace

FROM_THE_TOP = (FRONTEND, SCHEDULER, WORKER)
ON_DEVICE = {COPY_IN: "device: copy in", COMPUTE: "device: compute", COPY_OUT: "device: copy out"}


@dataclass(frozen=True, slots=True)
class Row:
    """A lane of spans, or what the moments of a worker's device were."""

    label: str
    shows: Lane | Strip
    opens: bool  # whether a process begins here


def rows(trace: Trace) -> list[Row]:
    """Return the rows of all processes: text above, then each scheduler with its workers, each with its device."""
    below = {strip.pid: strip for strip in strips(trace)}
    found: list[Row] = []
    for lane in _from_the_top(trace):
        opens = not found or _pid(found[-1]) != lane.pid
        if opens and found and _pid(found[-1]) in below:
            found.append(_strip_row(below.pop(_pid(found[-1]))))
        found.append(Row(lane.process if lane.tid == HOST else ON_DEVICE[lane.tid], lane, opens))
    found += [_strip_row(strip) for strip in below.values()]
    return found


def _from_the_top(trace: Trace) -> list[Lane]:
    """Return the lanes in their order: a worker is below the first scheduler that planned for it, or else the last."""
    sessions: dict[int, set[int]] = defaultdict(set)
    for lane in trace.lanes:
        sessions[lane.pid].update(np.unique(lane.session).tolist())
    planners = sorted({lane.pid for lane in trace.lanes if lane.role == SCHEDULER})

    def planner(lane: Lane) -> float:
        if lane.role != WORKER:
            return lane.pid if lane.role == SCHEDULER else -math.inf
        own = sessions[lane.pid] - {0}
        return next((pid for pid in planners if own & sessions[pid]), math.inf)

    return sorted(trace.lanes, key=lambda lane: (planner(lane), FROM_THE_TOP.index(lane.role), lane.pid, lane.tid))


def _pid(row: Row) -> int:
    return row.shows.pid


def _strip_row(strip: Strip) -> Row:
    return Row("overlap", strip, False)
