"""Put two timelines side by side, such as the same work done in turns and done ahead."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from timeline.draw import OUT_HELP, draw_beside, writer
from timeline.figures import STEP_KINDS, Report
from timeline.reckoning import report
from timeline.trace import SCHEDULER, WORKER, read_trace
from timeline.wording import UNKNOWN, duration, number, percent, plain, points, table, times

COMPARABLE = (
    "Step times of two runs can be compared if both had the same work and a machine of their own: what else runs there "
    "changes them by more than most differences that are looked for."
)


class Unit(StrEnum):
    """What a figure is measured in."""

    NS = "ns"
    SHARE = "share"  # from 0 to 1
    COUNT = "count"
    PER_SECOND = "per second"
    RATIO = "ratio"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of both; None where a timeline does not have it.

    `relative` is b / a, or b − a for shares; None where either is unknown, or a is 0.
    """

    name: str
    unit: Unit
    a: float | None
    b: float | None
    relative: float | None


def compare(a: Report, b: Report) -> tuple[Figure, ...]:
    """Return the figures of two reports, over all of their devices, in the order of a table."""
    return tuple(
        Figure(name, unit, first, second, _relative(unit, first, second))
        for (name, unit, first), (_, _, second) in zip(_figures(a), _figures(b), strict=True)
        if first is not None or second is not None
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what can be chosen."""
    parser.add_argument("a", type=Path, metavar="A", help="a timeline, plain or .gz")
    parser.add_argument("b", type=Path, metavar="B", help="another one")
    parser.add_argument("--out", type=Path, metavar="PICTURE", help=OUT_HELP)
    parser.add_argument("--json", action="store_true", help="print JSON: both reports, and the figures of the table")


def run(given: argparse.Namespace) -> int:
    """Print the comparison, and draw it if that was asked for. Raises `TraceError`."""
    if given.out:
        writer(given.out)  # before anything is read: can it be drawn?
    traces = [read_trace(path) for path in (given.a, given.b)]
    a, b = (report(trace) for trace in traces)
    figures = compare(a, b)
    if given.json:
        both = {"a": asdict(a), "b": asdict(b), "figures": [asdict(figure) for figure in figures]}
        print(json.dumps(both | {"problems": work_differs(a, b)}, indent=2))
    else:
        print(text(plain(str(given.a)), plain(str(given.b)), a, b))
    if given.out:
        draw_beside(traces, given.out)
    return 0


def text(a_name: str, b_name: str, a: Report, b: Report) -> str:
    """Return the comparison as a Markdown table that is readable as it is."""
    notes = [f"NOTE: {name}: {problem}" for name, found in ((a_name, a), (b_name, b)) for problem in found.problems]
    notes += [f"NOTE: {problem}" for problem in work_differs(a, b)]
    rows = [
        [figure.name, _shown(figure.unit, figure.a), _shown(figure.unit, figure.b), _relation(figure)]
        for figure in compare(a, b)
    ]
    parts = ["\n".join(notes)] if notes else []
    return "\n\n".join([*parts, table(["", a_name, b_name, "change"], rows), COMPARABLE])


def work_differs(a: Report, b: Report) -> list[str]:
    """Return a sentence if two runs had other tokens to compute or to settle, as far as that is known."""
    differences = []
    for name, first, second in zip(("prompt tokens", "settled tokens"), _work(a), _work(b), strict=True):
        if first is not None and second is not None and first != second:
            differences.append(f"{first:,} and {second:,} {name}")
    if not differences:
        return []
    return [f"The work differs: {', '.join(differences)}. Steps of other work take other times."]


def _work(of: Report) -> tuple[int | None, int | None]:
    """Return how many tokens of prompts were computed, and how many tokens were settled."""
    steps = of.together.steps if of.together else ()
    prompts = sum(kind.tokens - kind.decodes for kind in steps) if steps else None
    return prompts, of.settled.tokens if of.settled else None


def _figures(of: Report) -> Iterator[tuple[str, Unit, float | None]]:
    """Yield the same names for every report."""
    yield "whole run", Unit.NS, of.run_ns
    yield "steady state", Unit.NS, of.steady_ns
    device = of.together
    yield "device active, steady state", Unit.SHARE, device.busy_share if device else None
    yield "device idle, steady state", Unit.SHARE, device.idle_share if device else None
    yield "device idle, steady state, device time", Unit.NS, device.idle_ns if device else None
    yield "device idle, whole run", Unit.SHARE, 1 - device.busy_share_of_run if device else None
    yield "gain if it were never idle", Unit.RATIO, device.gain if device else None
    parts = {part.span: part.share for part in device.parts} if device else {}
    yield "forward, of active time", Unit.SHARE, parts.get("forward")
    yield "sample, of active time", Unit.SHARE, parts.get("sample")
    yield "idle gaps", Unit.COUNT, device.gaps.count if device else None
    yield "idle gap, p50", Unit.NS, device.gaps.p50_ns if device else None
    yield "idle gap, p99", Unit.NS, device.gaps.p99_ns if device else None
    yield "idle gap, longest", Unit.NS, device.gaps.max_ns if device else None
    by_kind = {steps.kind: steps for steps in device.steps} if device else {}
    for kind in STEP_KINDS:
        steps = by_kind.get(kind)
        yield f"{kind} steps", Unit.COUNT, steps.count if steps else None
        yield f"{kind} rows a step, p50", Unit.COUNT, steps.rows_p50 if steps else None
        yield f"{kind} step, p50", Unit.NS, steps.p50_ns if steps else None
        yield f"{kind} step, p99", Unit.NS, steps.p99_ns if steps else None
    yield "tokens", Unit.COUNT, of.settled.tokens if of.settled else None
    yield "tokens a second, steady state", Unit.PER_SECOND, of.settled.tokens_per_second if of.settled else None
    yield "wasted rows", Unit.SHARE, of.settled.wasted_share if of.settled else None
    for role in (SCHEDULER, WORKER):
        processes = [process for process in of.processes if process.role == role]
        host = sum(process.host_ns for process in processes)
        known = host and all(process.hidden_ns is not None for process in processes)
        hidden = sum(process.hidden_ns or 0 for process in processes) / host if known else None
        yield f"host time of {role}s", Unit.NS, host if processes else None
        yield f"hidden host time of {role}s", Unit.SHARE, hidden


def _relative(unit: Unit, a: float | None, b: float | None) -> float | None:
    if a is None or b is None:
        return None
    if unit is Unit.SHARE:
        return b - a
    return b / a if a else None


def _shown(unit: Unit, value: float | None) -> str:
    show = {
        Unit.NS: duration, Unit.SHARE: percent, Unit.COUNT: number, Unit.PER_SECOND: number, Unit.RATIO: times,
    }[unit]  # fmt: skip
    return show(value)


def _relation(figure: Figure) -> str:
    if figure.relative is None:
        return UNKNOWN
    return points(figure.relative) if figure.unit is Unit.SHARE else times(figure.relative)
