"""A timeline's figures: how they are reckoned from its spans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.messages import SpanKind
from timeline.device import Device, Steps, Wait, devices, step_keys, steps_of, working
from timeline.figures import (
    STEP_KINDS,
    WORST_GAPS,
    Cause,
    DeviceFigures,
    Gap,
    GapFigures,
    LoadFigures,
    PartFigures,
    ProcessFigures,
    Report,
    SettledFigures,
    SpanFigures,
    StepFigures,
)
from timeline.intervals import joined, union
from timeline.part import part_of
from timeline.trace import FRONTEND, HOST, KV_BLOCKS, REQUESTS, SCHEDULER, WORKER, Lane, Trace, name_of
from timeline.wording import natural


def report(trace: Trace, start: float | None = None, end: float | None = None) -> Report:
    """Return the figures of a trace, or of its part between two moments in seconds; what it lacks is in `problems`.

    Raises `TraceError` if there is no such part.
    """
    trace = part_of(trace, start, end)
    found = sorted(devices(trace), key=lambda device: natural(device.lane.process))
    hosts = sorted((lane for lane in trace.lanes if lane.tid == HOST), key=lambda lane: natural(lane.process))
    run_ns = _run(trace)
    steady = joined([device.steady for device in found]).total
    settled = _settled(trace, steady)
    return Report(
        name=trace.name,
        started=trace.started,
        setup=trace.setup,
        from_ns=None if start is None else round(1e9 * start),
        to_ns=None if end is None else round(1e9 * end),
        run_ns=run_ns,
        steady_ns=steady,
        devices=tuple(_device(run_ns, [device]) for device in found),
        together=_device(run_ns, found) if found else None,
        processes=tuple(_process(lane, found) for lane in hosts),
        settled=settled,
        load=tuple(_loads(trace)),
        lost=trace.lost,
        clock_error_ns=trace.clock_error,
        complete=trace.complete,
        problems=tuple(_problems(trace, found, settled)),
    )


def _run(trace: Trace) -> int:
    first = min((int(lane.start.min()) for lane in trace.lanes), default=0)
    return max((int(lane.end.max()) for lane in trace.lanes), default=0) - first


def _device(run_ns: int, of: Sequence[Device]) -> DeviceFigures:
    """Return the figures of devices, of which there is at least one."""
    run_ns *= len(of)
    busy = sum(device.busy.total for device in of)
    idle = sum(device.gaps.total for device in of)
    first_to_last = sum(int(device.busy.end[-1] - device.busy.start[0]) for device in of)
    return DeviceFigures(
        process=", ".join(device.lane.process for device in of),
        device=", ".join(dict.fromkeys(device.lane.device for device in of)),
        run_ns=run_ns,
        busy_ns=busy,
        idle_of_run_ns=run_ns - busy,
        busy_share_of_run=busy / run_ns,
        no_work_ns=first_to_last - busy - idle,
        steady_ns=busy + idle,
        idle_ns=idle,
        busy_share=busy / (busy + idle),
        idle_share=idle / (busy + idle),
        gain=(busy + idle) / busy,
        parts=tuple(_parts(of, busy)),
        gaps=_gaps(of),
        steps=_steps([steps_of(device) for device in of]),
    )


def _parts(of: Sequence[Device], busy: int) -> Iterator[PartFigures]:
    lanes = [lane for device in of for lane in (device.lane, *device.copies)]
    for kind in (SpanKind.FORWARD, SpanKind.SAMPLE, SpanKind.COPY_IN, SpanKind.COPY_OUT):
        spans = [(lane.start[lane.kind == kind], lane.end[lane.kind == kind]) for lane in lanes]
        ns = sum(union(start, end).total for start, end in spans)
        count = sum(len(start) for start, _ in spans)
        if count:
            yield PartFigures(name_of(kind), count, ns, ns / busy)


def _gaps(of: Sequence[Device]) -> GapFigures:
    length = np.concatenate([device.gaps.end - device.gaps.start for device in of])
    whose = np.concatenate([np.full(len(device.gaps), index) for index, device in enumerate(of)])
    which = np.concatenate([np.arange(len(device.gaps)) for device in of])
    worst = np.argsort(-length, kind="stable")[:WORST_GAPS]
    waits = [tuple(device.waits()) for device in of]
    p50, p99 = _spread(length)
    return GapFigures(
        count=len(length),
        after_no_work=sum(int((device.stopped < device.gaps.start).sum()) for device in of),
        p50_ns=p50,
        p99_ns=p99,
        max_ns=int(length.max()) if len(length) else None,
        worst=tuple(_gap(of[whose[each]], waits[whose[each]], int(which[each])) for each in worst),
        causes=_causes([(wait, wait.time.total) for each in waits for wait in each]),
    )


def _gap(device: Device, waits: Sequence[Wait], index: int) -> Gap:
    start, end = int(device.gaps.start[index]), int(device.gaps.end[index])
    this = slice(index, index + 1)
    parts = [(wait, int(wait.time.within(device.gaps.start[this], device.gaps.end[this])[0])) for wait in waits]
    return Gap(
        process=device.lane.process,
        at_ns=start,
        ns=end - start,
        before=device.before(index),
        after=device.after(index),
        after_no_work=bool(device.stopped[index] < start),
        causes=_causes(parts),
    )


def _causes(parts: Sequence[tuple[Wait, int]]) -> tuple[Cause, ...]:
    """Return what was waited for, and how long, longest first."""
    times: dict[tuple[str, str], int] = {}
    for wait, ns in parts:
        if ns:
            times[wait.process, wait.span] = times.get((wait.process, wait.span), 0) + ns
    total = sum(times.values())
    causes = [Cause(process, span, ns, ns / total) for (process, span), ns in times.items()]
    return tuple(sorted(causes, key=lambda cause: -cause.ns))


def _steps(of: Sequence[Steps]) -> tuple[StepFigures, ...]:
    time, rows, tokens, decodes = (
        np.concatenate([getattr(steps, name) for steps in of]) for name in ("time", "rows", "tokens", "decodes")
    )
    prefill = decodes == 0
    decode = ~prefill & (decodes == rows)
    kinds = zip(STEP_KINDS, (decode, ~decode & ~prefill, prefill), strict=True)
    return tuple(
        StepFigures(
            kind,
            int(which.sum()),
            int(rows[which].sum()),
            int(tokens[which].sum()),
            int(decodes[which].sum()),
            int(time[which].sum()),
            *np.percentile(time[which], [50, 99]).tolist(),
            *np.percentile(rows[which], [50, 99], method="inverted_cdf").tolist(),
            *np.percentile(tokens[which], [50, 99], method="inverted_cdf").tolist(),
        )
        for kind, which in kinds
        if which.any()
    )


def _process(lane: Lane, found: Sequence[Device]) -> ProcessFigures:
    work = working(lane)
    host = union(lane.start[work], lane.end[work])
    own = [device.busy for device in found if lane.role == FRONTEND or any(each is lane for each in device.hosts)]
    hidden = host.overlap(joined(own)) if own else None
    spans = []
    for kind in np.unique(lane.kind[work]):
        length = (lane.end - lane.start)[lane.kind == kind]
        p50, p99 = np.percentile(length, [50, 99]).tolist()
        spans.append(SpanFigures(name_of(kind), len(length), int(length.sum()), p50, p99))
    return ProcessFigures(
        process=lane.process,
        role=lane.role,
        host_ns=host.total,
        hidden_ns=hidden,
        hidden_share=None if hidden is None else _share(hidden, host.total),
        spans=tuple(sorted(spans, key=lambda span: -span.total_ns)),
    )


def _loads(trace: Trace) -> Iterator[LoadFigures]:
    told = {(counter.process, counter.name): counter for counter in trace.counters}
    for process in sorted({counter.process for counter in trace.counters if counter.name == REQUESTS}, key=natural):
        requests, blocks = told[process, REQUESTS], told.get((process, KV_BLOCKS))
        used: NDArray[np.float64] | None = None
        if blocks is not None:
            total = blocks.values["used"] + blocks.values["free"]
            used = blocks.values["used"] / np.maximum(total, 1)
        running, waiting = requests.values["running"], requests.values["waiting"]
        yield LoadFigures(
            process,
            _mean(requests.at, running),
            int(running.max()),
            _mean(requests.at, waiting),
            int(waiting.max()),
            None if blocks is None or used is None else _mean(blocks.at, used),
            None if used is None else float(used.max()),
        )


def _mean(at: NDArray[np.int64], values: NDArray[Any]) -> float:
    """Return the mean over the time from the first to the last; each value holds until the next is told."""
    held = np.diff(at)
    return float(np.average(values[:-1], weights=held) if held.any() else values.mean())


def _settled(trace: Trace, steady_ns: int) -> SettledFigures | None:
    tokens = rows = wasted = 0
    lanes = [lane for lane in trace.lanes if (lane.kind == SpanKind.SETTLE).any()]
    for lane in lanes:
        settle, plan = lane.kind == SpanKind.SETTLE, lane.kind == SpanKind.PLAN
        step = step_keys(lane)
        tokens += int(lane.tokens[settle].sum())
        rows += int(lane.rows[plan & np.isin(step, step[settle])].sum())
        wasted += int(lane.wasted[settle & np.isin(step, step[plan])].sum())
    if not lanes:
        return None
    return SettledFigures(tokens, _share(tokens * 10**9, steady_ns), rows, wasted, _share(wasted, rows))


def _problems(trace: Trace, found: Sequence[Device], settled: SettledFigures | None) -> list[str]:
    problems = []
    if not trace.complete:
        problems.append("The file has no end: it was cut off, or is still being written; this is what was there.")
    if trace.lost:
        problems.append(f"{trace.lost:,} spans were lost before they were written: what they took counts as idle.")
    if not trace.lanes:
        problems.append("There are no spans.")
        return problems
    roles = {lane.role for lane in trace.lanes}
    if not found:
        problems.append("There is no span of a device: nothing is known of active and idle time.")
    if WORKER in roles and SCHEDULER not in roles:
        problems.append("There is no span of a scheduler: time without work counts as idle.")
    problems += [
        f"No scheduler of {device.lane.process}'s steps is there: for it, time without work counts as idle."
        for device in found
        if SCHEDULER in roles and not any(lane.role == SCHEDULER for lane in device.hosts)
    ]
    if found and not any(len(steps_of(device).time) for device in found):
        problems.append("No span of a device names its step.")
    if settled is None:
        problems.append("No step was settled: tokens and wasted rows are unknown.")
    return problems


def _spread(samples: NDArray[np.int64]) -> tuple[float | None, float | None]:
    if not len(samples):
        return None, None
    p50, p99 = np.percentile(samples, [50, 99]).tolist()
    return p50, p99


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
