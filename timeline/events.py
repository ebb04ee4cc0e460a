"""Spans as events of Chrome's trace format, one line of JSON each. timeline/trace.py describes the file."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from protocol.messages import Load, SpanKind, Spans
from timeline.trace import COMPUTE, COPY_IN, COPY_OUT, HOST

LANES = {SpanKind.COPY_IN: COPY_IN, SpanKind.FORWARD: COMPUTE, SpanKind.SAMPLE: COMPUTE, SpanKind.COPY_OUT: COPY_OUT}
"""Of the spans that are a device's; all others are the host's."""

LANE_NAMES = {HOST: "host", COPY_IN: "copy in", COMPUTE: "compute", COPY_OUT: "copy out"}

_NAMES = {kind.value: kind.name.lower().replace("_", " ") for kind in SpanKind}
_TIDS = {kind.value: LANES.get(kind, HOST) for kind in SpanKind}
_FLOWS = {SpanKind.PLAN.value: "s", SpanKind.FORWARD.value: "t", SpanKind.SETTLE.value: "f"}
"""A step's arrows: plan ─► compute ─► settle."""


def about_process(pid: int, name: str, role: str, device: str, host: str, clock_error: int) -> list[str]:
    """Return what names a process and its lanes; `clock_error` is in nanoseconds."""
    lanes = LANE_NAMES if device else {HOST: LANE_NAMES[HOST]}
    about = {"role": role, "device": device, "host": host, "clock_error_us": clock_error / 1e3}
    return [
        _metadata(pid, HOST, "process_name", {"name": name}),
        _metadata(pid, HOST, "process_sort_index", {"sort_index": pid}),
        _metadata(pid, HOST, "stepahead", about),
        *(_metadata(pid, tid, "thread_name", {"name": lane}) for tid, lane in lanes.items()),
    ]


def lost_spans(pid: int, count: int) -> str:
    """Return what says that so many spans of a process are missing."""
    return _metadata(pid, HOST, "stepahead_lost", {"spans": count})


def since(spans: Spans, origin: int) -> NDArray[np.bool_]:
    """Return for each span whether it ended at `origin` or later, by its process's clock in nanoseconds."""
    return spans.end.astype(np.int64) >= origin


def events_of(spans: Spans, pid: int, origin: int) -> Iterator[str]:
    """Yield a process's spans, and the arrows that begin, pass and end at them.

    `origin` is the process's clock, in nanoseconds, when the recording began; what ended before it is left out.
    """
    start = np.maximum(spans.start.astype(np.int64) - origin, 0)
    end = spans.end.astype(np.int64) - origin
    wanted = since(spans, origin)
    columns = (spans.kind, start, end - start, spans.step, spans.session, spans.rows, spans.tokens, spans.decodes,
               spans.wasted)  # fmt: skip
    for kind, ts, dur, step, session, rows, tokens, decodes, wasted in zip(
        *(column[wanted].tolist() for column in columns), strict=True
    ):
        arguments = ",".join(
            f'"{name}":{value}'
            for name, value in (("step", step), ("session", session), ("rows", rows), ("tokens", tokens),
                                ("decodes", decodes), ("wasted", wasted))
            if value
        )  # fmt: skip
        tid = _TIDS[kind]
        where = f'"pid":{pid},"tid":{tid},"ts":{_microseconds(ts)}'
        yield f'{{"ph":"X",{where},"dur":{_microseconds(dur)},"name":"{_NAMES[kind]}","args":{{{arguments}}}}}'
        if step and kind in _FLOWS:
            binding = "" if kind == SpanKind.PLAN else ',"bp":"e"'
            yield f'{{"ph":"{_FLOWS[kind]}",{where},"name":"step","cat":"step","id":"{session}.{step}"{binding}}}'


def counters_of(load: Load, pid: int, origin: int) -> Iterator[str]:
    """Yield a scheduler's load as counters; `origin` is as in `events_of`."""
    if load.time >= origin:
        where = f'"ph":"C","pid":{pid},"tid":{HOST},"ts":{_microseconds(load.time - origin)}'
        free = load.blocks - load.blocks_used
        yield f'{{{where},"name":"requests","args":{{"running":{load.running},"waiting":{load.waiting}}}}}'
        yield f'{{{where},"name":"KV blocks","args":{{"used":{load.blocks_used},"free":{free}}}}}'


def _microseconds(nanoseconds: int) -> str:
    whole, rest = divmod(nanoseconds, 1000)
    return f"{whole}.{rest:03d}"


def _metadata(pid: int, tid: int, name: str, arguments: dict[str, object]) -> str:
    event = {"ph": "M", "pid": pid, "tid": tid, "name": name, "args": arguments}
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False)
