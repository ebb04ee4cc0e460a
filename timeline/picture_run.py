"""One run in a picture: its rows under each other, in an axes whose x is milliseconds and whose y is points."""

from __future__ import annotations

import itertools

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from numpy.typing import NDArray

from protocol.messages import SpanKind
from timeline.caption import caption
from timeline.colours import BOTH, DEVICE_IDLE, DEVICE_ONLY, ODD_FORWARD, OF_KIND, OF_MOMENT, ink_on
from timeline.intervals import Intervals, union
from timeline.picture_axis import draw_axis
from timeline.picture_flows import draw_flows
from timeline.picture_rows import Placed, place
from timeline.picture_text import GREY, INK, TEXT, TEXT_IN_SPAN, TITLE, shortened, text_width
from timeline.rows import Row
from timeline.strip import Strip
from timeline.trace import COMPUTE, HOST, NOT_WORK, Lane, name_of
from timeline.window import View

# All lengths are points.
LABELS = 120.0
LABEL_GAP = 8.0

PADDING = 2.0
"""Between a span's label and its edges, at least."""
DOT = 0.36
"""Of a picture made of dots, 200 an inch. What happened is seen: no span is drawn narrower."""
EDGE = 3.0
"""Host spans at least this wide get a white edge, so that neighbours of one colour can be told apart."""
CROWDED = 0.8
"""Where a row has more spans than one for so much of its width, what it did is shown as shares of each dot's time."""

LANE = "#f3f5f7"
WAITING = "#c6ced6"
WAITING_HEIGHT = 1.2
IDLE_TINT = 0.16

STACKED = (DEVICE_IDLE, DEVICE_ONLY, BOTH)  # from the bottom

IN_SPAN = "in a span"
"""The group of all labels that must stay within a span."""


def draw_run(axes: Axes, view: View, rows: list[Row], top: float, width: float) -> None:
    """Draw `rows` of the view's run below `top`, in axes that are `width` wide."""
    _Run(axes, view, top, width).draw(place(rows, top))


