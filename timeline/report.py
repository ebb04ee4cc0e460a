"""Say where the time went: how long devices were active and idle, what they waited for, what was hidden behind them.

The steady state is what lies between the start of a device's first step and the end of its last, less the time without
work: if its scheduler had nothing to do while the device stood still, all until it had again. What remains is active or
an idle gap. Host time is what processes do while they don't wait, as it passes on the clock; it is hidden while a
device computes. Each row is explained in docs/timeline.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from timeline.device import StepId
from timeline.figures import (
    DECODE,
    STEP_KINDS,
    Cause,
    DeviceFigures,
    Gap,
    LoadFigures,
    Report,
    StepFigures,
)
from timeline.part import seconds
from timeline.reckoning import report
from timeline.trace import read_trace
from timeline.wording import UNKNOWN, duration, number, percent, table, times

CAUSES_OF_A_GAP = 3
CAUSES_OF_ALL = 12


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what can be chosen."""
    parser.add_argument("file", type=Path, metavar="FILE", help="a timeline, plain or .gz")
    parser.add_argument(
        "--from",
        dest="start",
        type=seconds,
        metavar="SECONDS",
        help="leave out what began earlier, such as a warm-up; counted from the recording's begin",
    )
    parser.add_argument("--to", dest="end", type=seconds, metavar="SECONDS", help="leave out what ended later")
    parser.add_argument("--json", action="store_true", help="print JSON: all times in nanoseconds, shares from 0 to 1")


def run(given: argparse.Namespace) -> int:
    """Print the report. Raises `TraceError`."""
    found = report(read_trace(given.file), given.start, given.end)
    print(json.dumps(asdict(found), indent=2) if given.json else text(found))
    return 0


def text(found: Report) -> str:
    """Return the report as Markdown tables that are readable as they are."""
    return "\n\n".join(_parts(found))


def _parts(found: Report) -> Iterator[str]:
    yield f"{found.name}{_part_of(found)}: {duration(found.run_ns)}" + (
        f", recorded {found.started}" if found.started else ""
    )
    if found.setup:
        yield "\n".join(found.setup)
    if found.problems:
        yield "\n".join(f"NOTE: {problem}" for problem in found.problems)
    if found.together is not None:
        columns = list(found.devices)
        if len(columns) > 1:
            columns.append(found.together)
        heads = [f"{device.process} ({device.device})" for device in found.devices]
        yield table(["", *heads, "together, device time"][: len(columns) + 1], _device_rows(columns))
    if found.settled is not None:
        yield _settled(found)
    if found.load:
        yield "\n".join(map(_load, found.load))
    if found.processes:
        yield _processes(found)
    if found.together is not None and found.together.gaps.count:
        gaps = found.together.gaps
        yield table(["what idle devices waited for", "time", "of idle time"], _cause_rows(gaps.causes))
        several = len(found.devices) > 1
        yield table(
            ["longest gaps: at", "idle for", "between steps", "waiting for"],
            [[_at(gap, several), duration(gap.ns), *_around(gap)] for gap in gaps.worst],
            left=4,
        )
    if found.clock_error_ns:
        yield f"Clocks of devices and hosts agree within {duration(found.clock_error_ns)}."


def _device_rows(devices: Sequence[DeviceFigures]) -> list[list[str]]:
    """Return a row for each figure, with a column for each device."""
    rows = [
        ["whole run", *(duration(each.run_ns) for each in devices)],
        ["active, whole run", *(_part(each.busy_ns, each.busy_share_of_run) for each in devices)],
        ["idle, whole run", *(_part(each.idle_of_run_ns, 1 - each.busy_share_of_run) for each in devices)],
        ["steady state", *(duration(each.steady_ns) for each in devices)],
        ["active, steady state", *(_part(each.busy_ns, each.busy_share) for each in devices)],
        *_part_rows(devices),
        ["idle, steady state", *(_part(each.idle_ns, each.idle_share) for each in devices)],
        ["gain if it were never idle", *(times(each.gain) for each in devices)],
        ["idle gaps", *(number(each.gaps.count) for each in devices)],
        ["idle gaps that follow no work", *(number(each.gaps.after_no_work) for each in devices)],
        ["idle gap, p50 / p99", *(_spread(each.gaps.p50_ns, each.gaps.p99_ns) for each in devices)],
        ["idle gap, longest", *(duration(each.gaps.max_ns) for each in devices)],
    ]
    for kind in STEP_KINDS:
        steps = [next((steps for steps in each.steps if steps.kind == kind), None) for each in devices]
        if any(steps):
            rows += _step_rows(kind, steps)
    return rows


