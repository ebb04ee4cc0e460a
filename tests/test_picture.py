"""The picture of a timeline: what is written in it stays where it belongs, and what is drawn is what was recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib import style
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from protocol.messages import SpanKind
from tests.made_traces import FORWARD, PLAN, Process, lockstep_run, made_trace, overlapped_run, span
from timeline.colours import BOTH, DEVICE_IDLE, DEVICE_ONLY, ODD_FORWARD, OF_KIND, OF_MOMENT
from timeline.errors import TraceError
from timeline.picture import LOOK, figure_of, write_picture
from timeline.picture_rows import STRIP_HEIGHT
from timeline.picture_run import IN_SPAN
from timeline.strip import strips
from timeline.trace import Trace
from timeline.window import View, Window, side_by_side, telling, whole


def long_names() -> Trace:
    scheduler, worker = overlapped_run(30)
    renamed = [
        Process(f"{each.name} of a machine far away", each.role, each.device, each.spans)
        for each in (scheduler, worker)
    ]
    everything = [span(kind, at * 1000, at * 1000 + 300) for at, kind in enumerate(SpanKind) if kind < SpanKind.COPY_IN]
    front = Process("frontend", "frontend", "", everything)
    second = [span(FORWARD, at, at + 790, step, session=2) for step, at in enumerate(range(0, 24_000, 800), 1_000_000)]
    name = "with three hundred and twenty requests of every length, " * 3 + ".json.gz"
    return made_trace(*renamed, front, Process("worker 1", "worker", "cuda:1", second), name=name)


def views(*traces: Trace) -> list[View]:
    return [View(trace, window) for trace, window in zip(traces, side_by_side(traces), strict=True)]


PICTURES = {
    "lockstep": views(made_trace(*lockstep_run(60))),
    "overlapped": views(made_trace(*overlapped_run(60))),
    "both": views(made_trace(*lockstep_run(60)), made_trace(*overlapped_run(60))),
    "unlike lengths": views(made_trace(*lockstep_run(60)), made_trace(*overlapped_run(2))),
    "long names": views(long_names()),
    "one span": views(made_trace(Process("worker", "worker", "cpu", [span(FORWARD, 5, 6)]))),
}


def texts(figure: Figure) -> list[Text]:
    """All that is seen: an axis has labels beyond its ends, too, which it doesn't draw."""
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    beyond = [
        label
        for tick in axes.xaxis.get_major_ticks()
        if not low <= tick.get_loc() <= high
        for label in (tick.label1, tick.label2)
    ]
    found = [text for text in figure.findobj(Text) if isinstance(text, Text)]
    return [text for text in found if text.get_text() and text.get_visible() and text not in beyond]


def boxes(figure: Figure, colour: str = "") -> list[Bbox]:
    """The rectangles of spans and moments, in pixels; of one colour only, if it is given."""
    (axes,) = figure.axes
    drawn = [
        each
        for each in axes.collections
        if each.get_zorder() == 3 and (not colour or to_hex(np.asarray(each.get_facecolor())[0].tolist()) == colour)
    ]
    corners = [np.asarray(path.vertices)[[0, 2]] for each in drawn for path in each.get_paths()]
    return [Bbox(np.sort(axes.transData.transform(each), axis=0)) for each in corners]


@pytest.fixture(params=PICTURES, scope="module")
def rendered(request: pytest.FixtureRequest) -> Figure:
    with style.context(["default", LOOK]):
        figure = figure_of(PICTURES[request.param])
        figure.draw_without_rendering()
    return figure


def test_all_that_is_written_is_on_the_page(rendered: Figure) -> None:
    page = rendered.bbox
    for text in texts(rendered):
        extent = text.get_window_extent()
        assert 0 <= extent.x0 < extent.x1 <= page.x1, text.get_text()
        assert 0 <= extent.y0 < extent.y1 <= page.y1, text.get_text()


def test_no_two_texts_overlap(rendered: Figure) -> None:
    written = texts(rendered)
    extents = [text.get_window_extent() for text in written]
    assert [
        (a.get_text(), b.get_text())
        for number, (a, first) in enumerate(zip(written, extents, strict=True))
        for b, second in zip(written[:number], extents[:number], strict=True)
        if first.overlaps(second)
    ] == []


def test_nothing_is_drawn_beyond_its_window(rendered: Figure) -> None:
    (axes,) = rendered.axes
    low, high = axes.bbox.x0 - 0.5, axes.bbox.x1 + 0.5
    assert all(low <= box.x0 <= box.x1 <= high for box in boxes(rendered))


