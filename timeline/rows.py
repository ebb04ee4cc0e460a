"""Which lanes a picture shows, from top to bottom, and what they are called."""

from __future__ import annotations

from dataclasses import dataclass

from timeline.strip import Strip, strips
from timeline.trace import COMPUTE, COPY_IN, COPY_OUT, FRONTEND, HOST, SCHEDULER, WORKER, Lane, Trace

FROM_THE_TOP = (FRONTEND, SCHEDULER, WORKER)
ON_DEVICE = {COPY_IN: "copy in", COMPUTE: "compute", COPY_OUT: "copy out"}


@dataclass(frozen=True, slots=True)
class Row:
    """A lane of spans, or what the moments of a worker's device were."""

    label: str
    shows: Lane | Strip
    opens: bool  # whether a process begins here


def rows(trace: Trace) -> list[Row]:
    """Return the rows of all processes: text above, then schedulers, then each worker with its device."""
    below = {strip.pid: strip for strip in strips(trace)}
    found: list[Row] = []
    for lane in sorted(trace.lanes, key=lambda lane: (FROM_THE_TOP.index(lane.role), lane.pid, lane.tid)):
        opens = not found or _pid(found[-1]) != lane.pid
        if opens and found and _pid(found[-1]) in below:
            found.append(_strip_row(below.pop(_pid(found[-1]))))
        found.append(Row(lane.process if lane.tid == HOST else ON_DEVICE[lane.tid], lane, opens))
    found += [_strip_row(strip) for strip in below.values()]
    return found


def _pid(row: Row) -> int:
    return row.shows.pid


def _strip_row(strip: Strip) -> Row:
    return Row("overlap", strip, False)
