"""A recording obeys the rules of Chrome's trace format, and none of them could be broken unseen."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.messages import Joined, Load, SpanKind, Spans
from tests.trace_rules import Event, broken_rules, read
from timeline.member import Member
from timeline.recording import Recording
from timeline.trace import COMPUTE, COPY_OUT, HOST, read_trace

SESSION = 0xFEDC_BA98
STARTED = 10**9


def spans(*done: tuple[SpanKind, int, int, int]) -> Spans:
    """Return (kind, start, end, step) with times in nanoseconds since the recording began."""
    kind, start, end, step = (np.array(column) for column in zip(*done, strict=True))
    none = np.zeros(len(kind), "<u4")
    return Spans(
        kind.astype("u1"), (start + STARTED).astype("<u8"), (end + STARTED).astype("<u8"), step.astype("<u8"),
        np.where(step > 0, SESSION, 0).astype("<u4"), none, none + 3, none, none, 0, 0,
    )  # fmt: skip


def recorded(path: Path) -> dict[str, Any]:
    """Return a file of steps that follow each other without a gap, on many devices: what has the least distance."""
    scheduler = Member(1, Joined("scheduler", "scheduler", 1, "here"), same_clock=True)
    workers = [Member(n, Joined(f"worker {n}", "worker", n, "here", "cuda:0"), same_clock=True) for n in (2, 3, 11)]
    recording = Recording(path, 2**20, STARTED)
    for number, worker in enumerate(workers):
        steps = range(1 + 10 * number, 10 + 10 * number)
        for step in steps:
            at = step * 10_001
            recording.write(worker, spans(
                (SpanKind.RECEIVE, at + 4_000, at + 5_001, 0), (SpanKind.STAGE, at + 5_001, at + 5_500, step),
                (SpanKind.COPY_IN, at + 5_100, at + 5_900, step), (SpanKind.FORWARD, at + 6_001, at + 7_000, step),
                (SpanKind.SAMPLE, at + 7_000, at + 7_001, step), (SpanKind.COPY_OUT, at + 7_001, at + 15_000, step),
                (SpanKind.WAIT, at + 5_500, at + 14_001, 0),
            ))  # fmt: skip
        for step in steps:
            at = step * 10_001
            recording.write(scheduler, spans(
                (SpanKind.RECEIVE, at, at + 1_000, 0), (SpanKind.PLAN, at + 1_000, at + 1_002, step),
                (SpanKind.SEND, at + 1_002, at + 8_001, step), (SpanKind.SETTLE, at + 8_001, at + 10_001, step),
            ))  # fmt: skip
    recording.write(scheduler, Load(STARTED + 5, running=1, waiting=2, blocks_used=3, blocks=4, settled_tokens=5))
    recording.close()
    assert not recording.problem
    return read(path)


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_a_recording_obeys_the_rules(tmp_path: Path, name: str) -> None:
    content = recorded(tmp_path / name)
    assert broken_rules(content) == []
    phases = [event["ph"] for event in content["traceEvents"]]
    assert [phases.count(phase) for phase in "stfC"] == [27, 27, 27, 2]


def test_a_recording_that_begins_and_ends_amid_steps_obeys_them(tmp_path: Path) -> None:
    scheduler = Member(1, Joined("scheduler", "scheduler", 1, "here"), same_clock=True)
    worker = Member(2, Joined("worker", "worker", 2, "here", "cpu"), same_clock=True)
    recording = Recording(tmp_path / "a.json", 2**20, STARTED)
    recording.write(worker, spans((SpanKind.FORWARD, -50, 50, 1), (SpanKind.FORWARD, 60, 90, 2)))
    recording.write(scheduler, spans(
        (SpanKind.PLAN, -300, -200, 1), (SpanKind.PLAN, -20, 20, 2), (SpanKind.SETTLE, 55, 60, 1),
        (SpanKind.PLAN, 60, 90, 3), (SpanKind.SETTLE, 100, 120, 2),
    ))  # fmt: skip
    recording.close()
    assert broken_rules(read(tmp_path / "a.json")) == []


def test_what_is_read_from_it_is_what_was_recorded(tmp_path: Path) -> None:
    recorded(tmp_path / "a.json")
    lanes = [(lane.pid, lane.process, lane.tid) for lane in read_trace(tmp_path / "a.json").lanes]
    assert lanes[0] == (10, "scheduler", HOST)
    assert lanes[1:] == [
        (pid, name, tid)
        for pid, name in ((20, "worker 2"), (30, "worker 3"), (110, "worker 11"))
        for tid in range(HOST, COPY_OUT + 1)
    ]
    (compute,) = [lane for lane in read_trace(tmp_path / "a.json").lanes if (lane.pid, lane.tid) == (110, COMPUTE)]
    assert compute.step.tolist() == [step for step in range(21, 30) for _ in ("forward", "sample")]


# ---------------------------------------------------------------------- each rule

Change = Callable[[dict[str, Any]], object]


def first(phase: str, content: dict[str, Any], at: int = 0) -> Event:
    """Return an event of a phase, to be changed."""
    found: list[Event] = [event for event in content["traceEvents"] if event["ph"] == phase]
    return found[at]


def put(phase: str, **members: object) -> Change:
    """Give the first event of a phase other members."""
    return lambda content: first(phase, content).update(members)


def drop(phase: str, member: str) -> Change:
    return lambda content: first(phase, content).pop(member)


def _named(name: str, content: dict[str, Any]) -> Event:
    found: list[Event] = [event for event in content["traceEvents"] if event["name"] == name]
    return found[0]


def _drop_event(name: str) -> Change:
    return lambda content: content["traceEvents"].remove(_named(name, content))


def _overlap(content: dict[str, Any]) -> None:
    first("X", content)["dur"] += 0.001


def _move_flow(microseconds: float) -> Change:
    def move(content: dict[str, Any]) -> None:
        first("f", content)["ts"] += microseconds

    return move


def _copy_flow(phase: str) -> Change:
    def double(content: dict[str, Any]) -> None:
        content["traceEvents"].append(dict(first(phase, content)))

    return double


def _without_starts(content: dict[str, Any]) -> None:
    content["traceEvents"].remove(first("s", content, -1))


def _as_one_thread(content: dict[str, Any]) -> None:
    """What tids of 0 and 1 of two processes would be."""
    for event in content["traceEvents"]:
        event["tid"] = 1 + event["tid"] % 10


BREAKS: dict[str, tuple[Change, str]] = {
    "no list": (lambda content: content.update(traceEvents={}), "traceEvents is no list"),
    "a unit": (lambda content: content.update(displayTimeUnit="us"), "displayTimeUnit is neither"),
    "other data": (lambda content: content.update(otherData="x"), "otherData is no object"),
    "no object": (lambda content: content["traceEvents"].append(1), "no object"),
    "a phase": (put("X", ph="Q"), "a phase that"),
    "a phase's type": (put("X", ph=None), "a phase that"),
    "pid as text": (put("X", pid="1"), "pid is no number"),
    "pid as a fraction": (put("X", pid=1.0), "pid is no number"),
    "no tid": (drop("X", "tid"), "tid is no number"),
    "tid beyond 32 bits": (put("X", tid=2**32), "tid is no number"),
    "tid 0": (put("X", tid=0), "tid is 0"),
    "pid 0": (put("C", pid=0), "pid is 0"),
    "no name": (drop("X", "name"), "no name"),
    "an empty name": (put("C", name=""), "no name"),
    "args": (put("X", args=[]), "args is no object"),
    "no ts": (drop("X", "ts"), "ts is no time"),
    "ts as text": (put("C", ts="1"), "ts is no time"),
    "ts before 0": (put("s", ts=-1), "ts is no time"),
    "ts without end": (put("s", ts=float("inf")), "ts is no time"),
    "no dur": (drop("X", "dur"), "dur is no time"),
    "dur before 0": (put("X", dur=-0.001), "dur is no time"),
    "a process's name": (put("M", args={"name": 1}), "its argument name is no str"),
    "no process's name": (put("M", args={}), "its argument name is no str"),
    "a place": (lambda content: _named("process_sort_index", content)["args"].update(sort_index="1"), "is no int"),
    "a counter's text": (put("C", args={"running": "1"}), "a counter's arguments"),
    "a counter's truth": (put("C", args={"running": True}), "a counter's arguments"),
    "no counts": (put("C", args={}), "a counter's arguments"),
    "no cat": (drop("s", "cat"), "no category"),
    "an id with a point": (put("t", id="9.7"), "id is no number"),
    "an id beyond 64 bits": (put("t", id="0x1" + "0" * 16), "id is no number"),
    "no id": (drop("f", "id"), "id is no number"),
    "bp": (put("t", bp="s"), 'bp is not "e"'),
    "no bp": (drop("f", "bp"), "it ends at the next slice"),
    "an unnamed process": (_drop_event("process_name"), "process 20 has no name"),
    "an unnamed thread": (_drop_event("thread_name"), "thread 20 of process 20 has no name"),
    "a thread of two": (_as_one_thread, "belongs to 4 processes"),
    "an overlap": (_overlap, "overlap"),
    "a flow at a border": (_move_flow(-0.001), "begins or ends just at"),
    "a flow in the open": (_move_flow(10**6), "no slice is around"),
    "a flow that starts twice": (_copy_flow("s"), "goes ss"),
    "a flow that ends twice": (_copy_flow("f"), "goes stff"),
    "a flow that never started": (_without_starts, "has no start"),
    "a flow at two places": (_copy_flow("t"), "at two places at once"),
    "an end before the start": (lambda content: (first("s", content).update(ph="f", bp="e")), "goes ftf"),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKS)
def test_whatever_breaks_a_rule_is_found(tmp_path: Path, name: str) -> None:
    content = copy.deepcopy(recorded(tmp_path / "a.json"))
    change, complaint = BREAKS[name]
    change(content)
    assert any(complaint in broken for broken in broken_rules(content)), broken_rules(content)[:5]