def test_labels_stay_in_their_spans(rendered: Figure) -> None:
    spans = boxes(rendered)
    for label in texts(rendered):
        if label.get_gid() == IN_SPAN:
            extent = label.get_window_extent()
            assert any(
                box.x0 <= extent.x0 and extent.x1 <= box.x1 and box.y0 <= extent.y0 and extent.y1 <= box.y1
                for box in spans
            ), label.get_text()


def test_steps_are_labelled() -> None:
    figure = figure_of(PICTURES["overlapped"])
    labels = [text.get_text() for text in texts(figure) if text.get_gid() == IN_SPAN]
    assert len([label for label in labels if label.startswith("forward ")]) >= 10


@pytest.mark.parametrize("moment", [DEVICE_IDLE, DEVICE_ONLY, BOTH])
def test_each_moment_has_as_much_of_the_strip_as_it_lasts(moment: int) -> None:
    view = PICTURES["lockstep"][0]
    figure = figure_of([view])
    (strip,) = strips(view.trace)
    inside = np.clip(strip.edges, view.window.start, view.window.end)
    share = np.diff(inside)[strip.moments == moment].sum() / (view.window.end - view.window.start)
    (axes,) = figure.axes
    area = axes.bbox.width * STRIP_HEIGHT / 72 * figure.dpi
    drawn = sum(box.width * box.height for box in boxes(figure, OF_MOMENT[moment]))
    assert drawn / area == pytest.approx(share, abs=1e-4)


def test_what_is_narrower_than_a_dot_is_seen_alike_in_every_step() -> None:
    """Ten steps, and in each half a microsecond of Python, which is a tenth of a dot."""
    forwards = [span(FORWARD, step * 1000, step * 1000 + 1000, step) for step in range(10)]
    plans = [span(PLAN, step * 1000 + 313.7, step * 1000 + 314.2, step) for step in range(10)]
    trace = made_trace(Process("scheduler", "scheduler", "", plans), Process("worker", "worker", "cpu", forwards))
    figure = figure_of([View(trace, whole(trace))])
    (axes,) = figure.axes
    drawn = boxes(figure, OF_MOMENT[BOTH])
    places = [10 * (box.x0 - axes.bbox.x0) / axes.bbox.width for box in drawn]
    areas, _ = np.histogram(places, range(11), weights=[box.width * box.height for box in drawn])
    assert areas == pytest.approx(np.full(10, axes.bbox.width * STRIP_HEIGHT / 72 * figure.dpi * 0.00005), rel=0.01)


