"""The way of each step in a picture: lines from its plan to its computation, and from there to where it is settled."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from protocol.messages import SpanKind
from timeline.colours import OF_KIND
from timeline.flow import Flow, flows
from timeline.picture_rows import Placed
from timeline.trace import COMPUTE, HOST, SCHEDULER, WORKER, Lane
from timeline.window import View, Window

MOST_FLOWS = 60
"""More steps than this are a thicket of lines."""


def flows_seen(view: View) -> list[Flow]:
    """Return the steps whose way is drawn: none if they are too many."""
    found = [flow for flow in flows(view.trace, view.window) if flow.scheduler is not None]
    return found if len(found) <= MOST_FLOWS else []


def draw_flows(axes: Axes, view: View, placed: list[Placed], right: float) -> None:
    """Draw thin lines behind the spans, up to `right` in milliseconds; one step's, of the first device, are bold.

    On their way to another scheduler's or a second worker's device they pass lanes of others, and are thinner.
    """
    found = flows_seen(view)
    of_first = [flow for flow in found if flow.worker == found[0].worker]
    bold = of_first[len(of_first) // 2] if found else None
    lanes = [(each, each.row.shows) for each in placed if isinstance(each.row.shows, Lane)]
    hosts = {lane.pid: each.bottom for each, lane in lanes if lane.tid == HOST}
    devices = {lane.pid: each.top for each, lane in lanes if lane.tid == COMPUTE}
    order = list(dict.fromkeys(lane.pid for _, lane in lanes if lane.role in (SCHEDULER, WORKER)))
    for flow in found:
        if flow.scheduler is not None:
            near = order.index(flow.worker) - order.index(flow.scheduler) == 1
            _line(axes, view.window, flow, (hosts[flow.scheduler], devices[flow.worker]), right, flow is bold, near)


def _line(
    axes: Axes, window: Window, flow: Flow, between: tuple[float, float], right: float, bold: bool, near: bool
) -> None:
    top, bottom = sorted(between)
    clip = Rectangle((0, top), right, bottom - top, transform=axes.transData)
    for above, below, kind in (
        (flow.planned, flow.began, SpanKind.PLAN),
        (flow.settled, flow.ended, SpanKind.SETTLE),
    ):
        if above is not None:
            line = Line2D(
                [(above - window.start) / 1e6, (below - window.start) / 1e6],
                between,
                color=OF_KIND[kind],
                linewidth=1.6 if bold else 0.7 if near else 0.4,
                alpha=1.0 if bold else 0.6 if near else 0.45,
                zorder=4 if bold else 2,
            )
            axes.add_line(line)
            line.set_clip_path(clip)
