"""What a file must obey for the readers of Chrome's trace format: its rules, as Perfetto and catapult apply them.

Where a rule is broken they don't refuse the file: they leave out the event, or draw it where it doesn't belong.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

Event = dict[str, Any]
Thread = tuple[int, int]
Slice = tuple[int, int]  # start and end in nanoseconds

UNITS = ("ms", "ns")
METADATA = {
    "process_name": ("name", str),
    "process_labels": ("labels", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}
"""The argument of each kind of metadata that the format knows. Others are passed over by everybody."""

_FLOW_ID = re.compile(r"(0x)?[0-9a-fA-F]{1,16}")
_NUMBER_OF_32_BITS = range(2**32)


def read(path: Path) -> dict[str, Any]:
    """Return a file's JSON; it is gzip exactly if it is named so."""
    data = path.read_bytes()
    content: dict[str, Any] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    return content


def broken_rules(content: dict[str, Any]) -> list[str]:
    """Return what is wrong with a file, in words; nothing if it obeys."""
    events = content.get("traceEvents")
    if not isinstance(events, list):
        return ["traceEvents is no list"]
    broken = list(_head(content))
    for number, event in enumerate(events):
        broken += [f"event {number}: {what}: {json.dumps(event)}" for what in _event(event)]
    if not broken:  # the rules between events can only be looked at where every event is one
        slices = _slices(events)
        broken += [*_names(events), *_nesting(slices), *_flows(events, slices)]
    return broken


def _head(content: dict[str, Any]) -> Iterator[str]:
    if content.get("displayTimeUnit", "ms") not in UNITS:
        yield "displayTimeUnit is neither ms nor ns"
    if not isinstance(content.get("otherData", {}), dict):
        yield "otherData is no object"


def _event(event: object) -> Iterator[str]:
    if not isinstance(event, dict):
        yield "no object"
        return
    phase = event.get("ph")
    if phase not in _PHASES:
        yield "a phase that a timeline doesn't have"
        return
    for member in ("pid", "tid"):
        if not (_is_whole(event.get(member)) and event[member] in _NUMBER_OF_32_BITS):
            yield f"{member} is no number of 32 bits"
        elif event[member] == 0:
            yield f"{member} is 0, which Perfetto takes for the idle process or for the process's own thread"
    if not (isinstance(event.get("name"), str) and event["name"]):
        yield "no name"
    if not isinstance(event.get("args", {}), dict):
        yield "args is no object"
        return
    if phase != "M" and not _is_time(event.get("ts")):
        yield "ts is no time in microseconds"
    yield from _PHASES[phase](event)


def _metadata(event: Event) -> Iterator[str]:
    if event.get("name") in METADATA:
        name, kind = METADATA[event["name"]]
        value = event.get("args", {}).get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            yield f"its argument {name} is no {kind.__name__}"


def _complete(event: Event) -> Iterator[str]:
    if not _is_time(event.get("dur")):
        yield "dur is no time in microseconds"


def _counter(event: Event) -> Iterator[str]:
    values = event.get("args", {}).values()
    if not values or not all(_is_number(value) for value in values):
        yield "a counter's arguments are no numbers"


def _flow(event: Event) -> Iterator[str]:
    if not isinstance(event.get("cat"), str):
        yield "no category"
    number = event.get("id")
    if not (isinstance(number, str) and _FLOW_ID.fullmatch(number)) and not (
        isinstance(number, int) and number in range(2**53)
    ):
        yield "id is no number and no hexadecimal digits"
    if event.get("bp", "e") != "e":
        yield 'bp is not "e"'
    if event["ph"] == "f" and "bp" not in event:
        yield "it ends at the next slice, not at the one around it"


_PHASES: dict[object, Callable[[Event], Iterator[str]]] = {
    "M": _metadata, "X": _complete, "C": _counter, "s": _flow, "t": _flow, "f": _flow,
}  # fmt: skip


def _names(events: list[Event]) -> Iterator[str]:
    """Every process and thread has a name, and a thread belongs to one process."""
    processes = {event["pid"] for event in events if event["name"] == "process_name"}
    names = {_thread(event) for event in events if event["name"] == "thread_name"}
    threads = {_thread(event) for event in events if event["ph"] in "XC"}
    for pid, tid in sorted(threads):
        if pid not in processes:
            yield f"process {pid} has no name"
        if (pid, tid) not in names:
            yield f"thread {tid} of process {pid} has no name"
    owners = Counter(tid for _, tid in {_thread(event) for event in events})
    yield from (f"thread {tid} belongs to {count} processes" for tid, count in owners.items() if count > 1)


def _nesting(slices: dict[Thread, list[Slice]]) -> Iterator[str]:
    """Slices of one thread nest or are disjoint: Perfetto leaves out what only overlaps."""
    for thread, of_thread in slices.items():
        around: list[Slice] = []
        for start, end in of_thread:
            while around and around[-1][1] <= start:
                around.pop()
            if around and around[-1][1] < end:
                yield f"slices of thread {thread} overlap: {around[-1]} and {(start, end)}"
            around.append((start, end))


def _flows(events: list[Event], slices: dict[Thread, list[Slice]]) -> Iterator[str]:
    """A flow starts once, then steps, then ends once; each of these has exactly one innermost slice around it.

    One that was under way when the recording began has no start, and one that still was when it ended has no end.
    """
    flows: dict[tuple[object, ...], list[Event]] = {}
    for event in events:
        if event["ph"] in "stf":
            flows.setdefault((event["cat"], event["name"], _flow_number(event)), []).append(event)
            yield from _binding(event, slices.get(_thread(event), []))
    whole = [of for of in flows.values() if {"s", "f"} <= {event["ph"] for event in of}]
    first_end = min((event["ts"] for of in whole for event in of if event["ph"] == "f"), default=float("inf"))
    for flow, of in flows.items():
        of.sort(key=lambda event: event["ts"])
        phases = "".join(event["ph"] for event in of)
        if phases[0] != "s" and of[0]["ts"] > first_end:
            yield f"flow {flow} has no start"
        elif not re.fullmatch("s?t*f?", phases):
            yield f"flow {flow} goes {phases}"
        elif any(one["ts"] == other["ts"] for one, other in pairwise(of)):
            yield f"flow {flow} is at two places at once"


def _binding(event: Event, of_thread: list[Slice]) -> Iterator[str]:
    at = _nanoseconds(event["ts"])
    around = [(start, end) for start, end in of_thread if start <= at <= end]
    if not around:
        yield f"no slice is around the flow's event {json.dumps(event)}"
    elif any(at in (start, end) and end - start > 1 for start, end in around):
        yield f"a slice begins or ends just at the flow's event {json.dumps(event)}"


def _slices(events: list[Event]) -> dict[Thread, list[Slice]]:
    """Return those of each thread in the order of their start, the outer ones first."""
    slices: dict[Thread, list[Slice]] = {}
    for event in events:
        if event["ph"] == "X":
            start = _nanoseconds(event["ts"])
            slices.setdefault(_thread(event), []).append((start, start + _nanoseconds(event["dur"])))
    return {thread: sorted(each, key=lambda slice: (slice[0], -slice[1])) for thread, each in slices.items()}


def _thread(event: Event) -> Thread:
    return event["pid"], event["tid"]


def _flow_number(event: Event) -> int:
    """Perfetto keeps 64 bits."""
    return int(event["id"], 16) if isinstance(event["id"], str) else int(event["id"])


def _nanoseconds(microseconds: float) -> int:
    return round(microseconds * 1000)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


def _is_time(value: object) -> bool:
    return _is_number(value) and isinstance(value, int | float) and value >= 0
