"""Spans as events of Chrome's trace format, one line of JSON each. timeline/trace.py describes the file."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from protocol.messages import Load, SpanKind, Spans
from timeline.trace import COMPUTE, COPY_IN, COPY_OUT, HOST, NUMBERS

LANES = {SpanKind.COPY_IN: COPY_IN, SpanKind.FORWARD: COMPUTE, SpanKind.SAMPLE: COMPUTE, SpanKind.COPY_OUT: COPY_OUT}
"""Of the spans that are a device's; all others are the host's."""

LANE_NAMES = {HOST: "host", COPY_IN: "copy in", COMPUTE: "compute", COPY_OUT: "copy out"}

_NAMES = {kind.value: kind.name.lower().replace("_", " ") for kind in SpanKind}
_LANES = {kind.value: LANES.get(kind, HOST) for kind in SpanKind}
_FLOWS = {SpanKind.PLAN.value: "s", SpanKind.FORWARD.value: "t", SpanKind.SETTLE.value: "f"}
"""A step's arrows: plan ─► compute ─► settle."""


def about_process(process: int, name: str, role: str, device: str, host: str, clock_error: int) -> list[str]:
    """Return what names a process, the `process`-th of all, and its lanes; `clock_error` is in nanoseconds."""
    lanes = LANE_NAMES if device else {HOST: LANE_NAMES[HOST]}
    about = {"role": role, "device": device, "host": host, "clock_error_us": clock_error / 1e3}
    return [
        _metadata(process, HOST, "process_name", {"name": name}),
        _metadata(process, HOST, "process_sort_index", {"sort_index": process}),
        _metadata(process, HOST, "stepahead", about),
        *(_metadata(process, lane, "thread_name", {"name": name}) for lane, name in lanes.items()),
    ]


def lost_spans(process: int, count: int) -> str:
    """Return what says that so many spans of a process are missing."""
    return _metadata(process, HOST, "stepahead_lost", {"spans": count})


def since(spans: Spans, origin: int) -> NDArray[np.bool_]:
    """Return for each span whether it ended at `origin` or later, by its process's clock in nanoseconds."""
    return spans.end.astype(np.int64) >= origin


def events_of(spans: Spans, process: int, origin: int) -> Iterator[str]:
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
        where = _where(process, _LANES[kind])
        times = f'"ts":{_microseconds(ts)},"dur":{_microseconds(dur)}'
        yield f'{{"ph":"X",{where},{times},"name":"{_NAMES[kind]}","args":{{{arguments}}}}}'
        if step and kind in _FLOWS:
            # An arrow belongs to the span around it. Where a span begins, the one before it ends: hence inside of it.
            inside = f'"ts":{_microseconds(ts + (dur > 1))}'
            binding = "" if kind == SpanKind.PLAN else ',"bp":"e"'
            name = f'"name":"step","cat":"step","id":"{_arrow(session, step)}"'
            yield f'{{"ph":"{_FLOWS[kind]}",{where},{inside},{name}{binding}}}'


def counters_of(load: Load, process: int, origin: int) -> Iterator[str]:
    """Yield a scheduler's load as counters; `origin` is as in `events_of`."""
    if load.time >= origin:
        where = f'"ph":"C",{_where(process, HOST)},"ts":{_microseconds(load.time - origin)}'
        free = load.blocks - load.blocks_used
        yield f'{{{where},"name":"requests","args":{{"running":{load.running},"waiting":{load.waiting}}}}}'
        yield f'{{{where},"name":"KV blocks","args":{{"used":{load.blocks_used},"free":{free}}}}}'


def _microseconds(nanoseconds: int) -> str:
    whole, rest = divmod(nanoseconds, 1000)
    return f"{whole}.{rest:03d}"


def _where(process: int, lane: int) -> str:
    return f'"pid":{process * NUMBERS},"tid":{process * NUMBERS + lane}'


def _arrow(session: int, step: int) -> str:
    """Return a name for a step's arrows: Perfetto takes 64 bits in hexadecimal digits, and no others."""
    return f"0x{session << 32 | step & 0xFFFF_FFFF:x}"


def _metadata(process: int, lane: int, name: str, arguments: dict[str, object]) -> str:
    event = {"ph": "M", "pid": process * NUMBERS, "tid": process * NUMBERS + lane, "name": name, "args": arguments}
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False)
