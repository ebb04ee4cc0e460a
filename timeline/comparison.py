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
from timeline.wording import UNKNOWN, duration, number, percent, points, table, times


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
        print(json.dumps(both, indent=2, ensure_ascii=False))
    else:
        print(text(str(given.a), str(given.b), a, b))
    if given.out:
        draw_beside(traces, given.out)
    return 0


def text(a_name: str, b_name: str, a: Report, b: Report) -> str:
    """Return the comparison as a Markdown table that is readable as it is."""
    notes = [f"NOTE: {name}: {problem}" for name, found in ((a_name, a), (b_name, b)) for problem in found.problems]
    rows = [
        [figure.name, _shown(figure.unit, figure.a), _shown(figure.unit, figure.b), _relation(figure)]
        for figure in compare(a, b)
    ]
    parts = ["\n".join(notes)] if notes else []
    return "\n\n".join([*parts, table(["", a_name, b_name, "change"], rows)])


def _figures(of: Report) -> Iterator[tuple[str, Unit, float | None]]:
    """Yield the same names for every report."""
    yield "whole run", Unit.NS, of.run_ns
    yield "steady state", Unit.NS, of.steady_ns
    device = of.together
    yield "device active, steady state", Unit.SHARE, device.busy_share if device else None
    yield "device idle, steady state", Unit.SHARE, device.idle_share if device else None
    yield "device idle, steady state, time", Unit.NS, device.idle_ns if device else None
    yield "device idle, whole run", Unit.SHARE, 1 - device.busy_share_of_run if device else None
    yield "gain if it were never idle", Unit.RATIO, device.gain if device else None
    yield "idle gaps", Unit.COUNT, device.gaps.count if device else None
    yield "idle gap, p50", Unit.NS, device.gaps.p50_ns if device else None
    yield "idle gap, p99", Unit.NS, device.gaps.p99_ns if device else None
    yield "idle gap, longest", Unit.NS, device.gaps.max_ns if device else None
    by_kind = {steps.kind: steps for steps in device.steps} if device else {}
    for kind in STEP_KINDS:
        steps = by_kind.get(kind)
        yield f"{kind} steps", Unit.COUNT, steps.count if steps else None
        yield f"{kind} step, p50", Unit.NS, steps.p50_ns if steps else None
        yield f"{kind} step, p99", Unit.NS, steps.p99_ns if steps else None
    yield "tokens", Unit.COUNT, of.settled.tokens if of.settled else None
    yield "tokens a second, steady state", Unit.PER_SECOND, of.settled.tokens_per_second if of.settled else None
    yield "wasted rows", Unit.SHARE, of.settled.wasted_share if of.settled else None
    for role in (SCHEDULER, WORKER):
        processes = [process for process in of.processes if process.role == role]
        cpu = sum(process.cpu_ns for process in processes)
        known = cpu and all(process.hidden_ns is not None for process in processes)
        hidden = sum(process.hidden_ns or 0 for process in processes) / cpu if known else None
        yield f"CPU time of {role}s", Unit.NS, cpu if processes else None
        yield f"hidden CPU time of {role}s", Unit.SHARE, hidden


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
