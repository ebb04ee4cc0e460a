"""The page of a timeline: one file, whose data are what was recorded."""

from __future__ import annotations

import base64
import json
import re
import zlib
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.messages import SpanKind
from tests.made_traces import FORWARD, PLAN, Process, lockstep_run, made_trace, overlapped_run, span
from timeline.page import COUNTS, page
from timeline.strip import strips
from timeline.trace import Lane, Trace
from timeline.window import View, side_by_side, telling

EMPTY = {"meta", "input"}


class Parsed(HTMLParser):
    """Elements with their text; every element that is opened must be closed, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: dict[str, str] = {}
        self.ids: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        name = dict(attrs).get("id")
        if name:
            self.ids.append(name)
        if tag not in EMPTY:
            self.open.append(name or tag)
            self.tags = [*getattr(self, "tags", []), tag]

    def handle_endtag(self, tag: str) -> None:
        self.open.pop()
        assert self.tags.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts[self.open[-1]] = self.texts.get(self.open[-1], "") + data


def views(*traces: Trace) -> list[View]:
    return [View(trace, window) for trace, window in zip(traces, side_by_side(traces), strict=True)]


def data(text: str) -> dict[str, Any]:
    """What the page's script reads, with NumPy in the place of typed arrays."""
    texts = Parsed(text).texts
    header: dict[str, Any] = json.loads(texts["header"])
    columns = zlib.decompress(base64.b64decode(texts["columns"]))
    for run in header["runs"]:
        for row in run["rows"]:
            for name, kind, count in row["columns"]:
                dtype = np.dtype(f"<{kind}")
                row[name] = np.frombuffer(columns[: count * dtype.itemsize], dtype)
                columns = columns[count * dtype.itemsize :]
    assert columns == b""
    return header


def sessions_of(trace: Trace) -> NDArray[np.int64]:
    """What a page numbers: they are large, and there are few."""
    return np.unique(np.concatenate([[0], *(lane.session for lane in trace.lanes)]))


def assert_same(row: dict[str, Any], lane: Lane, sessions: NDArray[np.int64]) -> None:
    start = np.cumsum(row["since"].astype(np.float64))
    assert (start == lane.start).all()
    assert (start + row["lasts"] == lane.end).all()
    assert (row["kind"] == lane.kind).all()
    assert (row["step"] == lane.step).all()
    assert (sessions[row["session"].astype(int)] == lane.session).all()
    for name in COUNTS:
        assert (row[name] == getattr(lane, name)).all()


def test_the_spans_of_a_page_are_those_of_the_trace() -> None:
    trace = made_trace(*overlapped_run(300))
    (run,) = data(page(views(trace)))["runs"]
    shown = [row for row in run["rows"] if row["shows"] != "strip"]
    assert len(shown) == len(trace.lanes)
    for row, lane in zip(shown, trace.lanes, strict=True):
        assert_same(row, lane, sessions_of(trace))


def test_numbers_of_any_size_survive() -> None:
    big = Process(
        "worker 0",
        "worker",
        "cpu",
        [
            span(FORWARD, -3, -1, 1, session=2**32 - 1),
            span(FORWARD, 5, 6, 2**40, session=7, tokens=70_000, rows=300),
            span(FORWARD, 8_000_000_000, 99_000_000_000, 3, session=2**32 - 1, wasted=2**31),
        ],
    )
    early = Process("worker 0", "worker", "cpu", [span(FORWARD, -3, -1, 1), span(FORWARD, 5, 6, 2)])
    for process in (big, early):
        trace = made_trace(process)
        (run,) = data(page(views(trace)))["runs"]
        assert_same(run["rows"][0], trace.lanes[0], sessions_of(trace))


def test_the_strip_of_a_page_is_that_of_the_picture() -> None:
    trace = made_trace(*lockstep_run(40))
    (run,) = data(page(views(trace)))["runs"]
    (strip,) = strips(trace)
    (row,) = (row for row in run["rows"] if row["shows"] == "strip")
    assert (np.cumsum(row["since"]) == strip.edges[:-1]).all()
    assert (row["lasts"] == np.diff(strip.edges)).all()
    assert (row["kind"] == strip.moments).all()


def test_a_page_has_the_whole_run_and_opens_on_a_part_of_it() -> None:
    trace = made_trace(*overlapped_run(300))
    header = data(page(views(trace)))
    window = telling(trace)
    assert header["opening"] == [window.start, window.end]
    assert header["runs"][0]["whole"] == [0, 240_250_000]


def test_runs_beside_each_other_open_on_the_windows_of_the_picture() -> None:
    both = views(made_trace(*lockstep_run(60)), made_trace(*overlapped_run(60)))
    header = data(page(both))
    assert [run["origin"] for run in header["runs"]] == [view.window.start for view in both]
    assert header["opening"] == [0, both[0].window.end - both[0].window.start]


def test_a_page_fetches_nothing() -> None:
    text = page(views(made_trace(*overlapped_run(20))))
    parsed = Parsed(text)
    assert not [name for name, _ in parsed.attributes if name in ("src", "href", "srcset", "action", "data")]
    without_data = text.replace(parsed.texts["columns"], "")
    for outside in (
        r"//[a-z]",
        "url\\(",
        "@import",
        r"\bimport\b",
        "fetch\\(",
        "XMLHttpRequest",
        "WebSocket",
        "Worker\\(",
    ):
        assert not re.search(outside, re.sub(r"^\s*// .*$| // .*$", "", without_data, flags=re.MULTILINE)), outside


@pytest.mark.parametrize(
    "name", ["</script><script>alert(1)</script>", "<!--<script>", "a & b", "{{columns}}", "{{no}}"]
)
def test_names_can_not_break_out_of_the_page(name: str) -> None:
    trace = made_trace(Process(name, "worker", name, [span(FORWARD, 0, 1, 1)]), name=name)
    text = page(views(trace))
    assert text.count("<script") == page(views(made_trace(*overlapped_run(1)))).count("<script")
    (run,) = data(text)["runs"]
    assert run["name"] == name
    assert run["rows"][0]["process"] == name
    assert Parsed(text).texts["title"] == name


def test_every_kind_and_moment_has_what_the_script_reads() -> None:
    header = data(page(views(made_trace(*overlapped_run(2)))))
    assert [kind["name"] for kind in header["kinds"][1:]] == [kind.name.lower().replace("_", " ") for kind in SpanKind]
    assert header["kinds"][header["plan"]]["name"] == PLAN.name.lower()
    assert [kind["name"] for kind in header["kinds"][1:] if not kind["work"]] == ["wait", "idle"]
    assert [moment["idle"] for moment in header["moments"]] == [True, False, False, False]


def test_the_script_asks_only_for_elements_that_are_there() -> None:
    text = page(views(made_trace(*overlapped_run(2))))
    ids = Parsed(text).ids
    asked = re.findall(r'getElementById\("([^"]+)"\)|\bon\("([^"]+)"', text)
    assert asked
    assert {one or other for one, other in asked} <= set(ids)
    assert len(set(ids)) == len(ids)


def test_half_a_million_spans_are_a_few_megabytes() -> None:
    text = page(views(made_trace(*overlapped_run(3000))))
    spans = 3000 * 13
    assert len(text) < 60_000 + 12 * spans
