"""The collector: who records when, what a file gets, and clear answers to whoever starts and stops."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

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
from tests.collector_system import CLIENT, ELSEWHERE, HERE, SECOND, System, load, spans
from timeline import last_seconds
from timeline.collector import CLOSING_SECONDS, MOST_MEMBERS, SHOW_SECONDS, TELL_SECONDS, WATCH_SECONDS
from timeline.last_seconds import MOST_LOADS
from timeline.member import ASK_NANOSECONDS, BEST_ANSWERS_COUNT_FOR, STRANGER, Member
from timeline.trace import read_trace

COLUMNS = ("kind", "start", "end", "step", "session", "rows", "tokens", "decodes", "wasted")
ON, SHOWN, OFF = Record(True, TELL_SECONDS), Record(True, SHOW_SECONDS), Record(False, TELL_SECONDS)


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


def test_a_ping_is_answered_with_the_collectors_life_once_the_collector_knows_who_asks(system: System) -> None:
    assert system.hear(b"x", Ping()) == [Pong(STRANGER, 0)]
    system.join("x")
    (first,) = system.hear(b"x", Ping())
    assert isinstance(first, Pong)
    assert first.session != STRANGER
    assert system.hear(b"x", Ping()) == [first]


def test_who_was_forgotten_hears_it_from_its_next_ping(system: System) -> None:
    system.join("x")
    system.silence()
    assert system.hear(b"x", Ping()) == [Pong(STRANGER, 0)]


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
    assert system.stop().spans == 4, "what ended before the start is not in the file"
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


def test_a_load_of_before_the_start_and_an_arrow_of_no_step_are_left_out(system: System) -> None:
    system.join("scheduler")
    system.ask(StartTimeline(1, "a.json"))
    system.hear(b"scheduler", load(system.clock - 1))
    system.hear(b"scheduler", spans((SpanKind.PLAN, system.clock, system.clock), step=0))
    system.stop()
    assert [event["ph"] for event in system.events() if event["ph"] != "M"] == ["X"]


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


def test_stopping_waits_a_second_at_most_for_one_that_hangs_or_is_gone(system: System) -> None:
    system.join("hangs")
    system.ask(StartTimeline(1, "a.json"))
    system.hear(CLIENT, StopTimeline(2))
    assert CLIENT not in system.wait(CLOSING_SECONDS * 0.9)
    assert CLIENT in system.wait(CLOSING_SECONDS * 0.2)


def test_who_stops_a_recording_that_ends_by_itself_meanwhile_is_answered(tmp_path: Path) -> None:
    system = System(tmp_path, most_bytes=2000)
    system.join("one")
    system.ask(StartTimeline(1, "a.json"))
    system.hear(CLIENT, StopTimeline(2))
    for _ in range(100):
        system.hear(b"one", spans((SpanKind.PLAN, system.clock, system.clock)))
    (state,) = system.wait(CLOSING_SECONDS)[CLIENT]
    assert isinstance(state, TimelineState)
    assert "has reached" in state.problem
    assert state.bytes < 2500


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


@pytest.mark.parametrize(
    ("name", "why"),
    [
        *((name, "plain name") for name in ("../a.json", "a/b.json", "/a.json", ".json", "a\n.json", "\0.json")),
        *((name, "must end with .json or .json.gz") for name in ("a.txt", "a")),
    ],
)
def test_a_file_is_named_plainly_or_refused(system: System, name: str, why: str) -> None:
    state = system.ask(StartTimeline(1, name))
    assert why in state.refusal
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
    system.silence()
    system.hear(CLIENT, StartTimeline(1, "a.json"))
    assert b"one" not in system.said


def test_while_the_collector_itself_was_stopped_nobody_was_silent(system: System) -> None:
    system.join("one")
    system.wait(3600)
    system.hear(CLIENT, StartTimeline(1, "a.json"))
    assert system.said[b"one"] == [ON]


def test_who_sends_anything_is_not_silent(system: System) -> None:
    system.join("one")
    for _ in range(100):
        system.wait(0.25)
        system.hear(b"one", Ping())
    system.hear(CLIENT, StartTimeline(1, "a.json"))
    assert system.said[b"one"] == [ON]


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


def test_a_foreign_clock_is_not_asked_for_again_because_it_has_answered(system: System) -> None:
    system.join("far", host=ELSEWHERE)
    system.ask(StartTimeline(1, "a.json"))
    asked = 0
    for _ in range(100):
        told = system.wait(0.02)
        asked += len(told.get(b"far", []))
        system.hear(b"far", ClockTold(system.clock, 1))
    assert asked == 2


def test_what_a_process_tells_before_its_clock_is_known_is_not_written(system: System) -> None:
    system.join("far", host=ELSEWHERE)
    system.ask(StartTimeline(1, "a.json"))
    system.hear(b"far", spans((SpanKind.PLAN, 10**15, 10**15 + 5)))
    assert system.stop().spans == 0
    assert not [e for e in system.events() if e["ph"] == "X"]


def test_a_clock_is_measured_anew_after_some_answers_and_after_a_pause() -> None:
    member = Member(1, Joined("far", "worker", 1, ELSEWHERE), same_clock=False)

    def answer(clock: int, took: int) -> int:
        assert member.ask_clock(clock) == ClockAsk(clock)
        member.clock_told(clock, 5, clock + took)
        return member.offset_error

    clock = 10**13
    assert answer(clock, 100) == 50
    for _ in range(BEST_ANSWERS_COUNT_FOR - 1):
        clock += ASK_NANOSECONDS
        assert answer(clock, 400) == 50
    clock += ASK_NANOSECONDS
    assert answer(clock, 400) == 200
    assert answer(clock + (BEST_ANSWERS_COUNT_FOR + 1) * ASK_NANOSECONDS, 600) == 300


def test_an_answer_before_its_question_and_one_of_this_host_change_nothing() -> None:
    for same_clock in (False, True):
        member = Member(1, Joined("far", "worker", 1, ELSEWHERE), same_clock)
        member.clock_told(100, 5, 100 + 20 * same_clock - 10)
        assert (member.offset, member.offset_error) == (0, 0)


@given(
    st.integers(-(10**12), 10**12),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=20),
)
def test_an_offset_is_never_off_by_more_than_its_error(offset: int, delays: list[tuple[int, int]]) -> None:
    member = Member(1, Joined("far", "worker", 1, ELSEWHERE), same_clock=False)
    clock = 10**13
    for there, back in delays:
        clock += SECOND
        member.clock_told(clock, clock + there - offset, clock + there + back)
        assert abs(member.offset - offset) <= member.offset_error <= (there + back + 1) // 2


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
        system.hear(b"worker", spans((SpanKind.FORWARD, at, at + 90 * millisecond), step=number + 1))
        sampled = at + 90 * millisecond, at + 100 * millisecond
        system.hear(b"worker", spans((SpanKind.SAMPLE, *sampled), step=number + 1))
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


def test_a_message_without_spans_changes_nothing(system: System) -> None:
    system.join("one")
    view(system)
    nothing = spans((SpanKind.PLAN, 0, 0))
    names = [each.name for each in fields(nothing) if each.name not in ("lost", "clock_error")]
    columns = {name: getattr(nothing, name)[:0] for name in names}
    system.hear(b"one", replace(nothing, **columns))
    assert not view(system).scheduler.any()


def test_shares_of_two_devices_are_averaged_and_clocks_of_other_hosts_are_ours_in_a_view(system: System) -> None:
    system.join("near", "worker", device="cpu")
    system.join("far", "worker", host=ELSEWHERE, device="cpu")
    system.join("scheduler", host=ELSEWHERE)
    view(system)
    system.wait(0)
    for peer in (b"far", b"scheduler"):
        system.hear(peer, ClockTold(system.clock, clock=system.clock - 50 * SECOND))
    start = system.clock
    system.hear(b"near", spans((SpanKind.FORWARD, start, start + SECOND)))
    system.hear(b"near", spans((SpanKind.COPY_IN, start, start + SECOND)))
    system.hear(b"far", spans((SpanKind.FORWARD, start - 50 * SECOND, start - 50 * SECOND + SECOND // 2)))
    system.hear(b"scheduler", load(start - 50 * SECOND))
    system.clock += 2 * SECOND
    shown = view(system)
    seconds = shown.bin / SECOND / 255
    assert shown.device.sum() * seconds == pytest.approx((1.0 + 0.5) / 2, abs=0.01)
    assert not shown.worker.any(), "copies are the device's"
    assert shown.running == 3


def test_a_view_tells_the_length_of_the_last_seconds_steps_alone(system: System) -> None:
    system.join("worker", "worker", device="cpu")
    view(system)
    start, millisecond = system.clock, SECOND // 1000
    for number in range(30):
        at = start + 100 * number * millisecond
        length = (80 if number < 20 else 10) * millisecond
        system.hear(b"worker", spans((SpanKind.FORWARD, at, at + length // 2), step=number + 1))
        system.hear(b"worker", spans((SpanKind.SAMPLE, at + length // 2, at + length), step=number + 1))
    system.clock += 3 * SECOND + SECOND // 2
    assert view(system).step_seconds == pytest.approx(0.01)


def test_a_scheduler_that_says_nothing_any_more_has_no_load(system: System) -> None:
    system.join("scheduler")
    view(system)
    system.hear(b"scheduler", load(system.clock))
    for second in range(9):
        system.wait(1)
        assert view(system).running == (3 if second < 6 else 0)


def test_a_flood_of_spans_is_not_kept_for_the_live_page(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_seconds, "MOST_SPANS", 10)
    system.join("scheduler")
    view(system)
    for _ in range(50):
        system.hear(b"scheduler", spans((SpanKind.PLAN, system.clock, system.clock)))
    assert len(system.collector._last_seconds._members[1].pieces) == 10


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


def test_a_name_that_no_file_system_takes_is_refused(system: System) -> None:
    refusal = system.ask(StartTimeline(1, "\N{FIRE}" * 100 + ".json")).refusal
    assert refusal == "file: the name has 405 bytes, at most 200 are allowed"


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


def test_how_a_process_was_set_up_is_made_plain_too(system: System) -> None:
    system.hear(b"worker", Joined("worker", "worker", 1, HERE, about="\x1b[2J" + "m" * 10_000))
    (process,) = system.collector._members.values()
    assert process.joined.about.isprintable()
    assert len(process.joined.about) <= 100


def test_a_system_has_a_bounded_number_of_processes_and_all_have_a_role(system: System) -> None:
    system.join("cook", "cook")
    assert not system.collector._members
    for number in range(MOST_MEMBERS + 1):
        system.hear(b"%d" % number, Joined("worker", "worker", 1, HERE))
    assert len(system.collector._members) == MOST_MEMBERS


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
