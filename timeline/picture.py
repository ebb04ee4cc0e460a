"""A timeline as a picture for a page of a paper: lanes, what ran in them, and when the device had nothing to do."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from timeline.picture_legend import LINE, draw_legend, legend
from timeline.picture_rows import height_of
from timeline.picture_run import LABEL_GAP, LABELS, draw_run
from timeline.picture_text import FONT, GREY, INK, TEXT, shortened, text_width
from timeline.rows import rows
from timeline.window import View

DOTS_PER_INCH = 200

# All lengths are points.
WIDTH = 756.0
MARGIN = 14.0
RUN_GAP = 22.0
AXIS = 45.0

LOOK = {
    "font.family": FONT,
    "font.size": TEXT,
    "text.color": INK,
    "text.parse_math": False,  # a name with dollars is a name
    "hatch.linewidth": 0.4,
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "none",
}


def write_picture(views: Sequence[View], path: Path) -> None:
    """Write `views` under each other, all on one time scale, to `path`; its ending decides: .png, .pdf or .svg.

    Raises `OSError` if the file cannot be written.
    """
    with style.context(["default", LOOK]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # of a name: a box stands for it
        figure_of(views).savefig(path, dpi=DOTS_PER_INCH)


def figure_of(views: Sequence[View]) -> Figure:
    """Return the picture of `views`, not rendered yet."""
    runs = [rows(view.trace) for view in views]
    labels = max(text_width(shortened(row.label, LABELS, TEXT), TEXT, "bold") for run in runs for row in run)
    left = MARGIN + labels + LABEL_GAP
    room = WIDTH - left - MARGIN
    lines = legend(views, room)
    high = sum(height_of(run) for run in runs) + RUN_GAP * (len(runs) - 1)
    below = AXIS + LINE * len(lines) + MARGIN
    down = MARGIN + high + below
    figure = Figure((WIDTH / 72, down / 72), facecolor="white")
    axes = figure.add_axes((left / WIDTH, below / down, room / WIDTH, high / down))
    axes.set_xlim(0, max(max(view.window.end - view.window.start for view in views), 1) / 1e6)
    axes.set_ylim(high, 0)
    _time_axis(axes, views)
    top = 0.0
    for view, run in zip(views, runs, strict=True):
        draw_run(axes, view, run, top, room)
        top += height_of(run) + RUN_GAP
    draw_legend(figure, lines, left, below - AXIS)
    return figure


def _time_axis(axes: Axes, views: Sequence[View]) -> None:
    axes.set_facecolor("none")
    axes.set_yticks([])
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set(color=GREY, linewidth=0.6)
    axes.spines["bottom"].set_position(("outward", 5))
    axes.tick_params(axis="x", colors=GREY, labelsize=TEXT, width=0.6, length=3)
    axes.xaxis.set_major_formatter("{x:,g}")
    began = " and ".join(f"{view.window.start / 1e9:.3f} s" for view in views)
    axes.set_xlabel(f"milliseconds, from {began} after the recording began", size=TEXT, color=GREY, labelpad=3)
