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
from tests.made_traces import FORWARD, Process, lockstep_run, made_trace, overlapped_run, span
from timeline.colours import BOTH, DEVICE_IDLE, DEVICE_ONLY, OF_MOMENT
from timeline.picture import LOOK, figure_of, write_picture
from timeline.picture_rows import STRIP_HEIGHT
from timeline.picture_run import IN_SPAN
from timeline.strip import strips
from timeline.trace import Trace
from timeline.window import View, side_by_side, telling, whole


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


def test_idle_time_is_as_wide_as_the_strip_says() -> None:
    view = PICTURES["lockstep"][0]
    figure = figure_of([view])
    (strip,) = strips(view.trace)
    inside = np.clip(strip.edges, view.window.start, view.window.end)
    expected = np.diff(inside)[strip.moments == DEVICE_IDLE].sum() / 1e6
    low, high = figure.axes[0].transData.transform([(0, 0), (1, 0)])[:, 0]
    drawn = sum(box.width for box in boxes(figure, OF_MOMENT[DEVICE_IDLE])) / (high - low)
    assert drawn == pytest.approx(expected)


def test_in_a_crowd_every_moment_has_its_share() -> None:
    trace = made_trace(*lockstep_run(3000))
    figure = figure_of([View(trace, whole(trace))])
    (strip,) = strips(trace)
    areas = {colour: sum(box.width * box.height for box in boxes(figure, colour)) for colour in OF_MOMENT.values()}
    for moment, colour in OF_MOMENT.items():
        share = strip.times(moment).total / (strip.edges[-1] - strip.edges[0])
        assert areas[colour] / sum(areas.values()) == pytest.approx(share, abs=0.001)
    idle, alone, both = (boxes(figure, OF_MOMENT[moment])[50:-50] for moment in (DEVICE_IDLE, DEVICE_ONLY, BOTH))
    for below, middle, above in zip(idle, alone, both, strict=True):
        assert below.y1 == pytest.approx(middle.y0)
        assert middle.y1 == pytest.approx(above.y0)
        assert above.y1 - below.y0 == pytest.approx(STRIP_HEIGHT / 72 * figure.dpi)


def test_the_caption_has_the_figures_of_the_report() -> None:
    written = [text.get_text() for text in texts(figure_of(PICTURES["both"]))]
    assert "device active 80.3 %  ·  idle 19.7 %  ·  997 µs a step  ·  60 steps in 59.8 ms" in written
    assert "device active 100 %  ·  idle 0 %  ·  800 µs a step  ·  60 steps in 48.0 ms" in written


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
