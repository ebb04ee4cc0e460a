"""The collector: who records when, what a file gets, and clear answers to whoever starts and stops."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec import encode
from protocol.messages import (
    AskTimeline,
    ClockAsk,
    ClockTold,
    Joined,
    Load,
    Message,
    Ping,
    Pong,
    Record,
    SpanKind,
    Spans,
    StartTimeline,
    StopTimeline,
    TimelineState,
    View,
    Watch,
)
from timeline.collector import CLOSING_SECONDS, MOST_MEMBERS, SHOW_SECONDS, TELL_SECONDS, WATCH_SECONDS, Collector
from timeline.last_seconds import MOST_LOADS
from timeline.member import Member
from timeline.trace import read_trace

HERE, ELSEWHERE = "this host", "another host"
SECOND = 1_000_000_000
CLIENT = b"client"
COLUMNS = ("kind", "start", "end", "step", "session", "rows", "tokens", "decodes", "wasted")
ON, SHOWN, OFF = Record(True, TELL_SECONDS), Record(True, SHOW_SECONDS), Record(False, TELL_SECONDS)


def spans(*intervals: tuple[SpanKind, int, int], step: int = 1, lost: int = 0, error: int = 0) -> Spans:
    kind, start, end = (list(column) for column in zip(*intervals, strict=True))
    numbers = np.full(len(kind), step % 2**32, "<u4")
    return Spans(
        np.array(kind, "u1"), np.array(start, "<u8"), np.array(end, "<u8"), np.full(len(kind), step, "<u8"),
        numbers * 7, numbers, numbers, numbers * 0, numbers * 0, lost, error,
    )  # fmt: skip


def load(time: int) -> Load:
    return Load(time, running=3, waiting=2, blocks_used=10, blocks=16, settled_tokens=100)


class System:
    """A collector with time, and what it has said to each peer."""

    def __init__(self, directory: Path, most_bytes: int = 2**20) -> None:
        self.directory = directory
        self.collector = Collector(HERE, directory, most_bytes)
        self.clock = 100 * SECOND
        self.said: dict[bytes, list[Message]] = {}

    def hear(self, peer: bytes, message: Message) -> list[Message]:
        """Return what the peer is told, then or because of it."""
        return self._keep(self.collector.hear(peer, message, self.clock)).get(peer, [])

    def wait(self, seconds: float) -> dict[bytes, list[Message]]:
        self.clock += int(seconds * SECOND)
        return self._keep(self.collector.beat(self.clock))

    def _keep(self, said: list[tuple[bytes, Message]]) -> dict[bytes, list[Message]]:
        self.said = {peer: [message for to, message in said if to == peer] for peer, _ in said}
        return self.said

    def join(self, name: str, role: str = "scheduler", host: str = HERE, device: str = "") -> list[Message]:
        return self.hear(name.encode(), Joined(name, role, 1, host, device))

    def ask(self, message: Message) -> TimelineState:
        (state,) = [said for said in self.hear(CLIENT, message) if isinstance(said, TimelineState)]
        return state

    def events(self, file: str = "a.json") -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = json.loads((self.directory / file).read_text())["traceEvents"]
        return events

    def stop(self) -> TimelineState:
        """Stop the recording; no member has more to send."""
        told = self.hear(CLIENT, StopTimeline(9)) or self.wait(CLOSING_SECONDS)[CLIENT]
        (state,) = [said for said in told if isinstance(said, TimelineState)]
        return state


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    made = System(tmp_path)
    yield made
    made.collector.close(made.clock)


def test_a_process_records_while_there_is_a_recording(system: System) -> None:
    assert system.join("early") == [OFF]
    system.hear(CLIENT, StartTimeline(1, "a.json"))
    assert system.said[b"early"] == [ON]
    assert system.join("late") == [ON]
    system.stop()
    assert system.said[b"early"] == system.said[b"late"] == [OFF]


def test_a_ping_is_answered_with_the_collectors_life(system: System) -> None:
    (first,) = system.hear(b"x", Ping())
    (other,) = System(system.directory).hear(b"x", Ping())
    assert isinstance(first, Pong)
    assert system.hear(b"x", Ping()) == [first]
    assert other != first


def test_the_file_has_what_was_done_since_the_start(system: System) -> None:
    system.join("scheduler")
    system.join("worker", "worker", device="cuda:0")
    assert system.ask(StartTimeline(1, "a.json")).recording
    start = system.clock
    system.hear(
        b"scheduler", spans((SpanKind.PLAN, start - 20, start - 10), (SpanKind.PLAN, start + 1500, start + 2501))
    )
    system.hear(b"scheduler", load(start + 3000))
    system.hear(b"worker", spans((SpanKind.FORWARD, start + 3000, start + 5000), (SpanKind.IDLE, start - 5, start + 5)))
    system.hear(b"scheduler", spans((SpanKind.SETTLE, start + 6000, start + 7000), lost=4))
    system.stop()
    events = system.events()
    names = [(event["pid"], event["args"]["name"]) for event in events if event["name"] == "process_name"]
    assert names == [(10, "scheduler"), (20, "worker")]
    lanes = [(e["pid"], e["tid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"]
    assert lanes == [
        (10, 10, "host"), (20, 20, "host"), (20, 21, "copy in"), (20, 22, "compute"), (20, 23, "copy out"),
    ]  # fmt: skip
    done = [(e["pid"], e["tid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert done == [
        (10, 10, "plan", 1.5, 1.001),
        (20, 22, "forward", 3.0, 2.0),
        (20, 20, "idle", 0.0, 0.005),
        (10, 10, "settle", 6.0, 1.0),
    ]
    arrows = [(e["ph"], e["id"], e["pid"], e["tid"], e["ts"]) for e in events if e["ph"] in "stf"]
    assert arrows == [
        ("s", "0x700000001", 10, 10, 1.501), ("t", "0x700000001", 20, 22, 3.001), ("f", "0x700000001", 10, 10, 6.001),
    ]  # fmt: skip
    counters = [(e["name"], e["ts"], e["args"]) for e in events if e["ph"] == "C"]
    assert counters == [
        ("requests", 3.0, {"running": 3, "waiting": 2}),
        ("KV blocks", 3.0, {"used": 10, "free": 6}),
    ]
    assert [e["args"]["spans"] for e in events if e["name"] == "stepahead_lost"] == [4]


def test_what_a_clock_may_be_off_is_told_again_when_it_grows(system: System) -> None:
    system.join("worker", "worker", device="cuda:0")
    system.ask(StartTimeline(1, "a.json"))
    for error in (3000, 2000, 5000):
        system.hear(b"worker", spans((SpanKind.FORWARD, system.clock, system.clock), error=error))
    system.stop()
    errors = [e["args"]["clock_error_us"] for e in system.events() if e["name"] == "stepahead"]
    assert errors == [3.0, 5.0]


def test_stopping_waits_for_what_was_recorded_and_not_yet_sent(system: System) -> None:
    system.join("one")
    system.join("two")
    system.ask(StartTimeline(1, "a.json"))
    assert system.hear(CLIENT, StopTimeline(2)) == []
    assert system.said == {b"one": [Ping()], b"two": [Ping()]}
    system.hear(b"one", spans((SpanKind.PLAN, system.clock, system.clock)))
    system.hear(b"one", Pong(1, 0))
    assert CLIENT not in system.said
    system.hear(b"two", Pong(1, 0))
    (state,) = system.said[CLIENT]
    assert isinstance(state, TimelineState)
    assert (state.request, state.recording, state.refusal, state.spans) == (2, False, "", 1)
    assert len([e for e in system.events() if e["ph"] == "X"]) == 1


def test_stopping_waits_for_nobody_who_is_gone_or_hangs(system: System) -> None:
    system.join("gone")
    system.join("hangs")
    system.ask(StartTimeline(1, "a.json"))
    system.hear(CLIENT, StopTimeline(2))
    system.collector.forget(b"gone")
    assert CLIENT not in system.wait(CLOSING_SECONDS * 0.9)
    assert CLIENT in system.wait(CLOSING_SECONDS * 0.2)


def test_starting_twice_and_stopping_twice_are_refused_in_words(system: System) -> None:
    assert system.ask(StopTimeline(1)).refusal == "nothing is being recorded"
    assert system.ask(StartTimeline(2, "a.json")).refusal == ""
    again = system.ask(StartTimeline(3, "b.json"))
    assert (again.recording, again.refusal) == (True, f"{system.directory}/a.json is being recorded already")
    assert not (system.directory / "b.json").exists()
    assert system.stop().refusal == ""
    last = system.ask(StopTimeline(4))
    assert (last.refusal, last.file) == ("nothing is being recorded", f"{system.directory}/a.json")


def test_two_who_stop_at_once_both_get_their_answer(system: System) -> None:
    system.join("one")
    system.ask(StartTimeline(1, "a.json"))
    system.hear(CLIENT, StopTimeline(2))
    system.hear(b"other", StopTimeline(3))
    told = system.wait(CLOSING_SECONDS)
    assert [message.request for message in told[CLIENT] + told[b"other"] if isinstance(message, TimelineState)] == [
        2,
        3,
    ]


def test_a_state_tells_how_far_a_recording_is(system: System) -> None:
    assert system.ask(AskTimeline(1)) == TimelineState(1, False, "", 0.0, 0, 0, "", "")
    system.join("one")
    system.ask(StartTimeline(2, "a.json"))
    system.hear(b"one", spans((SpanKind.PLAN, system.clock, system.clock)))
    system.wait(2.5)
    state = system.ask(AskTimeline(3))
    assert (state.recording, state.seconds, state.spans) == (True, 2.5, 1)
    size = state.bytes
    assert system.stop().seconds == 2.5 + CLOSING_SECONDS
    system.wait(50)
    assert system.ask(AskTimeline(4)).seconds == 2.5 + CLOSING_SECONDS
    assert system.ask(AskTimeline(4)).bytes == size


@pytest.mark.parametrize("name", ["../a.json", "a/b.json", "/a.json", ".json", "a.txt", "a", "a\n.json", "\0.json"])
def test_a_file_is_named_plainly_or_refused(system: System, name: str) -> None:
    state = system.ask(StartTimeline(1, name))
    assert "no plain name" in state.refusal
    assert not state.recording


def test_without_a_name_date_and_time_make_one(system: System) -> None:
    state = system.ask(StartTimeline(1))
    assert state.recording
    assert Path(state.file).parent == system.directory
    assert Path(state.file).name.startswith("timeline-2")


def test_nobody_replaces_a_file_from_afar(system: System) -> None:
    (system.directory / "a.json").write_text("precious")
    assert "is there already" in system.ask(StartTimeline(1, "a.json")).refusal
    assert (system.directory / "a.json").read_text() == "precious"


def test_the_directory_is_made_when_it_is_needed_and_a_bad_one_refused(tmp_path: Path) -> None:
    system = System(tmp_path / "new" / "deep")
    assert system.ask(StartTimeline(1, "a.json")).recording
    system.collector.close(system.clock)
    (tmp_path / "file").write_text("")
    assert "cannot be written" in System(tmp_path / "file").ask(StartTimeline(1, "a.json")).refusal


def test_a_full_file_ends_the_recording_and_says_so(tmp_path: Path) -> None:
    system = System(tmp_path, most_bytes=2000)
    system.join("one")
    system.ask(StartTimeline(1, "a.json"))
    for _ in range(100):
        system.hear(b"one", spans((SpanKind.PLAN, system.clock, system.clock)))
    state = system.ask(AskTimeline(2))
    assert not state.recording
    assert "has reached" in state.problem
    assert "has reached" in system.collector.problem
    assert state.bytes < 2500
    assert system.events()
    assert system.ask(StopTimeline(3)).refusal == "nothing is being recorded"
    assert system.ask(StartTimeline(4, "b.json")).problem == ""
    system.collector.close(system.clock)


def test_a_silent_process_is_forgotten(system: System) -> None:
    system.join("one")
    system.wait(11)
    system.hear(CLIENT, StartTimeline(1, "a.json"))
    assert b"one" not in system.said


def test_two_of_one_name_are_told_apart(system: System) -> None:
    system.join("worker")
    system.hear(b"another", Joined("worker", "worker", 2, HERE))
    system.ask(StartTimeline(1, "a.json"))
    for peer in (b"worker", b"another"):
        system.hear(peer, spans((SpanKind.PLAN, system.clock, system.clock)))
    system.stop()
    assert [e["args"]["name"] for e in system.events() if e["name"] == "process_name"] == ["worker", "worker #2"]


def test_who_joins_again_keeps_its_name_and_its_place(system: System) -> None:
    system.join("worker")
    system.ask(StartTimeline(1, "a.json"))
    system.join("worker")
    system.hear(b"worker", spans((SpanKind.PLAN, system.clock, system.clock)))
    system.stop()
    assert [(e["pid"], e["args"]["name"]) for e in system.events() if e["name"] == "process_name"] == [(10, "worker")]


# ---------------------------------------------------------------------- clocks


def test_a_process_of_another_host_is_asked_for_its_clock_while_it_records(system: System) -> None:
    system.join("near")
    system.join("far", host=ELSEWHERE)
    assert system.wait(1) == {}
    system.ask(StartTimeline(1, "a.json"))
    assert system.wait(1) == {b"far": [ClockAsk(system.clock)]}
    asked = system.clock
    system.clock += 400
    system.hear(b"far", ClockTold(asked, clock=5_000))
    at = 5_000 + system.clock - asked
    system.hear(b"far", spans((SpanKind.PLAN, at, at)))
    system.stop()
    (event,) = [e for e in system.events() if e["ph"] == "X"]
    assert event["ts"] == pytest.approx((SECOND + 400 + 200) / 1000)  # the far clock stood at 5,000 in the middle
    assert [e["args"]["clock_error_us"] for e in system.events() if e["name"] == "stepahead"] == [0.2]


@given(
    st.integers(-(10**12), 10**12),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=20),
)
def test_an_offset_is_never_off_by_more_than_its_error(offset: int, delays: list[tuple[int, int]]) -> None:
    member = Member(1, Joined("far", "worker", 1, ELSEWHERE), 0, same_clock=False)
    clock = 10**13
    for there, back in delays:
        clock += SECOND
        member.clock_told(clock, clock + there - offset, clock + there + back)
        assert abs(member.offset - offset) <= member.offset_error <= (there + back + 1) // 2


def test_a_foreign_clock_is_asked_for_each_second_and_not_whenever_an_answer_comes(system: System) -> None:
    system.join("scheduler", host=ELSEWHERE)
    system.ask(StartTimeline(1, "a.json"))
    asked = 0
    for _ in range(100):  # its answer takes 20 ms
        asked += sum(isinstance(said, ClockAsk) for said in system.wait(0.02).get(b"scheduler", []))
        system.hear(b"scheduler", ClockTold(system.clock, system.clock))
    assert asked == 2


def test_a_name_that_no_file_system_takes_is_refused(system: System) -> None:
    refusal = system.ask(StartTimeline(1, "\N{FIRE}" * 100 + ".json")).refusal
    assert refusal.endswith("cannot be written: File name too long")


def test_a_folder_whose_name_is_no_text_can_be_told(tmp_path: Path) -> None:
    system = System(tmp_path / os.fsdecode(b"\xff"))
    encode(system.ask(StopTimeline(1)))
    encode(system.ask(StartTimeline(1, "a.json")))
    encode(system.ask(StartTimeline(1, "a.json")))
    system.stop()
    encode(system.ask(StartTimeline(1, "a.json")))


def test_what_no_file_can_tell_is_left_out_of_it(system: System) -> None:
    system.join("scheduler")
    system.join("liar", host=ELSEWHERE)
    system.ask(StartTimeline(1, "a.json"))
    system.hear(b"liar", ClockTold(0, 2**63 - 1))
    system.hear(b"liar", spans((SpanKind.PLAN, 1, 2)))
    system.hear(b"scheduler", spans((SpanKind.PLAN, system.clock, 2**63 - 1), (SpanKind.PLAN, 2**63, 2**64 - 1)))
    system.hear(b"scheduler", spans((SpanKind.SEND, system.clock, system.clock + 1), step=2**64 - 1))
    system.hear(b"scheduler", load(2**63 - 1))
    system.hear(b"scheduler", spans((SpanKind.SETTLE, system.clock, system.clock + 1)))
    system.stop()
    read = read_trace(system.directory / "a.json")
    assert [lane.kind.tolist() for lane in read.lanes] == [[SpanKind.SETTLE]]


def test_names_that_would_spoil_a_page_or_a_terminal_are_made_plain(system: System) -> None:
    system.join("a\n\x1b[31m" + "b" * 10_000, "worker", device="\x00")
    system.ask(StartTimeline(1, "a.json"))
    (process,) = system.collector._members.values()
    assert process.joined.name.isprintable()
    assert process.joined.device.isprintable()
    assert len(process.joined.name) <= 100


def test_a_system_has_a_bounded_number_of_processes_and_all_have_a_role(system: System) -> None:
    system.join("cook", "cook")
    assert not system.collector._members
    for number in range(MOST_MEMBERS + 1):
        system.hear(b"%d" % number, Joined("worker", "worker", 1, HERE))
    assert len(system.collector._members) == MOST_MEMBERS


# ---------------------------------------------------------------------- the live page


def view(system: System) -> View:
    (made,) = [said for said in system.hear(CLIENT, Watch()) if isinstance(said, View)]
    return made


def test_processes_record_while_somebody_watches_and_stop_soon_after(system: System) -> None:
    system.join("one")
    view(system)
    assert system.said[b"one"] == [SHOWN]
    assert b"one" not in system.wait(WATCH_SECONDS * 0.9)
    assert system.wait(WATCH_SECONDS * 0.2)[b"one"] == [OFF]


def test_who_is_watched_while_recording_tells_more_often_as_long_as_that_lasts(system: System) -> None:
    system.join("one")
    system.ask(StartTimeline(1, "a.json"))
    view(system)
    assert system.said[b"one"] == [SHOWN]
    assert system.wait(WATCH_SECONDS * 1.1)[b"one"] == [ON]


def test_a_view_shows_who_worked_when(system: System) -> None:
    system.join("scheduler")
    system.join("worker", "worker", device="cpu")
    view(system)
    millisecond = SECOND // 1000
    start = system.clock
    for number in range(10):  # 100 ms of compute of each 200, planned in the last 10 of them or in the gap
        at = start + 200 * number * millisecond
        system.hear(b"worker", spans((SpanKind.FORWARD, at, at + 90 * millisecond)))
        system.hear(b"worker", spans((SpanKind.SAMPLE, at + 90 * millisecond, at + 100 * millisecond)))
        plan = at + 90 * millisecond if number % 2 else at + 150 * millisecond
        system.hear(b"scheduler", spans((SpanKind.PLAN, plan, plan + 10 * millisecond)))
        system.hear(b"scheduler", spans((SpanKind.WAIT, plan + 10 * millisecond, plan + 190 * millisecond)))
    system.hear(b"scheduler", load(start + 1000 * millisecond))
    later = load(start + 2000 * millisecond)
    system.hear(b"scheduler", Load(later.time, 1, 0, 4, 16, settled_tokens=150))
    system.clock = start + 2500 * millisecond
    shown = view(system)
    assert shown.start + shown.bin * len(shown.device) <= system.clock
    seconds = shown.bin / SECOND / 255
    assert shown.device.sum() * seconds == pytest.approx(1.0, abs=0.01)
    assert shown.scheduler.sum() * seconds == pytest.approx(0.1, abs=0.001)
    assert shown.both.sum() * seconds == pytest.approx(0.05, abs=0.001)
    assert not shown.worker.any()
    assert shown.busy == pytest.approx(0.5, abs=0.01)
    assert shown.step_seconds == pytest.approx(0.1)
    assert shown.tokens_per_second == pytest.approx(50)
    assert (shown.running, shown.waiting, shown.blocks_used, shown.blocks) == (1, 0, 4, 16)


def test_a_view_can_be_told_whatever_its_members_say(system: System) -> None:
    for name in ("one", "other"):
        system.join(name)
    system.join("worker", "worker", device="cpu")
    view(system)
    most = 2**31 - 1
    for peer in (b"one", b"other"):
        system.hear(peer, Load(system.clock - 1, most, most, most, most, settled_tokens=0))
        system.hear(peer, Load(system.clock, most, most, most, most, settled_tokens=2**63 - 1))
    nothing = spans((SpanKind.PLAN, 0, 1))
    system.hear(b"one", Spans(**{name: getattr(nothing, name)[:0] for name in COLUMNS}, lost=0, clock_error=0))
    system.hear(b"worker", spans((SpanKind.FORWARD, 0, 1), (SpanKind.SAMPLE, 2**62, 2**63 - 1)))
    shown = view(system)
    encode(shown)
    assert shown.blocks == most


def test_who_has_gone_is_not_kept_for_as_long_as_somebody_watches(system: System) -> None:
    for number in range(20):
        view(system)
        system.join(f"{number}", "worker", device="cpu")
        system.hear(b"%d" % number, spans((SpanKind.FORWARD, system.clock, system.clock + 1)))
        system.wait(1)
    assert len(system.collector._last_seconds._members) <= 8


def test_loads_of_the_future_are_forgotten_too(system: System) -> None:
    system.join("scheduler")
    view(system)
    for _ in range(MOST_LOADS + 1):
        system.hear(b"scheduler", load(2**63 - 1))
    (kept,) = system.collector._last_seconds._members.values()
    assert len(kept.loads) == MOST_LOADS
    for _ in range(10):
        system.wait(1.5)
        view(system)
    assert not kept.loads


def test_a_view_of_nothing_is_empty(system: System) -> None:
    shown = view(system)
    assert not shown.device.any()
    assert (shown.busy, shown.step_seconds, shown.tokens_per_second, shown.blocks) == (0.0, 0.0, 0.0, 0)


def test_what_is_kept_for_the_live_page_is_bounded(system: System) -> None:
    system.join("scheduler")
    for second in range(60):
        view(system)
        system.hear(b"scheduler", spans((SpanKind.PLAN, system.clock, system.clock)))
        system.hear(b"scheduler", load(system.clock))
        system.wait(1)
        kept = system.collector._last_seconds._members[1]
        assert len(kept.pieces) <= 8, second
        assert len(kept.loads) <= 8
    system.wait(WATCH_SECONDS)
    assert not system.collector._last_seconds._members