def test_touching_steps_have_no_gap_between_them(tmp_path: Path) -> None:
    write_picture(PICTURES["overlapped"], tmp_path / "picture.png")
    pixels = (imread(tmp_path / "picture.png")[..., :3] * 255).round()
    forward, odd, sample = (
        [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
        for colour in (OF_KIND[FORWARD], ODD_FORWARD, OF_KIND[SpanKind.SAMPLE])
    )
    (row,) = np.flatnonzero((pixels == forward).all(axis=-1).sum(axis=1) > 500)[:1]
    line = pixels[row + 3]
    (known,) = np.nonzero(np.logical_or.reduce([(line == colour).all(axis=-1) for colour in (forward, odd, sample)]))
    inside = line[known[0] : known[-1]]
    assert inside.max() <= max(sample)  # nothing is lighter


def test_in_a_crowd_every_moment_has_its_share() -> None:
    trace = made_trace(*lockstep_run(3000))
    figure = figure_of([View(trace, whole(trace))])
    (strip,) = strips(trace)
    areas = {colour: sum(box.width * box.height for box in boxes(figure, colour)) for colour in OF_MOMENT.values()}
    for moment, colour in OF_MOMENT.items():
        share = strip.times(moment).total / (strip.edges[-1] - strip.edges[0])
        assert areas[colour] / sum(areas.values()) == pytest.approx(share, abs=0.001)
    idle, alone = (boxes(figure, OF_MOMENT[moment]) for moment in (DEVICE_IDLE, DEVICE_ONLY))
    bottom, top = min(box.y0 for box in idle), max(box.y1 for box in alone)
    assert top - bottom == pytest.approx(STRIP_HEIGHT / 72 * figure.dpi)
    filled = (max(box.x1 for box in alone) - min(box.x0 for box in alone)) * (top - bottom)
    assert sum(areas.values()) == pytest.approx(filled, rel=0.001)
    assert {round(box.y0 - bottom, 6) for box in idle} == {0}
    assert sum(box.y1 < top - 1e-6 for box in alone) <= 2  # the run begins and ends within a dot


def test_the_caption_has_the_figures_of_the_report() -> None:
    written = [text.get_text() for text in texts(figure_of(PICTURES["both"]))]
    said = "steady state: device active {}  ·  idle {}  ·  decode step 800 µs (median)  ·  60 steps in {}"
    assert said.format("80.3 %", "19.7 %", "59.8 ms") in written
    assert said.format("100 %", "0 %", "48.0 ms") in written


def test_a_time_of_a_report_is_on_the_axis() -> None:
    """Below each run, in seconds since its recording began."""
    figure = figure_of([View(view.trace, Window(12_000_000, 17_000_000)) for view in PICTURES["both"]])
    written = [text.get_text() for text in texts(figure)]
    for time in ("0.0120", "0.0125", "0.0165"):
        assert written.count(time) == 2
    assert written.count("seconds since the recording began; ticks are 500 µs apart") == 2


def test_the_legend_names_what_is_seen_and_nothing_else() -> None:
    def said(name: str) -> list[str]:
        return [text.get_text() for text in figure_of(PICTURES[name]).texts]

    stacked, bold = (
        "what shares a dot is stacked, by its shares of the time",
        "one step's lines are bold, to be followed",
    )
    lockstep, overlapped, one = said("lockstep"), said("overlapped"), said("one span")
    assert {"device idle", "device busy", stacked, "planned → computed", bold, "waiting"} <= set(lockstep)
    assert {"device and CPU busy", "device busy", stacked, "forward, of even and odd steps"} <= set(overlapped)
    assert "device idle" not in overlapped
    assert not {"device idle", stacked, bold, "waiting", "planned → computed"} & set(one)


def test_arrows_pass_other_workers_lanes_behind_their_spans_and_thinner() -> None:
    plans = [span(PLAN, at, at + 1, step, session=session) for step, at in ((1, 0), (2, 9)) for session in (1, 2)]
    first, second = (
        Process(
            name, "worker", "", [span(FORWARD, at, at + 8, step, session=session) for step, at in ((1, 2), (2, 11))]
        )
        for name, session in (("first", 1), ("second", 2))
    )
    trace = made_trace(Process("scheduler", "scheduler", "", plans), first, second)
    (axes,) = figure_of([View(trace, whole(trace))]).axes
    ways = [line for line in axes.lines if line.get_color() == OF_KIND[PLAN]]
    assert [(line.get_linewidth(), line.get_zorder()) for line in ways] == [(0.7, 2), (1.6, 4), (0.4, 2), (0.4, 2)]


@pytest.mark.parametrize("ending", [".png", ".pdf", ".svg"])
def test_the_ending_says_what_is_written(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"picture{ending}"
    write_picture(PICTURES["both"], path)
    begins = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}[ending]
    assert path.read_bytes().startswith(begins)


def test_red_is_seen_where_a_device_waits_and_nowhere_else(tmp_path: Path) -> None:
    def red(name: str) -> int:
        write_picture(PICTURES[name], tmp_path / "picture.png")
        pixels = (imread(tmp_path / "picture.png")[..., :3] * 255).round().astype(int)
        colour = [int(OF_MOMENT[DEVICE_IDLE][at : at + 2], 16) for at in (1, 3, 5)]
        return int((pixels == colour).all(axis=-1).sum())

    assert red("lockstep") > 20 * red("overlapped")  # the legend has a bit of it, too


def test_any_name_can_be_drawn(tmp_path: Path) -> None:
    name = "$x^{ 東京 \\frac$ _"
    trace = made_trace(Process(name, "worker", name, [span(FORWARD, 0, 1, 1)]), name=name)
    write_picture([View(trace, whole(trace))], tmp_path / "named.png")
    assert name in [text.get_text() for text in texts(figure_of([View(trace, whole(trace))]))]


def test_a_long_run_can_be_drawn_whole(tmp_path: Path) -> None:
    trace = made_trace(*overlapped_run(2000))
    write_picture([View(trace, whole(trace))], tmp_path / "whole.png")
    assert telling(trace) != whole(trace)


def test_more_lanes_than_a_picture_has_room_for_are_refused(tmp_path: Path) -> None:
    trace = made_trace(*(Process(f"worker {n}", "worker", "cpu", [span(FORWARD, 0, 1)]) for n in range(1000)))
    with pytest.raises(TraceError, match="lanes are too many for a picture; a page"):
        write_picture([View(trace, whole(trace))], tmp_path / "run.png")
