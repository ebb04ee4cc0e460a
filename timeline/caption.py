"""What a run's picture says in words."""

from __future__ import annotations

from dataclasses import dataclass

from timeline.figures import DeviceFigures, Report
from timeline.reckoning import report
from timeline.trace import Trace
from timeline.wording import duration, percent

SEPARATOR = "  ·  "
"""Between two figures: where a line may be broken."""


@dataclass(frozen=True, slots=True)
class Caption:
    """A run's name, its figures in one line, and sentences on what they lack."""

    name: str
    figures: str
    problems: tuple[str, ...]


def caption(trace: Trace) -> Caption:
    """Return what is said of a run; its figures are those of the steady state, as the report has them."""
    found = report(trace)
    name = trace.name.removesuffix(".gz").removesuffix(".json")
    return Caption(name, _figures(found, found.together) if found.together else "", found.problems)


def _figures(found: Report, device: DeviceFigures) -> str:
    said = [f"device active {percent(device.busy_share)}", f"idle {percent(device.idle_share)}"]
    for kind in device.steps[:1]:  # decode steps, if there are any: the mean of all is neither theirs nor a prefill's
        said.append(f"{kind.kind} step {duration(kind.p50_ns)} (median)")
    steps = sum(kind.count for kind in device.steps)
    if steps:
        said.append(f"{steps:,} steps in {duration(found.steady_ns)}")
    return "steady state: " + SEPARATOR.join(said)
