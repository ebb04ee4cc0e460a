"""What the colours of a picture mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from protocol.messages import SpanKind
from timeline.colours import DEVICE_IDLE, MOMENT_NAMES, NO_WORK, ODD_FORWARD, OF_KIND, OF_MOMENT
from timeline.picture_flows import flows_seen
from timeline.picture_run import IDLE_TINT, LANE, WAITING
from timeline.picture_text import GREY, INK, TEXT, text_width
from timeline.strip import strips
from timeline.trace import NOT_WORK, name_of
from timeline.window import View

# All lengths are points.
LINE = 15.0
BOX = 11.0
BOX_HEIGHT = 7.5
BOX_GAP = 4.0
ENTRY_GAP = 12.0
TITLE = 48.0  # the name of a group


LABELLED = (SpanKind.COPY_IN, SpanKind.COPY_OUT)
"""Lanes of their own, whose names say it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A box of one or two colours, or a line, and what it means; without a colour only words."""

    text: str
    colours: tuple[str, ...] = ()
    line: bool = False

    @property
    def width(self) -> float:
        """Return how much room it takes, the gap to the next one included."""
        return (BOX + BOX_GAP if self.colours else 0) + text_width(self.text, TEXT) + ENTRY_GAP


@dataclass(frozen=True, slots=True)
class Line:
    """A line of entries; `title` is what those of its group have in common, and empty but for the first line."""

    title: str
    entries: tuple[Entry, ...]


def legend(views: Sequence[View], room: float) -> list[Line]:
    """Return the lines, each at most `room` wide, that explain what is drawn of `views`."""
    spans = [_of_kind(kind) for kind in _kinds(views) if kind not in NOT_WORK]
    if SpanKind.WAIT in _kinds(views):
        spans.append(Entry("waiting", (WAITING,), line=True))
    groups = {"overlap": _overlap(views), "steps": _steps(views), "spans": spans}
    return [line for title, entries in groups.items() for line in _lines(title, entries, room)]


def draw_legend(figure: Figure, lines: Sequence[Line], left: float, top: float) -> None:
    """Draw `lines` below `top`, from `left` on."""
    for number, line in enumerate(lines):
        middle = top - LINE * (number + 0.5)
        at = left
        _write(figure, at, middle, line.title, GREY)
        at += TITLE
        for entry in line.entries:
            _mark(figure, at, middle, entry)
            beside, ink = (BOX + BOX_GAP, INK) if entry.colours else (0, GREY)
            _write(figure, at + beside, middle, entry.text, ink)
            at += entry.width


def _overlap(views: Sequence[View]) -> list[Entry]:
    """Return the moments that can be seen, and what is done with those that can't be told apart."""
    seen = {
        moment
        for view in views
        for strip in strips(view.trace)
        for moment in (*MOMENT_NAMES, NO_WORK)
        if _seen(view, strip.times(moment).start, strip.times(moment).end).any()
    }
    if not seen:
        return []
    found = [Entry(MOMENT_NAMES[moment], _of_moment(moment)) for moment in MOMENT_NAMES if moment in seen]
    if NO_WORK in seen:
        found.append(Entry("no work", (LANE,)))
    return [*found, Entry("what shares a dot is stacked, by its shares of the time")] if len(seen) > 1 else found


def _of_moment(moment: int) -> tuple[str, ...]:
    """Return its colour in the strip, and the one that it has above it, in the compute lane."""
    colour = OF_MOMENT[moment]
    if moment != DEVICE_IDLE:
        return (colour,)
    tinted = (
        round(int(colour[at : at + 2], 16) * IDLE_TINT + int(LANE[at : at + 2], 16) * (1 - IDLE_TINT))
        for at in (1, 3, 5)
    )
    return colour, "#" + "".join(f"{channel:02x}" for channel in tinted)


def _steps(views: Sequence[View]) -> list[Entry]:
    if not any(flows_seen(view) for view in views):
        return []
    return [
        Entry("planned → computed", (OF_KIND[SpanKind.PLAN],), line=True),
        Entry("computed → settled", (OF_KIND[SpanKind.SETTLE],), line=True),
        Entry("one step's lines are bold, to be followed"),
    ]


def _of_kind(kind: SpanKind) -> Entry:
    if kind == SpanKind.FORWARD:
        return Entry("forward, of even and odd steps", (OF_KIND[kind], ODD_FORWARD))
    return Entry(name_of(kind), (OF_KIND[kind],))


def _seen(view: View, start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.bool_]:
    return (end > view.window.start) & (start < view.window.end)


def _kinds(views: Sequence[View]) -> list[SpanKind]:
    """Return the kinds of spans that can be seen."""
    seen: set[int] = set()
    for view in views:
        for lane in view.trace.lanes:
            seen.update(np.unique(lane.kind[_seen(view, lane.start, lane.end)]).tolist())
    return [SpanKind(kind) for kind in sorted(seen.difference(LABELLED))]


def _lines(title: str, entries: Sequence[Entry], room: float) -> list[Line]:
    """Return `entries` on as many lines as they take."""
    lines: list[list[Entry]] = []
    left = 0.0
    for entry in entries:
        if left < entry.width:
            lines.append([])
            left = room - TITLE + ENTRY_GAP
        lines[-1].append(entry)
        left -= entry.width
    return [Line("" if number else title, tuple(line)) for number, line in enumerate(lines)]


def _mark(figure: Figure, at: float, middle: float, entry: Entry) -> None:
    width, height = figure.get_size_inches() * 72
    part = BOX / max(len(entry.colours), 1)
    for number, colour in enumerate(entry.colours):
        left = at + number * part
        if entry.line:
            ends = (left / width, (left + part) / width)
            figure.add_artist(Line2D(ends, (middle / height,) * 2, color=colour, linewidth=1.2))
        else:
            corner = left / width, (middle - BOX_HEIGHT / 2) / height
            figure.add_artist(Rectangle(corner, part / width, BOX_HEIGHT / height, color=colour, linewidth=0))


def _write(figure: Figure, at: float, middle: float, text: str, colour: str) -> None:
    width, height = figure.get_size_inches() * 72
    figure.text(at / width, middle / height, text, size=TEXT, color=colour, va="center_baseline")
