"""Timelines made by hand, as a `Trace` and as a file. Times are microseconds since the recording began.

worker = Process("worker 0", "worker", "cpu", [
    span(STAGE, 0, 2, step=1), span(LAUNCH, 2, 3, step=1), span(FORWARD, 3, 9, step=1), span(SAMPLE, 9, 10, step=1)
])
trace = made_trace(worker)
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from protocol.messages import SpanKind
from timeline.trace import COMPUTE, COPY_IN, COPY_OUT, HOST, Lane, Trace

RECEIVE, SETTLE, PLAN, SEND, INTAKE, DELIVER = (SpanKind(kind) for kind in range(1, 7))
STAGE, LAUNCH, REPLY, TOKENIZE, DETOKENIZE, FLUSH, WAIT, IDLE = (SpanKind(kind) for kind in range(7, 15))
FORWARD, SAMPLE = SpanKind.FORWARD, SpanKind.SAMPLE

STARTED = "2026-11-30T02:00:00Z"

_LANE = {SpanKind.COPY_IN: COPY_IN, FORWARD: COMPUTE, SAMPLE: COMPUTE, SpanKind.COPY_OUT: COPY_OUT}
_LANE_NAMES = ("host", "copy in", "compute", "copy out")
_ARGUMENTS = ("step", "session", "rows", "tokens", "decodes", "wasted")


@dataclass(frozen=True)
class Span:
    kind: SpanKind
    start: float
    end: float
    step: int = 0
    session: int = 0
    rows: int = 0
    tokens: int = 0
    decodes: int = 0
    wasted: int = 0

    @property
    def tid(self) -> int:
        return _LANE.get(self.kind, HOST)


def span(
    kind: SpanKind,
    start: float,
    end: float,
    step: int = 0,
    *,
    session: int = 1,
    rows: int = 0,
    tokens: int = 0,
    decodes: int = 0,
    wasted: int = 0,
) -> Span:
    """One that belongs to no step has no session either."""
    return Span(kind, start, end, step, session if step else 0, rows, tokens, decodes, wasted)


@dataclass(frozen=True)
class Process:
    """Its spans may be in any order: kinds tell whether they are the host's or the device's."""

    name: str
    role: str
    device: str
    spans: Sequence[Span]


def made_trace(
    *processes: Process, name: str = "made.json", lost: int = 0, clock_error: float = 0, complete: bool = True
) -> Trace:
    """Processes are numbered from 1, in this order."""
    lanes = [
        _lane(pid, tid, process)
        for pid, process in enumerate(processes, 1)
        for tid in sorted({span.tid for span in process.spans})
    ]
    return Trace(name, STARTED, tuple(lanes), lost, round(clock_error * 1000), complete)


def _lane(pid: int, tid: int, process: Process) -> Lane:
    spans = sorted((span for span in process.spans if span.tid == tid), key=lambda span: span.start)
    return Lane(
        pid,
        tid,
        process.name,
        process.role,
        process.device,
        kind=np.array([span.kind for span in spans], np.uint8),
        start=np.array([round(span.start * 1000) for span in spans], np.int64),
        end=np.array([round(span.end * 1000) for span in spans], np.int64),
        **{name: np.array([getattr(span, name) for span in spans], np.int64) for name in _ARGUMENTS},
    )


def write_trace(path: Path, *processes: Process, lost: int = 0, clock_error: float = 0) -> Path:
    """Write what `made_trace` returns, one event a line, as gzip if the name ends so. Returns the path."""
    head = {"displayTimeUnit": "ms", "otherData": {"stepahead": 1, "started": STARTED}}
    lines = [json.dumps(event) for event in _events(processes, lost, clock_error)]
    text = json.dumps(head)[:-1] + ', "traceEvents": [\n' + ",\n".join(lines) + "\n]}\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def _events(processes: Sequence[Process], lost: int, clock_error: float) -> Iterator[dict[str, object]]:
    for pid, process in enumerate(processes, 1):
        about = {"role": process.role, "device": process.device, "host": "here", "clock_error_us": clock_error}
        yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": process.name}}
        yield {"ph": "M", "pid": pid, "name": "stepahead", "args": about}
        for tid in sorted({HOST, *(span.tid for span in process.spans)}):
            yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": _LANE_NAMES[tid]}}
        for span in process.spans:
            arguments = {name: getattr(span, name) for name in _ARGUMENTS if getattr(span, name)}
            name = span.kind.name.lower().replace("_", " ")
            times = {"ts": span.start, "dur": round(span.end - span.start, 3)}
            yield {"ph": "X", "pid": pid, "tid": span.tid, "name": name, **times, "args": arguments}
            if span.step and span.kind in (PLAN, FORWARD, SETTLE):
                phase = {PLAN: "s", FORWARD: "t", SETTLE: "f"}[span.kind]
                flow = {"cat": "step", "id": f"0x{span.session << 32 | span.step:x}"}
                yield {"ph": phase, "pid": pid, "tid": span.tid, "name": "step", **flow, "ts": span.start}
        if process.role == "scheduler":
            yield {"ph": "C", "pid": pid, "name": "requests", "ts": 0, "args": {"running": 1, "waiting": 0}}
    if lost:
        yield {"ph": "M", "pid": 1, "name": "stepahead_lost", "args": {"spans": lost}}


def lockstep_run(steps: int, rows: int = 4) -> tuple[Process, Process]:
    """A scheduler and a worker that take turns: a step of 800 µs, then 200 µs in which the device waits for Python.

    0        800  820  850  900  920        950  980 1000   (µs from the start of a step)
    ├ device ─┤                                        ├ …
              ├reply┤
                   ├settle┤plan┤send┤    ├stage┤launch┤
    """
    scheduler, worker = [_plan(0, 1, rows), span(SEND, 50, 100, 1)], [span(STAGE, 150, 180, 1)]
    worker.append(span(LAUNCH, 180, 200, 1, rows=rows, tokens=rows, decodes=rows))
    for step in range(1, steps + 1):
        at = 200 + (step - 1) * 1000
        worker += _device_step(at, step, rows)
        worker += [span(WAIT, at, at + 800), span(REPLY, at + 800, at + 820, step)]
        scheduler += [span(WAIT, at - 80, at + 820), _settle(at + 820, step, rows)]
        if step < steps:
            scheduler += [_plan(at + 850, step + 1, rows), span(SEND, at + 900, at + 920, step + 1)]
            worker += [span(STAGE, at + 950, at + 980, step + 1), span(LAUNCH, at + 980, at + 1000, step + 1)]
    return Process("scheduler", "scheduler", "", scheduler), Process("worker 0", "worker", "cpu", worker)


def overlapped_run(steps: int, rows: int = 4) -> tuple[Process, Process]:
    """The same steps, but what Python does for the next one happens during this one: the device never waits."""
    scheduler, worker = [_plan(0, 1, rows), span(SEND, 50, 100, 1)], [span(STAGE, 150, 180, 1)]
    worker.append(span(LAUNCH, 180, 200, 1, rows=rows, tokens=rows, decodes=rows))
    for step in range(1, steps + 1):
        at = 200 + (step - 1) * 800
        worker += _device_step(at, step, rows)
        if step > 1:
            worker.append(span(REPLY, at, at + 20, step - 1))
            scheduler.append(_settle(at + 20, step - 1, rows))
        if step < steps:
            scheduler += [_plan(at + 50, step + 1, rows), span(SEND, at + 100, at + 120, step + 1)]
            worker += [span(STAGE, at + 150, at + 180, step + 1), span(LAUNCH, at + 180, at + 200, step + 1)]
        scheduler.append(span(WAIT, at + 120, at + 800))
        worker.append(span(WAIT, at + 200, at + 800))
    at = 200 + steps * 800
    worker.append(span(REPLY, at, at + 20, steps))
    scheduler.append(_settle(at + 20, steps, rows))
    return Process("scheduler", "scheduler", "", scheduler), Process("worker 0", "worker", "cpu", worker)


def _device_step(at: float, step: int, rows: int) -> list[Span]:
    counts = {"rows": rows, "tokens": rows, "decodes": rows}
    return [
        span(SpanKind.COPY_IN, at - 10, at, step),
        span(FORWARD, at, at + 750, step, **counts),
        span(SAMPLE, at + 750, at + 800, step, **counts),
        span(SpanKind.COPY_OUT, at + 800, at + 805, step),
    ]


def _plan(at: float, step: int, rows: int) -> Span:
    return span(PLAN, at, at + 50, step, rows=rows, tokens=rows, decodes=rows)


def _settle(at: float, step: int, rows: int) -> Span:
    return span(SETTLE, at, at + 30, step, tokens=rows)
