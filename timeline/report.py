"""Say where the time went: how long devices were active and idle, what they waited for, what was hidden behind them.

The steady state is what lies between the start of a device's first step and the end of its last, less the time without
work: if its scheduler had nothing to do while the device stood still, all until it had again. What remains is active or
an idle gap. CPU time is what schedulers and workers do while they don't wait; it is hidden while a device computes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from timeline.device import StepId
from timeline.figures import STEP_KINDS, Cause, DeviceFigures, Gap, Report
from timeline.reckoning import report
from timeline.trace import read_trace
from timeline.wording import UNKNOWN, duration, number, percent, table, times

CAUSES_OF_A_GAP = 3
CAUSES_OF_ALL = 12


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what can be chosen."""
    parser.add_argument("file", type=Path, metavar="FILE", help="a timeline, plain or .gz")
    parser.add_argument("--json", action="store_true", help="print JSON: all times in nanoseconds, shares from 0 to 1")


def run(given: argparse.Namespace) -> int:
    """Print the report. Raises `TraceError`."""
    found = report(read_trace(given.file))
    print(json.dumps(asdict(found), indent=2, ensure_ascii=False) if given.json else text(found))
    return 0


def text(found: Report) -> str:
    """Return the report as Markdown tables that are readable as they are."""
    return "\n\n".join(_parts(found))


def _parts(found: Report) -> Iterator[str]:
    yield f"{found.name}: {duration(found.run_ns)}" + (f", recorded {found.started}" if found.started else "")
    if found.problems:
        yield "\n".join(f"NOTE: {problem}" for problem in found.problems)
    if found.together is not None:
        columns = list(found.devices)
        if len(columns) > 1:
            columns.append(found.together)
        heads = [f"{device.process} ({device.device})" for device in found.devices]
        yield table(["", *heads, "together"][: len(columns) + 1], _device_rows(columns))
    if found.settled is not None:
        yield _settled(found)
    if found.processes:
        yield _processes(found)
    if found.together is not None and found.together.gaps.count:
        gaps = found.together.gaps
        yield table(
            ["what idle devices waited for", "time", "of idle time"],
            [[_doing(cause), duration(cause.ns), percent(cause.share)] for cause in gaps.causes[:CAUSES_OF_ALL]],
        )
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
            rows += [
                [f"{kind} steps", *(number(each.count if each else 0) for each in steps)],
                [f"{kind} tokens", *(number(each.tokens if each else 0) for each in steps)],
                [
                    f"{kind} step, p50 / p99",
                    *(_spread(each.p50_ns, each.p99_ns) if each else UNKNOWN for each in steps),
                ],
            ]
    return rows


def _settled(found: Report) -> str:
    settled = found.settled
    assert settled is not None
    line = f"{settled.tokens:,} tokens settled"
    if settled.tokens_per_second is not None:
        line += f", {number(settled.tokens_per_second)} a second of steady state"
    if settled.wasted_share is not None:
        line += f"; {settled.wasted:,} of {settled.rows:,} rows wasted ({percent(settled.wasted_share)})"
    return line + "."


def _processes(found: Report) -> str:
    rows = []
    for process in found.processes:
        hidden = duration(process.hidden_ns), percent(process.hidden_share)
        rows.append([process.process, "", duration(process.cpu_ns), *hidden, "", ""])
        for span in process.spans:
            name = f"{span.span} ×{span.count:,}"
            rows.append(["", name, duration(span.total_ns), "", "", duration(span.p50_ns), duration(span.p99_ns)])
    return table(["process", "spans", "CPU time", "hidden", "of it", "p50", "p99"], rows, left=2)


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
