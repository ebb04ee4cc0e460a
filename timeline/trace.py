"""A recorded timeline as arrays: what reports and pictures are made from.

The file is Chrome's trace format with one event a line, so that whatever was written before a crash can be read:

    {"displayTimeUnit":"ms","otherData":{"stepahead":1,"started":"2026-11-30T02:00:00Z"},"traceEvents":[
    {"ph":"M","pid":10,"tid":10,"name":"process_name","args":{"name":"scheduler"}},
    {"ph":"M","pid":10,"tid":10,"name":"stepahead","args":{"role":"scheduler","about":"lockstep",…}},
    {"ph":"M","pid":10,"tid":10,"name":"thread_name","args":{"name":"host"}},
    {"ph":"X","pid":10,"tid":10,"name":"plan","ts":12.345,"dur":81.2,"args":{"step":7,"session":9,"rows":3,"tokens":3,"decodes":3}},
    {"ph":"s","pid":10,"tid":10,"name":"step","cat":"step","id":"0x900000007","ts":12.346},
    {"ph":"C","pid":10,"tid":10,"name":"requests","ts":13.0,"args":{"running":3,"waiting":0}},
    {"ph":"C","pid":10,"tid":10,"name":"KV blocks","ts":13.0,"args":{"used":12,"free":500}},
    {"ph":"M","pid":10,"tid":10,"name":"stepahead_lost","args":{"spans":12}}
    ]}

Times are microseconds since the recording began. Processes are numbered 10, 20, 30, …; a process's lanes follow it: of
process 30, `tid` 30 is what the process itself does, and 31, 32, 33 are copy in, compute and copy out of its device.
No two lanes have the same number and none has 0: Perfetto takes a thread 0 for the one that has its process's number,
and draws both as one. An arrow's "id" is its step behind the session, 32 bits each. Arguments that are 0 are left out.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.messages import SpanKind
from timeline.errors import TraceError
from timeline.event_stream import Event, EventStream
from timeline.wording import plain

HOST, COPY_IN, COMPUTE, COPY_OUT = range(4)
"""What the last digit of `tid` means."""

NUMBERS = 10
"""How many numbers a process has, its own among them."""

FORMAT = 1
"""What "otherData" says under "stepahead"."""

FARTHEST = 2**53
"""Nanoseconds between the recording's start and any moment in it, at most: 104 days. Their sums fit into 64 bits."""

WORKER, SCHEDULER, FRONTEND = ROLES = ("worker", "scheduler", "frontend")

REQUESTS, KV_BLOCKS = "requests", "KV blocks"
"""Counters of a scheduler."""

NOT_WORK = (SpanKind.WAIT, SpanKind.IDLE)
"""What a process does when it does nothing."""


