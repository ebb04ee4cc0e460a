"""A timeline as a picture for a page of a paper: lanes, what ran in them, and when the device had nothing to do."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path

from matplotlib import style
from matplotlib.figure import Figure

from timeline.errors import TraceError
from timeline.picture_legend import LINE, draw_legend, legend
from timeline.picture_rows import height_of
from timeline.picture_run import DOT, LABEL_GAP, LABELS, draw_run
from timeline.picture_text import FONT, INK, TEXT, shortened, text_width
from timeline.rows import rows
from timeline.window import View

MOST_DOTS = 2**15
"""Of a picture's height: some hundred MB while it is drawn."""

# All lengths are points.
WIDTH = 756.0
MARGIN = 14.0
RUN_GAP = 22.0
LEGEND_GAP = 10.0

LOOK = {
    "font.family": FONT,
    "font.size": TEXT,
    "text.color": INK,
    "text.parse_math": False,  # a name with dollars is a name
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "none",
}


def write_picture(views: Sequence[View], path: Path) -> None:
    """Write `views` under each other, all on one scale of time, to `path`; its ending decides: .png, .pdf or .svg.

    Raises `OSError` if the file cannot be written, `TraceError` if there are too many lanes.
    """
    with style.context(["default", LOOK]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # of a name: a box stands for it
        figure_of(views).savefig(path, dpi=72 / DOT)


def figure_of(views: Sequence[View]) -> Figure:
    """Return the picture of `views`, not rendered yet. Raises `TraceError`."""
    runs = [rows(view.trace) for view in views]
    labels = max(text_width(shortened(row.label, LABELS, TEXT), TEXT, "bold") for run in runs for row in run)
    left = math.ceil((MARGIN + labels + LABEL_GAP) / DOT) * DOT
    room = math.floor((WIDTH - left - MARGIN) / DOT) * DOT
    lines = legend(views, room)
    high = sum(height_of(run) for run in runs) + RUN_GAP * (len(runs) - 1)
    below = LEGEND_GAP + LINE * len(lines) + MARGIN
    down = MARGIN + high + below
    if down / DOT > MOST_DOTS:
        raise TraceError(f"{sum(map(len, runs)):,} lanes are too many for a picture; a page (.html) has room for them")
    figure = Figure((WIDTH / 72, down / 72), facecolor="white")
    axes = figure.add_axes((left / WIDTH, below / down, room / WIDTH, high / down))
    axes.set_xlim(0, max(max(view.window.end - view.window.start for view in views), 1) / 1e6)
    axes.set_ylim(high, 0)
    axes.set_axis_off()
    top = 0.0
    for view, run in zip(views, runs, strict=True):
        draw_run(axes, view, run, top, room)
        top += height_of(run) + RUN_GAP
    draw_legend(figure, lines, left, below - LEGEND_GAP)
    return figure
