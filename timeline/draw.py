"""Draw a timeline: what each process and device did, and when a device was idle; a picture, or a page for a browser."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from timeline.errors import TraceError
from timeline.page import write_page
from timeline.part import seconds
from timeline.trace import Trace, read_trace
from timeline.window import View, Window, side_by_side, telling, whole

PICTURES = (".png", ".pdf", ".svg")
PAGE = ".html"
OUT_HELP = "what to draw: .html is a page to move about in; .png, .pdf and .svg are pictures, which take matplotlib"

Writer = Callable[[Sequence[View], Path], None]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what can be chosen."""
    parser.add_argument("file", type=Path, metavar="FILE", help="a timeline, plain or .gz")
    parser.add_argument("--out", type=Path, required=True, metavar="PICTURE", help=OUT_HELP)
    parser.add_argument(
        "--from",
        dest="start",
        type=seconds,
        metavar="SECONDS",
        help="what to show, since the recording began; a page has the rest, too (default: some ordinary steps)",
    )
    parser.add_argument("--to", dest="end", type=seconds, metavar="SECONDS", help="until when; default: the run's end")


def run(given: argparse.Namespace) -> int:
    """Draw it. Raises `TraceError`."""
    write = writer(given.out)
    trace = read_trace(given.file)
    window = _window(trace, given.start, given.end)
    _write(write, [View(trace, window)], given.out)
    print(_drawn(given.out, window, whole(trace)))
    return 0


def draw_beside(traces: Sequence[Trace], out: Path) -> None:
    """Draw runs under each other on one time scale. Raises `TraceError`."""
    write = writer(out)
    for trace in traces:
        _check(trace)
    _write(write, [View(trace, window) for trace, window in zip(traces, side_by_side(traces), strict=True)], out)


def writer(out: Path) -> Writer:
    """Return what writes a file with such an ending. Raises `TraceError` if nothing does, or matplotlib is missing."""
    ending = out.suffix.lower()
    if ending == PAGE:
        return write_page
    if ending not in PICTURES:
        raise TraceError(f"{out}: what is drawn ends in {PAGE}, {', '.join(PICTURES[:-1])} or {PICTURES[-1]}")
    try:
        from timeline.picture import write_picture
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise TraceError(
            f"{out}: pictures are drawn by matplotlib, which is not installed: pip install 'stepahead[draw]'. "
            f"A page ({PAGE}) needs nothing."
        ) from error
    return write_picture


def _write(write: Writer, views: Sequence[View], out: Path) -> None:
    try:
        write(views, out)
    except OSError as error:
        raise TraceError(f"{out}: {error.strerror or error}") from error


def _drawn(out: Path, window: Window, run: Window) -> str:
    """Return which part of the run is seen, so that another one can be asked for."""
    opens = "opens on" if out.suffix.lower() == PAGE else "shows"
    part, all_of_it = (f"{each.start / 1e9:.3f} s to {each.end / 1e9:.3f} s" for each in (window, run))
    return f"{out} {opens} {part} since the recording began (--from, --to); the run is from {all_of_it}"


def _window(trace: Trace, start: float | None, end: float | None) -> Window:
    """Return what was asked for, as far as the run goes; a telling part of it if nothing was."""
    _check(trace)
    if start is None and end is None:
        return telling(trace)
    run = whole(trace)
    low = run.start if start is None else round(start * 1e9)
    high = run.end if end is None else round(end * 1e9)
    if start is not None and end is not None and high <= low:
        raise TraceError(f"--to {end:g} is not after --from {start:g}")
    if low >= run.end or high <= run.start:
        raise TraceError(
            f"{trace.name}: nothing is there to draw: the run is from {run.start / 1e9:.3f} s to {run.end / 1e9:.3f} s"
        )
    return Window(max(low, run.start), min(high, run.end))


def _check(trace: Trace) -> None:
    run = whole(trace)
    if run.end <= run.start:
        raise TraceError(f"{trace.name}: there are no spans to draw")
