"""What a run's picture says in words."""

from __future__ import annotations

from timeline.figures import report
from timeline.trace import Trace


def caption(trace: Trace) -> tuple[str, str]:
    """Return a run's name, and its figures in one line: those of the steady state, as `report` has them."""
    name = trace.name.removesuffix(".gz").removesuffix(".json")
    found = report(trace).together
    if found is None:
        return name, "no device computed"
    steps = sum(kind.count for kind in found.steps)
    said = [f"device active {100 * found.busy_share:.1f} %", f"idle {100 * found.idle_share:.1f} %"]
    if steps:
        said += [f"{found.steady_ns / steps / 1e6:.2f} ms a step", f"{steps:,} steps in {found.steady_ns / 1e9:.1f} s"]
    return name, "  ·  ".join(said)