class _Run:
    """The strokes; x is what an axes' limits say."""

    def __init__(self, axes: Axes, view: View, top: float, width: float) -> None:
        self._axes = axes
        self._view = view
        self._window = view.window
        self._top = top
        low, high = axes.get_xlim()
        self._right = min(high, (view.window.end - view.window.start) / 1e6)
        self._width = width
        self._points = width / (high - low)  # per millisecond

    def draw(self, placed: list[Placed]) -> None:
        self._heading()
        for each in placed:
            self._label(each)
            self._background(each)
            if isinstance(each.row.shows, Strip):
                self._strip(each, each.row.shows)
            else:
                self._lane(each, each.row.shows)
        self._idle_device(placed)
        draw_flows(self._axes, self._view, placed, self._right)
        draw_axis(self._axes, self._window, placed[-1].bottom, self._right)

    def _heading(self) -> None:
        words = caption(self._view.trace)
        name = shortened(words.name, self._width, TITLE)
        for text, below, size, weight, colour in (
            (name, 9.0, TITLE, "bold", INK),
            (words.figures, 25.0, TEXT, "normal", INK),
        ):
            self._axes.text(
                0,
                self._top + below,
                text,
                size=size,
                weight=weight,
                color=colour,
                va="center",
                ha="left",
                clip_on=False,
            )

    def _label(self, placed: Placed) -> None:
        own = isinstance(placed.row.shows, Lane) and placed.row.shows.tid == HOST
        self._axes.annotate(
            shortened(placed.row.label, LABELS, TEXT),
            (0, placed.top + placed.height / 2),
            (-LABEL_GAP, 0),
            textcoords="offset points",
            size=TEXT,
            weight="bold" if own else "normal",
            color=INK if own else GREY,
            ha="right",
            va="center",
            annotation_clip=False,
        )

    def _background(self, placed: Placed) -> None:
        self._boxes(placed, np.zeros(1), np.full(1, self._right), LANE, zorder=0.5)

    def _strip(self, placed: Placed, strip: Strip) -> None:
        self._stack(placed, [(OF_MOMENT[moment], strip.times(moment)) for moment in STACKED])

    def _lane(self, placed: Placed, lane: Lane) -> None:
        starts, ends = self._ms(lane.start), self._ms(lane.end)
        inside = (ends > 0) & (starts < self._right)
        kinds = [SpanKind(value) for value in np.unique(lane.kind[inside])]
        work = [kind for kind in kinds if kind not in NOT_WORK]
        if SpanKind.WAIT in kinds:
            self._waiting(placed, lane)
        if inside.sum() > self._width / CROWDED:
            of_kind = {kind: inside & (lane.kind == kind) for kind in work}
            self._stack(placed, [(OF_KIND[kind], union(lane.start[at], lane.end[at])) for kind, at in of_kind.items()])
            return
        for kind in work:
            at = inside & (lane.kind == kind)
            odd = (kind == SpanKind.FORWARD) & (lane.step % 2 == 1)
            edged = lane.tid == HOST
            self._work(placed, starts[at & ~odd], ends[at & ~odd], OF_KIND[kind], edged=edged)
            self._work(placed, starts[at & odd], ends[at & odd], ODD_FORWARD, edged=edged)
            if placed.height > TEXT_IN_SPAN + 2 * PADDING:
                self._names(placed, lane, kind, at)

    def _stack(self, placed: Placed, layers: list[tuple[str, Intervals]]) -> None:
        """Draw for how much of each dot's time each layer was there, the first one at the bottom; like dots as one."""
        offsets = np.linspace(0, self._width / self._points, round(self._width / DOT) + 1)
        offsets = np.append(offsets[offsets < self._right], self._right)
        dots: NDArray[np.int64] = np.unique(self._window.start + np.rint(offsets * 1e6).astype(np.int64))
        below = np.full(len(dots) - 1, placed.bottom)
        for colour, times in layers:
            above = below - placed.height * times.within(dots[:-1], dots[1:]) / np.diff(dots)
            new = np.concatenate(([True], (above[1:] != above[:-1]) | (below[1:] != below[:-1])))
            starts, ends = self._ms(dots[:-1][new]), self._ms(np.append(dots[:-1][new][1:], dots[-1]))
            at = (above < below)[new]
            self._rectangles(starts[at], ends[at], above[new][at], below[new][at], colour, zorder=3, smooth=False)
            below = above

    def _waiting(self, placed: Placed, lane: Lane) -> None:
        """Draw a line where a process waits; what interrupts it for less than a dot hides nothing."""
        at = lane.kind == SpanKind.WAIT
        dot = int(DOT / self._points * 1e6)
        times = union(lane.start[at], lane.end[at] + dot)
        starts, ends = self._ms(times.start), self._ms(times.end - dot)
        inside = (ends > 0) & (starts < self._right)
        middle = np.full(int(inside.sum()), placed.top + placed.height / 2)
        self._rectangles(
            starts[inside], ends[inside], middle - WAITING_HEIGHT / 2, middle + WAITING_HEIGHT / 2, WAITING, zorder=1
        )

    def _work(
        self, placed: Placed, starts: NDArray[np.float64], ends: NDArray[np.float64], colour: str, *, edged: bool
    ) -> None:
        hair = DOT / self._points
        narrow = ends - starts < hair
        middle = (starts + ends) / 2
        starts, ends = np.where(narrow, middle - hair / 2, starts), np.where(narrow, middle + hair / 2, ends)
        wide = ((ends - starts) * self._points >= EDGE) & edged
        self._boxes(placed, starts[~wide], ends[~wide], colour, zorder=3)
        self._boxes(placed, starts[wide], ends[wide], colour, zorder=3, edge="white")

    def _boxes(
        self,
        placed: Placed,
        starts: NDArray[np.float64],
        ends: NDArray[np.float64],
        colour: str,
        *,
        zorder: float,
        edge: str = "none",
        alpha: float = 1.0,
    ) -> None:
        """Draw rectangles over the row's full height, those parts that are in the window."""
        top, bottom = np.full(len(starts), placed.top), np.full(len(starts), placed.bottom)
        self._rectangles(starts, ends, top, bottom, colour, zorder=zorder, edge=edge, alpha=alpha)

    def _rectangles(
        self,
        starts: NDArray[np.float64],
        ends: NDArray[np.float64],
        tops: NDArray[np.float64],
        bottoms: NDArray[np.float64],
        colour: str,
        *,
        zorder: float,
        edge: str = "none",
        alpha: float = 1.0,
        smooth: bool = True,
    ) -> None:
        if not len(starts):
            return
        starts, ends = np.maximum(starts, 0), np.minimum(ends, self._right)
        corners = np.empty((len(starts), 4, 2))
        corners[:, 0, 0] = corners[:, 1, 0] = starts
        corners[:, 2, 0] = corners[:, 3, 0] = ends
        corners[:, 0, 1] = corners[:, 3, 1] = bottoms
        corners[:, 1, 1] = corners[:, 2, 1] = tops
        self._axes.add_collection(
            PolyCollection(
                list(corners),
                facecolors=colour,
                edgecolors=edge,
                linewidths=0.5 if edge != "none" else 0,
                alpha=alpha,
                antialiaseds=smooth,
                zorder=zorder,
            ),
            autolim=False,
        )

    def _names(self, placed: Placed, lane: Lane, kind: SpanKind, at: NDArray[np.bool_]) -> None:
        """Write into spans of a kind what they are and of which step: in the longest form that most have room for."""
        starts = np.maximum(self._ms(lane.start[at]), 0)
        ends = np.minimum(self._ms(lane.end[at]), self._right)
        rooms = (ends - starts) * self._points - 2 * PADDING
        if (rooms >= TEXT_IN_SPAN).sum() <= len(rooms) / 2:
            return
        steps = lane.step[at].tolist()
        for form in ("{name} {step}", "{step}") if any(steps) else ("{name}",):
            texts = [form.format(name=name_of(kind), step=step) for step in steps]
            fits = np.array([text_width(text, TEXT_IN_SPAN) for text in texts]) <= rooms
            if fits.sum() > len(texts) / 2:
                break
        else:
            return
        for start, end, step, text in itertools.compress(zip(starts, ends, steps, texts, strict=True), fits):
            colour = ODD_FORWARD if kind == SpanKind.FORWARD and step % 2 else OF_KIND[kind]
            self._axes.text(
                (start + end) / 2,
                placed.top + placed.height / 2,
                text,
                size=TEXT_IN_SPAN,
                color=ink_on(colour),
                ha="center",
                va="center_baseline",
                zorder=5,
                gid=IN_SPAN,
            )

    def _idle_device(self, placed: list[Placed]) -> None:
        """Tint a compute lane where its device is idle, so that the eye finds it above the strip, too."""
        strips = {each.row.shows.pid: each.row.shows for each in placed if isinstance(each.row.shows, Strip)}
        for each in placed:
            lane = each.row.shows
            if isinstance(lane, Lane) and lane.tid == COMPUTE:
                strip = strips[lane.pid]
                starts, ends = self._ms(strip.edges[:-1]), self._ms(strip.edges[1:])
                at = (strip.moments == DEVICE_IDLE) & (ends > 0) & (starts < self._right)
                at &= (ends - starts) * self._points >= DOT
                self._boxes(each, starts[at], ends[at], OF_MOMENT[DEVICE_IDLE], zorder=0.8, alpha=IDLE_TINT)

    def _ms(self, times: NDArray[np.int64]) -> NDArray[np.float64]:
        return (times - self._window.start) / 1e6
