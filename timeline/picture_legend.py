"""What the colours of a picture mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from protocol.messages import SpanKind
from timeline.colours import MOMENT_NAMES, OF_KIND, OF_MOMENT
from timeline.picture_run import flows_seen
from timeline.picture_text import GREY, INK, TEXT, text_width
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
    """A colour and what it means: a box's, or a line's; without a colour it is the name of those behind it."""

    text: str
    colour: str = ""
    line: bool = False

    @property
    def width(self) -> float:
        """Return how much room it takes, the gap to the next one included."""
        return TITLE if not self.colour else BOX + BOX_GAP + text_width(self.text, TEXT) + ENTRY_GAP


Line = tuple[Entry, ...]


def legend(views: Sequence[View], room: float) -> list[Line]:
    """Return the lines, each at most `room` wide, that explain what is drawn of `views`."""
    spans = [Entry(name_of(kind), OF_KIND[kind]) for kind in _kinds(views)]
    moments = [Entry(name, OF_MOMENT[moment]) for moment, name in MOMENT_NAMES.items()]
    ways = [
        Entry("planned → computed", OF_KIND[SpanKind.PLAN], line=True),
        Entry("computed → settled", OF_KIND[SpanKind.SETTLE], line=True),
    ]
    if not any(flows_seen(view) for view in views):
        ways = []
    return [*_lines([Entry("overlap"), *moments, *ways], room), *_lines([Entry("spans"), *spans], room)]


def draw_legend(figure: Figure, lines: Sequence[Line], left: float, top: float) -> None:
    """Draw `lines` below `top`, from `left` on."""
    for number, line in enumerate(lines):
        middle = top - LINE * (number + 0.5)
        at = left
        for entry in line:
            if entry.colour:
                _mark(figure, at, middle, entry)
                _write(figure, at + BOX + BOX_GAP, middle, entry.text, INK)
            else:
                _write(figure, at, middle, entry.text, GREY)
            at += entry.width


def _kinds(views: Sequence[View]) -> list[SpanKind]:
    """Return the kinds of work that can be seen."""
    seen: set[int] = set()
    for view in views:
        for lane in view.trace.lanes:
            inside = (lane.end > view.window.start) & (lane.start < view.window.end)
            seen.update(np.unique(lane.kind[inside]).tolist())
    return [SpanKind(kind) for kind in sorted(seen.difference(NOT_WORK, LABELLED))]


def _lines(entries: Sequence[Entry], room: float) -> list[Line]:
    """Return `entries` on as many lines as they take; those after the first begin below its first box."""
    lines: list[list[Entry]] = [[]]
    left = room + ENTRY_GAP
    for entry in entries:
        if left < entry.width:
            lines.append([Entry("")])
            left = room + ENTRY_GAP - TITLE
        lines[-1].append(entry)
        left -= entry.width
    return [tuple(line) for line in lines]


def _mark(figure: Figure, at: float, middle: float, entry: Entry) -> None:
    width, height = figure.get_size_inches() * 72
    if entry.line:
        ends = (at / width, (at + BOX) / width)
        figure.add_artist(Line2D(ends, (middle / height,) * 2, color=entry.colour, linewidth=1.2))
        return
    corner = at / width, (middle - BOX_HEIGHT / 2) / height
    figure.add_artist(Rectangle(corner, BOX / width, BOX_HEIGHT / height, color=entry.colour, linewidth=0))


def _write(figure: Figure, at: float, middle: float, text: str, colour: str) -> None:
    width, height = figure.get_size_inches() * 72
    figure.text(at / width, middle / height, text, size=TEXT, color=colour, va="center_baseline")
