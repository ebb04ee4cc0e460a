"""A timeline's file is read as it was written, however it is laid out and wherever it ends."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.messages import Joined, SpanKind, StartTimeline
from tests.collector_system import HERE, System, spans
from tests.made_traces import (
    FORWARD,
    IDLE,
    LAUNCH,
    PLAN,
    SAMPLE,
    SETTLE,
    Process,
    lockstep_run,
    made_trace,
    span,
    write_trace,
)
from timeline import event_stream
from timeline.errors import TraceError
from timeline.event_stream import EventStream
from timeline.reckoning import report
from timeline.report import text
from timeline.trace import Trace, read_trace

SMALL = (
    Process("scheduler", "scheduler", "", [span(PLAN, 0.001, 2.5, 1, rows=2), span(IDLE, 3, 4)]),
    Process(
        "worker 0", "worker", "cuda:0", [span(FORWARD, 5, 7, 1, rows=2, tokens=3, decodes=1), span(SAMPLE, 7, 9, 1)]
    ),
)


def assert_same(found: Trace, expected: Trace) -> None:
    for name in ("started", "lost", "clock_error", "complete"):
        assert getattr(found, name) == getattr(expected, name)
    assert len(found.lanes) == len(expected.lanes)
    for one, other in zip(found.lanes, expected.lanes, strict=True):
        for name in one.__slots__:
            left, right = getattr(one, name), getattr(other, name)
            assert np.array_equal(left, right), (name, left, right)
            assert getattr(left, "dtype", None) == getattr(right, "dtype", None)


def spans_of(trace: Trace) -> int:
    return sum(map(len, trace.lanes))


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_a_file_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    every_kind = [span(kind, kind, kind + 0.5, 3, session=2**32 - 1, wasted=kind) for kind in SpanKind]
    processes = (*lockstep_run(3), Process("worker 1", "worker", "cuda:1", every_kind))
    found = read_trace(write_trace(tmp_path / name, *processes, lost=7, clock_error=2.5))
    assert found.name == name
    assert_same(found, made_trace(*processes, lost=7, clock_error=2.5))


def test_spans_are_put_in_order_of_their_start(tmp_path: Path) -> None:
    late_first = Process("scheduler", "scheduler", "", [span(SETTLE, 5, 6, 1), span(PLAN, 1, 2, 2)])
    (lane,) = read_trace(write_trace(tmp_path / "run.json", late_first)).lanes
    assert lane.start.tolist() == [1000, 5000]
    assert lane.step.tolist() == [2, 1]


def laid_out(text: str) -> dict[str, str]:
    parsed = json.loads(text)
    return {
        "one line": json.dumps(parsed, separators=(",", ":")),
        "one line with spaces": json.dumps(parsed),
        "indented": json.dumps(parsed, indent=2),
        "sorted": json.dumps(parsed, indent=1, sort_keys=True),
        "events first": json.dumps({"traceEvents": parsed["traceEvents"], "otherData": parsed["otherData"]}),
    }


@pytest.mark.parametrize("layout", ["one line", "one line with spaces", "indented", "sorted", "events first"])
@pytest.mark.parametrize("piece", [700, 2**20])
def test_any_layout_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, piece: int) -> None:
    monkeypatch.setattr(event_stream, "PIECE", piece)
    path = write_trace(tmp_path / "run.json", *lockstep_run(20))
    expected = made_trace(*lockstep_run(20))
    assert_same(read_trace(path), expected)
    path.write_text(laid_out(path.read_text())[layout])
    assert_same(read_trace(path), expected)


def test_one_event_a_line_is_read_many_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone: list[object] = []
    one_value = EventStream._value

    def counted(stream: EventStream) -> object:
        alone.append(one_value(stream))
        return alone[-1]

    monkeypatch.setattr(EventStream, "_value", counted)
    assert spans_of(read_trace(write_trace(tmp_path / "run.json", *lockstep_run(200)))) > 2000
    assert len(alone) < 20, "the head's members, and the last event of a piece"


def test_a_bare_list_of_events_is_read(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "run.json", *SMALL)
    path.write_text(json.dumps(json.loads(path.read_text())["traceEvents"]))
    found = read_trace(path)
    assert found.started == ""
    assert spans_of(found) == 4
    assert found.complete


def test_text_that_looks_like_a_border_between_events_is_none(tmp_path: Path) -> None:
    odd = Process('},{"ph":1},\\n{', "scheduler", "", [span(PLAN, 1, 2, 1), span(SETTLE, 2, 3, 1)])
    path = write_trace(tmp_path / "run.json", odd)
    for layout in (path.read_text(), *laid_out(path.read_text()).values()):
        path.write_text(layout)
        assert_same(read_trace(path), made_trace(odd))


def test_wherever_a_file_was_cut_every_complete_event_counts(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "run.json", *SMALL)
    whole = path.read_bytes()
    events = whole.index(b"[\n")
    spans, at = [], 0
    for line in whole.splitlines(keepends=True):
        if b'"X"' in line:
            spans.append(at + len(line.rstrip(b",\n")))
        at += len(line)
    assert len(spans) == 4
    for cut in range(events, len(whole), 3):
        path.write_bytes(whole[:cut])
        found = read_trace(path)
        assert spans_of(found) == sum(end <= cut for end in spans), whole[:cut]
        assert found.complete == (cut > whole.rindex(b"}"))


def test_a_file_that_was_cut_before_its_first_event_has_none(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('{"displayTimeUnit":"ms","otherData":{"stepahead":1,"started":"now"},"traceEv')
    found = read_trace(path)
    assert (found.started, found.lanes, found.complete) == ("now", (), False)


def test_a_gz_file_is_read_up_to_its_cut(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "run.json.gz", *lockstep_run(8))
    whole = path.read_bytes()
    counts = [0]
    for cut in range(400, len(whole), 7):
        path.write_bytes(whole[:cut])
        counts.append(spans_of(read_trace(path)))
    assert counts == sorted(counts)
    assert counts[len(counts) // 2] > 10, "what was compressed before the cut is there"
    assert counts[-1] == spans_of(made_trace(*lockstep_run(8))), "only the check sum is missing"


def test_a_gz_file_of_several_members_is_one(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "run.json", *SMALL)
    whole = path.read_bytes()
    path.write_bytes(b"".join(gzip.compress(whole[at : at + 200]) for at in range(0, len(whole), 200)))
    assert_same(read_trace(path), made_trace(*SMALL))


def test_damage_in_a_gz_file_ends_it(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "run.json.gz", *lockstep_run(20))
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2 :] = bytes(range(256)) * 4
    path.write_bytes(whole)
    found = read_trace(path)
    assert not found.complete
    assert 10 < spans_of(found) < spans_of(made_trace(*lockstep_run(20)))


@pytest.mark.parametrize("garbage", [b"\0" * 5000, b"\xff\xfe{", b"oh"])
def test_what_stands_before_damage_counts(tmp_path: Path, garbage: bytes) -> None:
    path = write_trace(tmp_path / "run.json", *SMALL)
    whole = path.read_bytes()
    last = whole.rindex(b'{"ph": "X"')
    path.write_bytes(whole[:last] + garbage + whole[last:])
    found = read_trace(path)
    assert spans_of(found) == 3
    assert not found.complete


def test_a_long_damaged_end_is_not_gathered_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "PIECE", 4096)
    path = write_trace(tmp_path / "run.json", *SMALL)
    path.write_bytes(path.read_bytes().rstrip(b"]}\n ") + b'}},\n{"ph":"' + b"a" * 200_000)
    with EventStream(path) as stream:
        assert sum(event["ph"] == "X" for event in stream) == 4
        assert len(stream._text) < 4 * 4096


OURS = {"ph": "M", "pid": 1, "name": "stepahead", "args": {"role": "scheduler"}}
SPAN = {"ph": "X", "pid": 1, "tid": 0, "name": "plan", "ts": 1, "dur": 1}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b" \n", "the file is empty"),
        (gzip.compress(b"", mtime=0), "the file is empty"),
        (b"\x1f\x8b\x08", "the file is empty"),
        (b"Hello", "this is no JSON, so no timeline"),
        (b"\x89PNG\r\n", "this is no JSON, so no timeline"),
        (gzip.compress(b"Hello", mtime=0), "this is no JSON, so no timeline"),
        (b"{", "this is no timeline of Stepahead"),
        (b"[]", "this is no timeline of Stepahead"),
        (b'{"model_type": "llama", "layers": [1, 2]}', "this is no timeline of Stepahead"),
        (b'{"traceEvents": 3}', '"traceEvents" is no list'),
        (b'{"traceEvents": [3]}', "an event is no object: 3"),
        (b'{"otherData": {"stepahead": 2}, "traceEvents": []}', "its format is 2; this program reads 1"),
        (json.dumps([SPAN | {"pid": "renderer", "ts": "x"}]).encode(), "this is no timeline of Stepahead"),
    ],
)
def test_what_is_no_timeline_is_refused_in_one_line(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(TraceError) as error:
        read_trace(path)
    assert str(error.value) == f"{path}: {reason}"


@pytest.mark.parametrize(
    "wrong",
    [{"ts": "x"}, {"ts": None}, {"ts": float("nan")}, {"ts": 1e300}, {"dur": -1}, {"tid": 4}, {"args": 3},
     {"args": {"step": 1.5}}, {"args": {"rows": "many"}}, {"ts": [1]}, {"ts": 1e13}, {"ts": -1e13},
     {"args": {"step": 2**63}}],
)  # fmt: skip
def test_a_damaged_event_is_named(tmp_path: Path, wrong: dict[str, Any]) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps([OURS, SPAN | wrong]))
    with pytest.raises(TraceError, match="an event is damaged: {'ph': 'X'"):
        read_trace(path)


def test_a_role_that_is_none_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps([OURS, OURS | {"args": {"role": "cook"}}]))
    with pytest.raises(TraceError, match="an event is damaged: .*cook"):
        read_trace(path)


def test_events_of_other_programs_are_passed_over(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "run.json", *SMALL)
    whole = json.loads(path.read_text())
    others: list[dict[str, Any]] = [
        {},
        {"ph": "X", "pid": 1, "tid": 0, "name": "cudaLaunchKernel", "ts": 1, "dur": 1},
        {"ph": "X", "pid": 77, "tid": 0, "name": "plan", "ts": 1, "dur": 1},
        {"ph": "X", "pid": "python", "tid": "stream 7", "name": "forward", "ts": "early"},
        {"ph": "M", "name": "process_name", "pid": 77},
        {"ph": "B", "name": ["plan"]},
    ]
    path.write_text(json.dumps(whole | {"traceEvents": others + whole["traceEvents"] + others}))
    assert_same(read_trace(path), made_trace(*SMALL))


def test_counters_are_read_in_order_of_time_and_those_of_others_passed_over(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "run.json", *SMALL)
    whole = json.loads(path.read_text())
    told = [
        {"ph": "C", "pid": 1, "name": "KV blocks", "ts": at, "args": {"used": used, "free": 9 - used}}
        for at, used in ((7.5, 2), (3, 1))
    ]
    others = [
        {"ph": "C", "pid": 1, "name": "memory", "ts": 0, "args": {"bytes": 1}},
        {"ph": "C", "pid": "python", "name": "requests", "ts": 0, "args": {"running": 1, "waiting": 2}},
        {"ph": "C", "pid": 77, "name": "requests", "ts": 0, "args": {"running": 1.5, "waiting": 2}},
    ]
    path.write_text(json.dumps(whole | {"traceEvents": [*others, *whole["traceEvents"], *told]}))
    blocks, requests = read_trace(path).counters
    assert (blocks.process, blocks.name, blocks.at.tolist()) == ("scheduler", "KV blocks", [3000, 7500])
    assert {name: column.tolist() for name, column in blocks.values.items()} == {"used": [1, 2], "free": [8, 7]}
    assert (requests.name, requests.at.tolist()) == ("requests", [0])
    assert {name: column.tolist() for name, column in requests.values.items()} == {"running": [1], "waiting": [0]}


def test_a_damaged_counter_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps([OURS, {"ph": "C", "pid": 1, "name": "requests", "ts": 1, "args": {"running": 1}}]))
    with pytest.raises(TraceError, match="an event is damaged: {'ph': 'C'"):
        read_trace(path)


@pytest.mark.parametrize(("path", "reason"), [("/proc/self/mem", "Input/output error"), ("/", "Is a directory")])
def test_what_cannot_be_read_is_refused_in_one_line(path: str, reason: str) -> None:
    with pytest.raises(TraceError, match=f"^{path}: {reason}$"):
        read_trace(Path(path))


def test_a_file_that_is_not_there_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such.json: No such file or directory$"):
        read_trace(tmp_path / "no such.json")


def test_a_process_that_was_not_named_gets_a_name(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps([OURS, SPAN | {"name": LAUNCH.name.lower()}]))
    (lane,) = read_trace(path).lanes
    assert (lane.process, lane.role, lane.device) == ("scheduler 1", "scheduler", "")


def test_a_foreign_event_that_looks_like_ours_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    foreign = [SPAN | {"args": {"step": 1, "session": "x"}}, OURS | {"pid": "a"}, SPAN | {"pid": "a"}]
    path.write_text(json.dumps([*foreign, OURS, SPAN]))
    (lane,) = read_trace(path).lanes
    assert lane.start.tolist() == [1000]


def test_a_long_list_for_a_number_is_not_made_longer(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps([OURS, SPAN | {"ts": [0] * 100_000}]))
    tracemalloc.start()
    try:
        with pytest.raises(TraceError):
            read_trace(path)
        assert tracemalloc.get_traced_memory()[1] < 2**25
    finally:
        tracemalloc.stop()


def test_what_a_file_calls_things_can_be_printed(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    name = OURS | {"name": "process_name", "args": {"name": "\x1b[31m\ud800\n" + "a" * 1000}}
    header = {"stepahead": 1, "started": "\ud800\x07"}
    path.write_text(json.dumps({"otherData": header, "traceEvents": [OURS, name, SPAN]}))
    read = read_trace(path)
    assert read.started.isprintable()
    assert read.lanes[0].process.isprintable()
    assert len(read.lanes[0].process) <= 100
    path.write_text(json.dumps({"otherData": {"stepahead": "\x1b" * 1000}, "traceEvents": []}))
    with pytest.raises(TraceError) as error:
        read_trace(path)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < len(str(path)) + 200


def test_how_its_processes_were_set_up_is_told(tmp_path: Path) -> None:
    system = System(tmp_path)
    system.hear(b"x", Joined("worker 0", "worker", 1, HERE, "cpu", "a model in float32 on the CPU"))
    system.join("scheduler")
    system.ask(StartTimeline(1, "a.json"))
    for peer in (b"x", b"scheduler"):
        system.hear(peer, spans((SpanKind.PLAN, system.clock, system.clock)))
    system.stop()
    trace = read_trace(tmp_path / "a.json")
    assert trace.setup == ("worker 0: a model in float32 on the CPU",)
    assert report(trace).setup == trace.setup
    assert trace.setup[0] in text(report(trace))