def _step_rows(kind: str, steps: Sequence[StepFigures | None]) -> Iterator[list[str]]:
    def row(name: str, show: Callable[[StepFigures], str], otherwise: str = UNKNOWN) -> list[str]:
        return [f"{kind} {name}", *(show(each) if each else otherwise for each in steps)]

    yield row("steps", lambda each: number(each.count), "0")
    yield row("tokens", lambda each: number(each.tokens), "0")
    yield row("rows a step, p50 / p99", lambda each: f"{each.rows_p50:,} / {each.rows_p99:,}")
    if kind != DECODE:  # there a row is a token
        yield row("tokens a step, p50 / p99", lambda each: f"{each.tokens_p50:,} / {each.tokens_p99:,}")
    yield row("step, p50 / p99", lambda each: _spread(each.p50_ns, each.p99_ns))


def _part_rows(devices: Sequence[DeviceFigures]) -> list[list[str]]:
    """Return what the active time was made of, and what was copied beside it."""
    rows = []
    parts = [{part.span: part for part in each.parts} for each in devices]
    for span, where in (("forward", "of"), ("sample", "of"), ("copy in", "beside"), ("copy out", "beside")):
        found = [each.get(span) for each in parts]
        if any(found):
            cells = (_part(each.total_ns, each.share) if each else UNKNOWN for each in found)
            rows.append([f"{span}, {where} active time", *cells])
    return rows


def _settled(found: Report) -> str:
    settled = found.settled
    assert settled is not None
    line = f"{settled.tokens:,} tokens settled"
    if settled.tokens_per_second is not None:
        line += f", {number(settled.tokens_per_second)} a second of "
        several = f"the {duration(found.steady_ns)} in which any device was in its steady state"
        line += several if len(found.devices) > 1 else "steady state"
    if settled.wasted_share is not None:
        line += f"; {settled.wasted:,} of {settled.rows:,} rows wasted ({percent(settled.wasted_share)})"
    return line + "."


def _load(load: LoadFigures) -> str:
    said = f"{load.process}, mean (most): {load.running_mean:.1f} ({load.running_max:,}) requests running, "
    said += f"{load.waiting_mean:.1f} ({load.waiting_max:,}) waiting"
    if load.blocks_share_mean is not None:
        said += f", {percent(load.blocks_share_mean)} ({percent(load.blocks_share_max)}) of KV blocks in use"
    return said + "."


def _part_of(found: Report) -> str:
    """Return which part of the recording is told of; nothing if it is all."""
    start = "" if found.from_ns is None else f" from {duration(found.from_ns)}"
    return start + ("" if found.to_ns is None else f" to {duration(found.to_ns)}")


def _processes(found: Report) -> str:
    rows = []
    for process in found.processes:
        hidden = duration(process.hidden_ns), percent(process.hidden_share)
        rows.append([process.process, "", duration(process.host_ns), *hidden, "", ""])
        for span in process.spans:
            name = f"{span.span} ×{span.count:,}"
            rows.append(["", name, duration(span.total_ns), "", "", duration(span.p50_ns), duration(span.p99_ns)])
    return table(["process", "spans", "host time", "hidden", "of it", "p50", "p99"], rows, left=2)


def _cause_rows(causes: Sequence[Cause]) -> list[list[str]]:
    """Return rows that add up to all idle time."""
    rows = [[_doing(cause), duration(cause.ns), percent(cause.share)] for cause in causes[:CAUSES_OF_ALL]]
    rest = causes[CAUSES_OF_ALL:]
    if rest:
        ns, share = sum(cause.ns for cause in rest), sum(cause.share for cause in rest)
        rows.append(["all else", duration(ns), percent(share)])
    return rows


def _spread(p50: float | None, p99: float | None) -> str:
    return f"{duration(p50)} / {duration(p99)}" if p50 is not None else UNKNOWN


def _part(ns: int, share: float) -> str:
    return f"{duration(ns)}, {percent(share)}"


def _at(gap: Gap, several: bool) -> str:
    return duration(gap.at_ns) + (f", {gap.process}" if several else "")


def _around(gap: Gap) -> tuple[str, str]:
    causes = ", ".join(f"{_doing(cause)} {percent(cause.share)}" for cause in gap.causes[:CAUSES_OF_A_GAP])
    between = f"{_step(gap.before)} → {_step(gap.after)}" + (", no work before" if gap.after_no_work else "")
    return between, causes


def _step(step: StepId) -> str:
    return str(step[1]) if step[1] else "?"


def _doing(cause: Cause) -> str:
    return f"{cause.process} {cause.span}" if cause.process else cause.span
