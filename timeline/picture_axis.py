"""The axis of time below a run in a picture: seconds since its recording began, as reports have them."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from timeline.picture_text import GREY, TEXT, text_width
from timeline.window import Window

# Points.
TICK_DISTANCE = 55.0  # at least
GAP = 5.0
TICK = 3.0
OVERHANG = 12.0  # what a number may stand out on the right

_UNITS = ((10**9, "s"), (10**6, "ms"), (10**3, "µs"), (1, "ns"))


def draw_axis(axes: Axes, window: Window, top: float, right: float) -> None:
    """Draw it below `top`, from the window's start for `right` milliseconds."""
    low, high = axes.get_xlim()
    width = axes.get_position().width * axes.figure.get_figwidth() * 72  # type: ignore[union-attr]
    points = width / (high - low)  # per millisecond
    line = top + GAP
    axes.add_line(Line2D([0, right], [line, line], color=GREY, linewidth=0.6, clip_on=False))
    distance = tick_distance(TICK_DISTANCE / points * 1e6)
    first = -(-window.start // distance) * distance
    for tick in range(first, window.start + round(right * 1e6) + 1, distance):
        at = (tick - window.start) / 1e6
        axes.add_line(Line2D([at, at], [line, line + TICK], color=GREY, linewidth=0.6, clip_on=False))
        text = seconds(tick, distance)
        if at * points + text_width(text, TEXT) / 2 <= width + OVERHANG:
            _write(axes, at, line + TICK + 7, text, "center")
    about = f"seconds since the recording began; ticks are {_plain(distance)} apart"
    _write(axes, 0, line + TICK + 19, about, "left")


def tick_distance(least: float) -> int:
    """Return 1, 2 or 5 times a power of ten, at least `least` nanoseconds."""
    power = 1
    while 5 * power < least:
        power *= 10
    return next(times * power for times in (1, 2, 5) if times * power >= least)


def seconds(tick: int, distance: int) -> str:
    """Return nanoseconds as seconds, with as many digits as ticks at such a distance need."""
    digits = next(digits for digits in range(10) if distance % 10 ** (9 - digits) == 0)
    return f"{tick / 1e9:,.{digits}f}"


def _plain(distance: int) -> str:
    """Return "50 ms"."""
    size, unit = next((size, unit) for size, unit in _UNITS if distance >= size)
    return f"{distance // size:,} {unit}"


def _write(axes: Axes, at: float, below: float, text: str, align: str) -> None:
    axes.text(at, below, text, size=TEXT, color=GREY, ha=align, va="center", clip_on=False)