def name_of(kind: int) -> str:
    """Return the name of a `SpanKind` as files have it and people read it: "copy in"."""
    return SpanKind(kind).name.lower().replace("_", " ")


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
class Counter:
    """What one counter of one process showed, in order of time; it stays as it is until it is told again.

    at: int64, nanoseconds since the recording began. values: its columns, int64, one entry a moment each, by their
    names: of REQUESTS "running" and "waiting", of KV_BLOCKS "used" and "free".
    """

    process: str
    name: str
    at: NDArray[np.int64]
    values: dict[str, NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Trace:
    """One recording. Lanes are in the order of pid and tid; those without spans are not there."""

    name: str  # the file's
    started: str  # date and time, UTC, as the file has it
    lanes: tuple[Lane, ...]
    lost: int  # spans that were overwritten before they could be written
    clock_error: int  # nanoseconds by which a device's or another host's spans may be off, at most
    complete: bool  # whether the file has its end
    counters: tuple[Counter, ...] = ()
    setup: tuple[str, ...] = ()  # how its processes were set up, in words


def read_trace(path: Path) -> Trace:
    """Read a file, plain or gzip, in any layout of the JSON; a cut one up to where it was cut.

    Other programs' events in the same file are passed over. Raises `TraceError` if none of a timeline is there.
    """
    with EventStream(path) as stream:
        read = _Reading(path, stream)
        for event in stream:
            try:
                read.take(event)
            except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
                if read.is_ours(event):
                    raise TraceError(f"{path}: an event is damaged: {event!r:.200}") from error
        return read.trace()


COLUMNS = ("kind", "start", "end", "step", "session", "rows", "tokens", "decodes", "wasted")
"""Of a `Lane`."""

_COUNTERS = {REQUESTS: ("running", "waiting"), KV_BLOCKS: ("used", "free")}
_TIDS = (HOST, COPY_IN, COMPUTE, COPY_OUT)
_KINDS = {name_of(kind): int(kind) for kind in SpanKind}


class _Reading:
    """What was read so far: a row of `COLUMNS` a span, 72 bytes each."""

    def __init__(self, path: Path, stream: EventStream) -> None:
        self._path = path
        self._stream = stream
        self._rows: dict[tuple[int, int], array[int]] = {}
        self._counters: dict[tuple[int, str], array[int]] = {}
        self._names: dict[int, str] = {}
        self._about: dict[int, dict[str, Any]] = {}
        self._lost = 0

    def take(self, event: Event) -> None:
        """Keep what matters of an event."""
        phase = event.get("ph")
        if phase == "X":
            kind = _KINDS.get(event.get("name", ""))
            if kind is not None:
                self._span(kind, event)
        elif phase == "C":
            columns = _COUNTERS.get(event.get("name", ""))
            if columns is not None:
                self._counter(columns, event)
        elif phase == "M":
            self._metadata(event.get("name", ""), event.get("pid", 0), event.get("args", {}))

    def is_ours(self, event: Event) -> bool:
        """Whether an event is about a process of ours that has been named."""
        pid = event.get("pid")
        return isinstance(pid, int) and pid in self._about

    def _span(self, kind: int, event: Event) -> None:
        start = round(event["ts"] * 1e3)  # by a float: a text or a list must not become a thousand times as long
        end = start + round(event["dur"] * 1e3)
        if not -FARTHEST <= start <= end <= FARTHEST:
            raise ValueError("it ends before it starts, or is too far away")
        lane = _pid(event["pid"]), event["tid"] % NUMBERS
        if lane[1] not in _TIDS:
            raise ValueError("no such lane")
        get = event.get("args", {}).get
        counts = get("rows", 0), get("tokens", 0), get("decodes", 0), get("wasted", 0)
        row = array("q", (kind, start, end, get("step", 0), get("session", 0), *counts))  # all of it, or nothing
        if lane in self._rows:
            self._rows[lane] += row
        else:
            self._rows[lane] = row

    def _counter(self, columns: tuple[str, str], event: Event) -> None:
        at = round(event["ts"] * 1e3)
        values = [event["args"][column] for column in columns]
        if abs(at) > FARTHEST or not all(0 <= value <= FARTHEST for value in values):
            raise ValueError("it is too far away, or counts what can't be")
        told = array("q", (at, *values))
        self._counters.setdefault((_pid(event["pid"]), event["name"]), array("q")).extend(told)

    def _metadata(self, name: str, pid: int, arguments: dict[str, Any]) -> None:
        if name == "process_name":
            self._names[pid] = plain(str(arguments["name"]))
        elif name == "stepahead":
            if arguments["role"] not in ROLES:
                raise ValueError("no such role")
            self._about[_pid(pid)] = {
                "role": arguments["role"],
                "device": plain(str(arguments.get("device", ""))),
                "about": plain(str(arguments.get("about", ""))),
                "clock_error": round(arguments.get("clock_error_us", 0) * 1e3),
            }
        elif name == "stepahead_lost":
            self._lost += int(arguments["spans"])

    def trace(self) -> Trace:
        """Return all of it."""
        header = self._stream.header.get("otherData")
        header = header if isinstance(header, dict) else {}
        if not self._about and "stepahead" not in header:
            raise TraceError(f"{self._path}: this is no timeline of Stepahead")
        if header.get("stepahead", FORMAT) != FORMAT:
            its = plain(str(header["stepahead"]))
            raise TraceError(f"{self._path}: its format is {its}; this program reads {FORMAT}")
        return Trace(
            name=plain(self._path.name),
            started=plain(str(header.get("started", ""))),
            lanes=tuple(self._lanes()),
            lost=self._lost,
            clock_error=max((about["clock_error"] for about in self._about.values()), default=0),
            complete=self._stream.complete,
            counters=tuple(self._told()),
            setup=tuple(self._setup()),
        )

    def _setup(self) -> Iterator[str]:
        for pid, about in self._about.items():
            if about["about"]:
                yield f"{self._names.get(pid, about['role'])}: {about['about']}"

    def _lanes(self) -> Iterator[Lane]:
        for pid, tid in sorted(lane for lane in self._rows if lane[0] in self._about):
            rows = np.frombuffer(self._rows.pop((pid, tid)), np.int64).reshape(-1, len(COLUMNS))
            rows = rows[np.argsort(rows[:, 1], kind="stable")]
            columns = dict(zip(COLUMNS, (np.ascontiguousarray(column) for column in rows.T), strict=True))
            kind = columns.pop("kind").astype(np.uint8)
            about = self._about[pid]
            yield Lane(pid, tid, self._name(pid), about["role"], about["device"], kind=kind, **columns)

    def _told(self) -> Iterator[Counter]:
        for pid, name in sorted(key for key in self._counters if key[0] in self._about):
            columns = _COUNTERS[name]
            rows = np.frombuffer(self._counters.pop((pid, name)), np.int64).reshape(-1, 1 + len(columns))
            at, *values = np.ascontiguousarray(rows[np.argsort(rows[:, 0], kind="stable")].T)
            yield Counter(self._name(pid), name, at, dict(zip(columns, values, strict=True)))

    def _name(self, pid: int) -> str:
        return self._names.get(pid, f"{self._about[pid]['role']} {pid}")


def _pid(value: Any) -> int:
    """Return what numbers a process in files of ours. Raises `TypeError` for what doesn't."""
    if not isinstance(value, int):
        raise TypeError("no number of a process")
    return value
