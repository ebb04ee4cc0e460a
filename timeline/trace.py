"""A recorded timeline as arrays: what reports and pictures are made from.

The file is Chrome's trace format with one event a line, so that whatever was written before a crash can be read:

    {"displayTimeUnit":"ms","otherData":{"stepahead":1,"started":"2026-11-30T02:00:00Z"},"traceEvents":[
    {"ph":"M","pid":1,"name":"process_name","args":{"name":"scheduler"}},
    {"ph":"M","pid":1,"name":"stepahead","args":{"role":"scheduler","device":"","host":"…","clock_error_us":0}},
    {"ph":"M","pid":1,"tid":0,"name":"thread_name","args":{"name":"host"}},
    {"ph":"X","pid":1,"tid":0,"name":"plan","ts":12.345,"dur":81.2,"args":{"step":7,"session":9,"rows":3,"tokens":3,"decodes":3}},
    {"ph":"s","pid":1,"tid":0,"name":"step","cat":"step","id":"9.7","ts":12.4},
    {"ph":"C","pid":1,"name":"requests","ts":13.0,"args":{"running":3,"waiting":0}},
    {"ph":"C","pid":1,"name":"KV blocks","ts":13.0,"args":{"used":12,"free":500}},
    {"ph":"M","pid":1,"name":"stepahead_lost","args":{"spans":12}}
    ]}

Times are microseconds since the recording began. Processes are numbered from 1; `tid` is 0 for what the process itself
does, and 1, 2, 3 for copy in, compute and copy out of a worker's device. Arguments that are 0 are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

HOST, COPY_IN, COMPUTE, COPY_OUT = range(4)
"""What `tid` means."""


@dataclass(frozen=True, slots=True)
class Lane:
    """Spans of one thread of one process, in order of their start; all columns have one entry a span.

    start, end: int64, nanoseconds since the recording began. kind: uint8, a `SpanKind`. step, session: int64, 0 where
    the span belongs to no step; (session, step) names a step of the whole trace. rows, tokens, decodes, wasted: int64.
    """

    pid: int
    tid: int
    process: str  # "worker 0"
    role: str  # worker, scheduler or frontend
    device: str  # of a worker: "cpu", "cuda:0"
    kind: NDArray[np.uint8]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    step: NDArray[np.int64]
    session: NDArray[np.int64]
    rows: NDArray[np.int64]
    tokens: NDArray[np.int64]
    decodes: NDArray[np.int64]
    wasted: NDArray[np.int64]

    def __len__(self) -> int:
        """How many spans."""
        return len(self.start)


@dataclass(frozen=True, slots=True)
class Trace:
    """One recording. Lanes are in the order of pid and tid; those without spans are not there."""

    name: str  # the file's
    started: str  # date and time, UTC, as the file has it
    lanes: tuple[Lane, ...]
    lost: int  # spans that were overwritten before they could be written
    clock_error: int  # nanoseconds by which a device's or another host's spans may be off, at most
    complete: bool  # whether the file has its end
