"""Reports of timelines: figures that were worked out by hand, sums that must hold for every timeline, and the text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from protocol.messages import SpanKind
from tests.made_traces import (
    DELIVER,
    DETOKENIZE,
    FLUSH,
    FORWARD,
    IDLE,
    INTAKE,
    LAUNCH,
    PLAN,
    RECEIVE,
    REPLY,
    SAMPLE,
    SEND,
    SETTLE,
    STAGE,
    TOKENIZE,
    WAIT,
    Process,
    Span,
    lockstep_run,
    made_trace,
    overlapped_run,
    span,
    write_trace,
)
from timeline.__main__ import main
from timeline.caption import caption
from timeline.figures import DeviceFigures, GapFigures
from timeline.reckoning import report
from timeline.report import text
from timeline.trace import HOST, KV_BLOCKS, REQUESTS, Counter, read_trace

ROOT = Path(__file__).parent.parent

US = 1000
"""Nanoseconds; hand-made times are microseconds."""


def worker(*spans: Span, name: str = "worker 0") -> Process:
    return Process(name, "worker", "cpu", spans)


def scheduler(*spans: Span, name: str = "scheduler") -> Process:
    return Process(name, "scheduler", "", spans)


def device_of(*processes: Process) -> DeviceFigures:
    (device,) = report(made_trace(*processes)).devices
    return device


# ---------------------------------------------------------------- known answers


def test_in_turns_the_device_waits_for_python() -> None:
    """Three steps of 800 µs from 200 µs on, 200 µs between them; the last settle ends 50 µs after the last step."""
    found = report(made_trace(*lockstep_run(3)))
    assert found.run_ns == 3050 * US
    assert found.steady_ns == 2800 * US
    (device,) = found.devices
    assert (device.process, device.device) == ("worker 0", "cpu")
    assert device.run_ns == 3050 * US
    assert device.busy_ns == 2400 * US
    assert device.idle_of_run_ns == 650 * US
    assert device.busy_share_of_run == pytest.approx(2400 / 3050)
    assert (device.steady_ns, device.idle_ns, device.no_work_ns) == (2800 * US, 400 * US, 0)
    assert device.busy_share == pytest.approx(6 / 7)
    assert device.idle_share == pytest.approx(1 / 7)
    assert device.gain == pytest.approx(7 / 6)
    assert found.together == device


def test_what_is_done_ahead_is_hidden_and_leaves_no_gap() -> None:
    """Of the scheduler only the first plan and send, and the last settle, are beside no device step."""
    found = report(made_trace(*overlapped_run(3)))
    (device,) = found.devices
    assert (device.idle_ns, device.idle_share, device.gain) == (0, 0.0, 1.0)
    assert device.gaps == GapFigures(0, 0, None, None, None, (), ())
    ours, theirs = found.processes
    assert (ours.process, ours.role, ours.host_ns, ours.hidden_ns) == ("scheduler", "scheduler", 330 * US, 200 * US)
    assert ours.hidden_share == pytest.approx(200 / 330)
    assert (theirs.process, theirs.role, theirs.host_ns, theirs.hidden_ns) == ("worker 0", "worker", 210 * US, 140 * US)


def test_in_turns_nothing_is_hidden() -> None:
    assert [process.hidden_ns for process in report(made_trace(*lockstep_run(3))).processes] == [0, 0]


def test_waiting_is_no_host_time() -> None:
    (process,) = report(made_trace(scheduler(span(WAIT, 0, 10), span(PLAN, 10, 11, 1), span(IDLE, 11, 20)))).processes
    assert process.host_ns == 1 * US
    assert [one.span for one in process.spans] == ["plan"]


def test_the_spans_of_a_process_are_summed_up_by_kind() -> None:
    (process,) = report(made_trace(scheduler(span(PLAN, 0, 2, 1), span(SEND, 2, 3, 1), span(PLAN, 5, 9, 2)))).processes
    plan, send = process.spans
    assert (plan.span, plan.count, plan.total_ns, plan.p50_ns) == ("plan", 2, 6 * US, 3 * US)
    assert plan.p99_ns == pytest.approx(3.98 * US)
    assert (send.span, send.count, send.total_ns) == ("send", 1, 1 * US)


def test_what_the_device_waited_for_is_named() -> None:
    """The two gaps are alike: 200 µs with a reply of 20, settle 30, plan 50, send 20, nothing for 30, and so on.

    What is copied in before the launch has returned is further along than the launch.
    """
    gaps = device_of(*lockstep_run(3)).gaps
    assert (gaps.count, gaps.p50_ns, gaps.p99_ns, gaps.max_ns) == (2, 200 * US, 200 * US, 200 * US)
    assert {(cause.process, cause.span): cause.ns // US for cause in gaps.causes} == {
        ("scheduler", "plan"): 100,
        ("scheduler", "settle"): 60,
        ("worker 0", "stage"): 60,
        ("", "on the way"): 60,
        ("scheduler", "send"): 40,
        ("worker 0", "reply"): 40,
        ("worker 0", "launch"): 20,
        ("worker 0", "copy in"): 20,
    }
    assert gaps.causes[0].span == "plan"
    assert gaps.causes[0].share == pytest.approx(0.25)
    first = gaps.worst[0]
    assert (first.process, first.at_ns, first.ns, first.after_no_work) == ("worker 0", 1000 * US, 200 * US, False)
    assert (first.before, first.after) == ((1, 1), (1, 2))
    assert first.causes[0].ns == 50 * US
    assert first.causes[0].share == pytest.approx(0.25)


def test_once_the_next_step_is_launched_only_the_device_is_waited_for() -> None:
    """Step 2 is launched before step 1 ends, and copied in late; step 3 is launched in the gap before it."""
    gaps = device_of(
        scheduler(span(SETTLE, 10, 20, 1), span(PLAN, 20, 42, 3)),
        worker(
            span(FORWARD, 0, 10, 1), span(LAUNCH, 4, 6, 2), span(SpanKind.COPY_IN, 12, 15, 2), span(FORWARD, 20, 40, 2),
            span(LAUNCH, 43, 45, 3), span(FORWARD, 50, 60, 3),
        ),
    ).gaps  # fmt: skip
    first, second = sorted(gaps.worst, key=lambda gap: gap.at_ns)
    assert [(cause.process, cause.span, cause.ns // US) for cause in first.causes] == [
        ("", "launched, not started", 7), ("worker 0", "copy in", 3)
    ]  # fmt: skip
    assert [(cause.process, cause.span, cause.ns // US) for cause in second.causes] == [
        ("", "launched, not started", 5), ("worker 0", "launch", 2), ("scheduler", "plan", 2), ("", "on the way", 1)
    ]  # fmt: skip
    assert {cause.span: cause.ns // US for cause in gaps.causes} == {
        "launched, not started": 12, "copy in": 3, "plan": 2, "launch": 2, "on the way": 1,
    }  # fmt: skip


def test_of_what_is_done_at_once_the_furthest_along_is_waited_for_and_shares_add_up_to_all() -> None:
    """From 10 to 40 µs both processes are busy all the time; only what is nearest to the launch holds it up."""
    gaps = device_of(
        scheduler(span(PLAN, -1, 0, 1), span(DELIVER, 10, 16), span(SETTLE, 16, 20, 1), span(PLAN, 20, 26, 2),
                  span(SEND, 26, 28, 2), span(FLUSH, 28, 40)),
        worker(span(FORWARD, 0, 10, 1), span(SpanKind.COPY_OUT, 10, 11, 1), span(REPLY, 11, 13, 1), span(FLUSH, 13, 30),
               span(RECEIVE, 30, 33, 2), span(STAGE, 33, 36, 2), span(LAUNCH, 36, 40, 2), span(FORWARD, 40, 50, 2)),
    ).gaps  # fmt: skip
    assert {(cause.process, cause.span): cause.ns // US for cause in gaps.causes} == {
        ("worker 0", "copy out"): 1, ("worker 0", "reply"): 2, ("scheduler", "deliver"): 3, ("scheduler", "settle"): 4,
        ("scheduler", "plan"): 6, ("scheduler", "send"): 2, ("scheduler", "flush"): 2, ("worker 0", "receive"): 3,
        ("worker 0", "stage"): 3, ("worker 0", "launch"): 4,
    }  # fmt: skip
    assert sum(cause.share for cause in gaps.causes) == pytest.approx(1.0)
    assert gaps.causes == gaps.worst[0].causes


def test_what_one_scheduler_does_for_two_devices_is_waited_for_by_both() -> None:
    found = report(
        made_trace(
            scheduler(span(PLAN, 10, 14, 2, session=1), span(PLAN, 14, 20, 2, session=2)),
            worker(span(FORWARD, 0, 10, 1, session=1), span(FORWARD, 20, 30, 2, session=1), name="worker 0"),
            worker(span(FORWARD, 0, 12, 1, session=2), span(FORWARD, 20, 30, 2, session=2), name="worker 1"),
        )
    ).together
    assert found is not None
    assert [(cause.span, cause.ns, cause.share) for cause in found.gaps.causes] == [("plan", 18 * US, 1.0)]


def test_the_longest_gaps_come_first_and_are_five_at_most() -> None:
    lengths = [3, 9, 1, 7, 5, 8, 2]
    at, spans = 0, [span(FORWARD, 0, 1, 1)]
    for step, length in enumerate(lengths, 2):
        at += 1 + length
        spans.append(span(FORWARD, at, at + 1, step))
    gaps = device_of(worker(*spans)).gaps
    assert gaps.count == 7
    assert [gap.ns // US for gap in gaps.worst] == [9, 8, 7, 5, 3]
    assert [gap.after[1] for gap in gaps.worst] == [3, 7, 5, 6, 2]
    assert [gap.before[1] for gap in gaps.worst] == [2, 6, 4, 5, 1]
    assert (gaps.p50_ns, gaps.max_ns) == (5 * US, 9 * US)
    assert gaps.p99_ns == pytest.approx((8 + 0.94) * US)


def test_sampling_is_part_of_a_step_and_a_pause_before_it_is_a_gap() -> None:
    device = device_of(worker(span(FORWARD, 0, 5, 1, rows=1, decodes=1), span(SAMPLE, 7, 10, 1)))
    assert (device.busy_ns, device.idle_ns, device.steady_ns) == (8 * US, 2 * US, 10 * US)
    assert device.gaps.worst[0].before == device.gaps.worst[0].after == (1, 1)
    assert device.steps[0].total_ns == 10 * US


def two_steps(*of_scheduler: Span) -> DeviceFigures:
    """The device computes until 10 µs and from 50 to 60 µs."""
    return device_of(
        scheduler(span(PLAN, -1, 0, 1), span(SETTLE, 10, 12, 1), *of_scheduler),
        worker(span(FORWARD, 0, 10, 1), span(FORWARD, 50, 60, 2)),
    )


def test_a_pause_while_the_scheduler_has_work_is_a_gap() -> None:
    device = two_steps(span(WAIT, 12, 45))
    assert (device.steady_ns, device.idle_ns, device.no_work_ns) == (60 * US, 40 * US, 0)
    assert device.gaps.after_no_work == 0


def test_a_pause_is_no_gap_until_the_scheduler_has_work_again() -> None:
    device = two_steps(span(IDLE, 12, 30), span(INTAKE, 30, 31), span(IDLE, 31, 40), span(PLAN, 41, 45, 2))
    assert (device.steady_ns, device.idle_ns, device.no_work_ns) == (30 * US, 10 * US, 30 * US)
    assert device.idle_of_run_ns == 41 * US, "the plan before the first step is part of the run"
    (gap,) = device.gaps.worst
    assert (gap.at_ns, gap.ns, gap.after_no_work) == (40 * US, 10 * US, True)
    assert (gap.before, gap.after) == ((1, 1), (1, 2))
    assert {cause.span: cause.ns for cause in gap.causes} == {"plan": 4 * US, "on the way": 6 * US}
    assert device.gaps.after_no_work == 1


def test_idleness_that_lasts_until_the_device_starts_leaves_no_gap() -> None:
    device = two_steps(span(IDLE, 20, 55))
    assert (device.steady_ns, device.idle_ns, device.no_work_ns, device.gaps.count) == (20 * US, 0, 40 * US, 0)


@pytest.mark.parametrize("idle", [(0, 10), (60, 90), (2, 8)])
def test_idleness_outside_of_a_pause_changes_nothing(idle: tuple[float, float]) -> None:
    assert two_steps(span(IDLE, *idle)).idle_ns == 40 * US


def test_steps_are_told_apart_by_their_rows() -> None:
    device = device_of(
        worker(
            span(FORWARD, 0, 8, 1, rows=3, tokens=20),  # a prompt
            span(SAMPLE, 8, 9, 1, rows=3, tokens=20),
            span(FORWARD, 10, 14, 2, rows=4, tokens=9, decodes=3),
            span(FORWARD, 20, 22, 3, rows=4, tokens=4, decodes=4),
            span(SAMPLE, 22, 23, 3, rows=4, tokens=4, decodes=4),
            span(FORWARD, 30, 31, 4, rows=5, tokens=5, decodes=5),
            span(FORWARD, 40, 49, 4, session=2, rows=6, tokens=6, decodes=6),  # another step 4
            span(FORWARD, 50, 99),  # nobody's step
        )
    )
    assert [(steps.kind, steps.count, steps.rows, steps.tokens, steps.total_ns) for steps in device.steps] == [
        ("decode", 3, 15, 15, 13 * US),
        ("mixed", 1, 4, 9, 4 * US),
        ("prefill", 1, 3, 20, 9 * US),
    ]
    assert device.steps[0].p50_ns == 3 * US
    assert device.steps[0].p99_ns == pytest.approx((3 + 6 * 0.98) * US)


def test_settled_tokens_and_wasted_rows_are_counted() -> None:
    """Step 1 was planned before the recording began, step 4 is settled after its end, another session had a step 3."""
    found = report(
        made_trace(
            scheduler(
                span(PLAN, 1, 2, 2, rows=8),
                span(SETTLE, 10, 11, 1, tokens=8, wasted=1),
                span(PLAN, 12, 13, 3, rows=8),
                span(SETTLE, 20, 21, 2, tokens=8),
                span(PLAN, 21, 22, 4, rows=7),
                span(SETTLE, 25, 26, 3, tokens=6, wasted=2),
                span(PLAN, 26, 27, 3, session=2, rows=5),
            ),
            worker(span(FORWARD, 0, 10, 1), span(FORWARD, 15, 20, 2)),
        )
    ).settled
    assert found is not None
    assert (found.tokens, found.rows, found.wasted, found.wasted_share) == (22, 16, 2, 0.125)
    assert found.tokens_per_second == pytest.approx(22 / 20e-6)


def test_only_its_own_scheduler_excuses_a_device() -> None:
    """Both devices stand still from 10 to 50 µs, when one scheduler has nothing to do, and the other has."""
    found = report(
        made_trace(
            scheduler(span(SETTLE, 10, 12, 1, session=1), span(IDLE, 12, 50), name="scheduler 0"),
            scheduler(span(SETTLE, 10, 12, 1, session=2), span(PLAN, 20, 50, 2, session=2), name="scheduler 1"),
            worker(span(FORWARD, 0, 10, 1, session=1), span(FORWARD, 50, 60, 2, session=1), name="worker 0"),
            worker(
                span(FORWARD, 0, 9, 1, session=2),
                span(FORWARD, 9, 10),  # of no step: it is nobody's
                span(FORWARD, 50, 60, 2, session=2),
                name="worker 1",
            ),
        )
    )
    one, two = found.devices
    assert (one.idle_ns, one.no_work_ns) == (0, 40 * US)
    assert (two.idle_ns, two.no_work_ns) == (40 * US, 0)
    assert [(cause.process, cause.span, cause.ns // US) for cause in two.gaps.causes] == [
        ("scheduler 1", "plan", 30), ("", "on the way", 8), ("scheduler 1", "settle", 2)
    ]  # fmt: skip
    both = found.together
    assert both is not None
    assert (both.process, both.device, both.run_ns) == ("worker 0, worker 1", "cpu", 120 * US)
    assert (both.busy_ns, both.steady_ns, both.idle_ns, both.gaps.count) == (40 * US, 80 * US, 40 * US, 1)
    assert found.steady_ns == 60 * US


def test_work_is_hidden_by_the_devices_it_is_for() -> None:
    found = report(
        made_trace(
            scheduler(span(PLAN, 0, 10, 2, session=1)),
            worker(span(FORWARD, 0, 4, 1, session=1), span(STAGE, 0, 8, 2, session=1), name="worker 0"),
            worker(span(FORWARD, 0, 10, 1, session=2), span(STAGE, 2, 8, 2, session=2), name="worker 1"),
            Process("frontend", "frontend", "", [span(TOKENIZE, 5, 9), span(DETOKENIZE, 9, 12)]),
        )
    )
    assert {process.process: process.hidden_ns for process in found.processes} == {
        "scheduler": 4 * US, "worker 0": 4 * US, "worker 1": 6 * US, "frontend": 5 * US,
    }  # fmt: skip


# ---------------------------------------------------------------- what is not there

DEVICE_ONLY = worker(span(FORWARD, 0, 5, 1), span(FORWARD, 6, 9, 2))
SCHEDULER_ONLY = scheduler(span(PLAN, 0, 1, 1), span(SETTLE, 4, 5, 1, tokens=1))


NO_DEVICE = "There is no span of a device: nothing is known of active and idle time."


@pytest.mark.parametrize(
    ("processes", "problem"),
    [
        ([], "There are no spans."),
        ([SCHEDULER_ONLY], NO_DEVICE),
        ([worker(span(FORWARD, 3, 3, 1))], NO_DEVICE),
        ([DEVICE_ONLY], "There is no span of a scheduler: time without work counts as idle."),
        ([DEVICE_ONLY], "No step was settled: tokens and wasted rows are unknown."),
        (
            [DEVICE_ONLY, scheduler(span(PLAN, 0, 1, 1, session=5))],
            "No scheduler of worker 0's steps is there: for it, time without work counts as idle.",
        ),
        ([worker(span(FORWARD, 0, 5))], "No span of a device names its step."),
        ([Process("frontend", "frontend", "", [span(TOKENIZE, 3, 3)])], NO_DEVICE),
    ],
)  # fmt: skip
def test_what_is_missing_is_said(processes: list[Process], problem: str) -> None:
    found = report(made_trace(*processes))
    assert problem in found.problems
    assert f"NOTE: {problem}" in text(found)
    json.dumps(asdict(found), allow_nan=False)


def test_a_whole_run_lacks_nothing() -> None:
    assert report(made_trace(*lockstep_run(2))).problems == ()


def test_lost_spans_a_cut_file_and_the_error_of_clocks_are_said() -> None:
    found = report(made_trace(*lockstep_run(2), lost=1200, clock_error=12.5, complete=False))
    assert (found.lost, found.clock_error_ns, found.complete) == (1200, 12_500, False)
    assert "1,200 spans were lost" in text(found)
    assert "The file has no end" in text(found)
    assert "within 12.5 µs" in text(found)


# ---------------------------------------------------------------- every timeline

LONGEST = 120
"""Microseconds: long enough for gaps of all sorts, short enough to be judged one by one."""


def one_after_another(kinds: list[SpanKind], sessions: list[int]) -> st.SearchStrategy[list[Span]]:
    """Spans that do not overlap, some of no length, some touching, some of no step."""
    pause_and_length = st.tuples(st.integers(0, 8), st.integers(0, 5))
    rows = st.sampled_from([(1, 0, 0), (1, 1, 1), (3, 0, 2), (3, 2, 0), (3, 3, 1)])  # and of them, decodes and wasted
    one = st.tuples(pause_and_length, st.sampled_from(kinds), st.sampled_from([0, *sessions]), rows)
    return st.lists(one, max_size=9).map(_placed)


def _placed(drawn: list[tuple[tuple[int, int], SpanKind, int, tuple[int, int, int]]]) -> list[Span]:
    spans, at = [], 0
    for step, ((pause, length), kind, session, (rows, decodes, wasted)) in enumerate(drawn, 1):
        at += pause
        counts = {"rows": rows, "tokens": rows, "decodes": decodes, "wasted": wasted}
        spans.append(span(kind, at, at + length, step if session else 0, session=session, **counts))
        at += length
    return spans


HOST_KINDS = [kind for kind in SpanKind if kind < SpanKind.COPY_IN]
WORKER = st.builds(
    lambda host, copies, compute: worker(*host, *copies, *compute),
    one_after_another(HOST_KINDS, [1, 2]),
    one_after_another([SpanKind.COPY_IN], [1, 2]),
    one_after_another([FORWARD, SAMPLE], [1, 2]),
)
SCHEDULER = st.builds(lambda host: scheduler(*host), one_after_another([PLAN, SETTLE, DELIVER, WAIT, IDLE], [1, 2, 3]))
PROCESSES = st.tuples(st.lists(WORKER, max_size=2), st.lists(SCHEDULER, max_size=2))


def moments(*spans: Span) -> NDArray[np.bool_]:
    """Return for each microsecond whether it is in one of the spans."""
    found = np.zeros(LONGEST, bool)
    for one in spans:
        found[int(one.start) : int(one.end)] = True
    return found


def launched_by(process: Process, gaps: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return for each microsecond of a worker's gaps whether the launch of the step behind that gap is over."""
    launches = {(one.session, one.step): one.end for one in process.spans if one.kind == LAUNCH and one.step}
    launched = np.zeros(LONGEST, bool)
    for at in np.flatnonzero(gaps):
        after = next(one for one in process.spans if one.kind in (FORWARD, SAMPLE) and one.start > at)
        launched[at] = launches.get((after.session, after.step), LONGEST) <= at
    return launched


FURTHEST_FIRST = [
    ("worker", SpanKind.COPY_IN), ("worker", LAUNCH), ("worker", STAGE), ("worker", RECEIVE), ("scheduler", SEND),
    ("scheduler", PLAN), ("scheduler", SETTLE), ("scheduler", RECEIVE), ("worker", REPLY),
    ("worker", SpanKind.COPY_OUT),
]  # fmt: skip


def waited_for(at: int, process: Process, schedulers: list[Process], launched: bool) -> tuple[str, str]:
    """Return what a microsecond of a worker's gap is put down to."""
    done = [
        (each, one.kind)
        for each in (*schedulers, process)
        for one in sorted(each.spans, key=lambda one: one.kind)
        if one.start <= at < one.end and one.kind not in (WAIT, IDLE, FORWARD, SAMPLE)
        if not launched or one.kind == SpanKind.COPY_IN
    ]
    rank = {each: place for place, each in enumerate(FURTHEST_FIRST)}
    done.sort(key=lambda each: rank.get((each[0].role, each[1]), len(rank)))
    if done:
        return done[0][0].name, done[0][1].name.lower().replace("_", " ")
    return "", "launched, not started" if launched else "on the way"


@settings(max_examples=50)
@given(PROCESSES)
def test_figures_are_what_counting_microseconds_gives(processes: tuple[list[Process], list[Process]]) -> None:
    workers, schedulers = processes
    found = report(made_trace(*workers, *schedulers))
    json.dumps(asdict(found), allow_nan=False)
    text(found)
    computing = [one for one in workers if moments(*(s for s in one.spans if s.kind in (FORWARD, SAMPLE))).any()]
    assert len(found.devices) == len(computing)
    for device, process in zip(found.devices, computing, strict=True):
        compute = [one for one in process.spans if one.kind in (FORWARD, SAMPLE)]
        sessions = {one.session for one in compute} - {0}
        own = [each for each in schedulers if sessions & {one.session for one in each.spans}]
        busy = moments(*compute)
        gaps = np.zeros(LONGEST, bool)
        idle = moments(*(one for each in own for one in each.spans if one.kind == IDLE))
        first, last = np.flatnonzero(busy)[[0, -1]]
        work_came = False  # going back in time, from the start of a step
        for at in range(last, first - 1, -1):
            work_came = not busy[at] and (not idle[at] if busy[at + 1] else work_came and not idle[at])
            gaps[at] = work_came
        assert device.busy_ns == busy.sum() * US
        assert device.idle_ns == gaps.sum() * US
        assert device.steady_ns == device.busy_ns + device.idle_ns
        assert device.no_work_ns == (last + 1 - first) * US - device.steady_ns
        assert device.idle_of_run_ns == found.run_ns - device.busy_ns >= device.idle_ns
        assert device.gaps.count == (np.diff(gaps.astype(int)) == 1).sum()
        launched = launched_by(process, gaps)
        expected: dict[tuple[str, str], int] = {}
        for at in np.flatnonzero(gaps).tolist():
            cause = waited_for(at, process, own, bool(launched[at]))
            expected[cause] = expected.get(cause, 0) + US
        assert {(cause.process, cause.span): cause.ns for cause in device.gaps.causes} == expected
    hosts = [each for each in (*schedulers, *workers) if any(one.tid == HOST for one in each.spans)]  # by their names
    for figures, process in zip(found.processes, hosts, strict=True):
        cpu = moments(*(one for one in process.spans if one.tid == HOST and one.kind not in (WAIT, IDLE)))
        assert figures.host_ns == cpu.sum() * US
        if process in computing:
            busy = moments(*(one for one in process.spans if one.kind in (FORWARD, SAMPLE)))
            assert figures.hidden_ns == (cpu & busy).sum() * US


@settings(max_examples=50)
@given(PROCESSES)
def test_sums_hold(processes: tuple[list[Process], list[Process]]) -> None:
    workers, schedulers = processes
    found = report(made_trace(*workers, *schedulers))
    for device in found.devices:
        assert device.busy_share + device.idle_share == pytest.approx(1.0)
        assert device.gain >= 1.0
        assert device.run_ns == found.run_ns == device.busy_ns + device.idle_of_run_ns
        assert device.steady_ns <= found.steady_ns <= found.run_ns
        lengths = [gap.ns for gap in device.gaps.worst]
        assert lengths == sorted(lengths, reverse=True)
        assert sum(lengths) == device.idle_ns if device.gaps.count <= 5 else sum(lengths) < device.idle_ns
        assert sum(cause.ns for cause in device.gaps.causes) == device.idle_ns
        for gap in device.gaps.worst:
            assert all(0 < cause.ns <= gap.ns for cause in gap.causes)
            assert sum(cause.ns for cause in gap.causes) == gap.ns
            assert {cause.process for cause in gap.causes} <= {"", device.process, "scheduler"}
    if found.together is not None:
        assert found.together.idle_ns == sum(device.idle_ns for device in found.devices)
        assert found.together.gaps.count == sum(device.gaps.count for device in found.devices)
        steps = sum(steps.count for steps in found.together.steps)
        assert steps == sum(steps.count for device in found.devices for steps in device.steps)
    for process in found.processes:
        assert process.host_ns == sum(spans.total_ns for spans in process.spans)
        assert 0 <= (process.hidden_ns or 0) <= process.host_ns
    if found.settled is not None:
        everything = [one for each in (*workers, *schedulers) for one in each.spans if one.kind == SETTLE]
        assert found.settled.tokens == sum(one.tokens for one in everything)
        assert found.settled.wasted <= sum(one.wasted for one in everything)


# ---------------------------------------------------------------- text and command line


def test_the_report_is_a_table() -> None:
    lines = text(report(made_trace(*lockstep_run(3), name="run.json"))).splitlines()
    assert lines[0] == "run.json: 3.05 ms, recorded 2026-11-30T02:00:00Z"
    assert "| active, steady state          | 2.40 ms, 85.7 % |" in lines
    assert "| idle, steady state            |  400 µs, 14.3 % |" in lines
    assert "| gain if it were never idle    |           1.17× |" in lines
    assert "| decode step, p50 / p99        | 800 µs / 800 µs |" in lines
    assert "12 tokens settled, 4,286 a second of steady state; 0 of 12 rows wasted (0 %)." in lines
    assert any(line.startswith("| scheduler plan ") and "25.0 %" in line for line in lines)
    assert any(line.startswith("| 1.00 ms ") and " 1 → 2 " in line for line in lines)


def test_the_rows_of_what_was_waited_for_add_up_even_if_not_all_are_shown() -> None:
    """Two workers with eight causes each; the shortest of the 16 are one row."""
    workers = [
        worker(span(FORWARD, 0, 10, 1, session=number), span(SpanKind.COPY_OUT, 10, 12, 1, session=number),
               span(REPLY, 12, 14, 1), span(DELIVER, 14, 16), span(INTAKE, 16, 18), span(FLUSH, 18, 21),
               span(RECEIVE, 21, 23, 2), span(STAGE, 23, 25, 2), span(LAUNCH, 25, 26, 2, session=number),
               span(FORWARD, 26, 30, 2, session=number), name=f"worker {number}")
        for number in (1, 2)
    ]  # fmt: skip
    lines = text(report(made_trace(*workers))).splitlines()
    rows = [
        line for line in lines[lines.index("") :] if (line.endswith("% |") and "worker" in line) or "all else" in line
    ]
    shares = [float(line.split("|")[3].removesuffix(" % ")) for line in rows if line.count("|") == 4]
    assert "| all else " in "\n".join(rows)
    assert len(shares) == 13
    assert sum(shares) == pytest.approx(100, abs=1)


def test_processes_are_in_the_order_in_which_people_count() -> None:
    names = ["worker 10", "worker 2", "worker 0", "scheduler"]
    spans = [span(FORWARD, 0, 5, 1), span(STAGE, 0, 1, 1)]
    found = report(made_trace(*(worker(*spans, name=name) for name in names)))
    assert [device.process for device in found.devices] == ["scheduler", "worker 0", "worker 2", "worker 10"]
    assert [process.process for process in found.processes] == ["scheduler", "worker 0", "worker 2", "worker 10"]


def test_two_devices_time_is_said_to_be_such_and_speed_is_by_the_clock() -> None:
    """Two steps of 10 µs at the same time, 8 tokens each."""
    workers = [worker(span(FORWARD, 0, 10, 1, session=n), span(FORWARD, 10, 20, 2, session=n), name=f"worker {n}")
               for n in (1, 2)]  # fmt: skip
    settle = [span(SETTLE, 20, 21, 2, session=n, tokens=8) for n in (1, 2)]
    shown = text(report(made_trace(*workers, scheduler(*settle[:1]), scheduler(*settle[1:], name="scheduler 2"))))
    assert "16 tokens settled, 800,000 a second of the 20.0 µs in which any device was in its steady state" in shown
    assert row_of(shown, "steady state") == ["20.0 µs", "20.0 µs", "40.0 µs"]
    assert caption(made_trace(*workers)).figures.endswith("4 steps in 20.0 µs")


def row_of(shown: str, name: str) -> list[str]:
    """Return the cells behind a name."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in shown.splitlines() if line.startswith("|")]
    return next(row[1:] for row in rows if row[0] == name)


def test_active_time_is_divided_and_copies_are_beside_it() -> None:
    device = device_of(
        worker(
            span(FORWARD, 0, 6, 1), span(SAMPLE, 6, 8, 1), span(SpanKind.COPY_IN, 7, 9, 2), span(FORWARD, 10, 11, 2),
            span(SAMPLE, 11, 12, 2), span(SpanKind.COPY_OUT, 12, 13, 2),
        )
    )  # fmt: skip
    assert [(part.span, part.count, part.total_ns // US, part.share) for part in device.parts] == [
        ("forward", 2, 7, 0.7), ("sample", 2, 3, 0.3), ("copy in", 1, 2, 0.2), ("copy out", 1, 1, 0.1)
    ]  # fmt: skip
    shown = text(report(made_trace(*lockstep_run(3))))
    assert row_of(shown, "forward, of active time") == ["2.25 ms, 93.8 %"]
    assert row_of(shown, "copy in, beside active time") == ["30.0 µs, 1.2 %"]


def test_how_large_steps_were_is_said() -> None:
    spans = [
        span(FORWARD, at, at + 1, at + 1, rows=rows, tokens=rows, decodes=rows) for at, rows in enumerate((2, 9, 4))
    ]
    prompts = [span(FORWARD, 5, 6, 9, rows=3, tokens=1500), span(FORWARD, 6, 7, 10, rows=1, tokens=20)]
    shown = text(report(made_trace(worker(*spans, *prompts))))
    assert row_of(shown, "decode rows a step, p50 / p99") == ["4 / 9"]
    assert row_of(shown, "prefill rows a step, p50 / p99") == ["1 / 3"]
    assert row_of(shown, "prefill tokens a step, p50 / p99") == ["20 / 1,500"]
    assert "decode tokens a step" not in shown


def counter(name: str, *told: tuple[float, int, int], process: str = "scheduler") -> Counter:
    first, second = {REQUESTS: ("running", "waiting"), KV_BLOCKS: ("used", "free")}[name]
    at, one, other = np.array(told, np.int64).reshape(-1, 3).T
    return Counter(process, name, at * US, {first: one, second: other})


def test_load_is_a_mean_over_time_and_the_most() -> None:
    """4 requests for 1 µs, 8 for 3 µs; the last ones have no time left."""
    requests = counter(REQUESTS, (0, 4, 0), (1, 8, 2), (4, 20, 1))
    blocks = counter(KV_BLOCKS, (0, 10, 90), (2, 30, 70))
    trace = replace(made_trace(*lockstep_run(2)), counters=(requests, blocks))
    (load,) = report(trace).load
    assert (load.process, load.running_mean, load.running_max, load.waiting_mean, load.waiting_max) == (
        "scheduler", 7.0, 20, 1.5, 2
    )  # fmt: skip
    assert load.blocks_share_mean == pytest.approx(0.1)
    assert load.blocks_share_max == pytest.approx(0.3)
    said = "scheduler, mean (most): 7.0 (20) requests running, 1.5 (2) waiting, 10.0 % (30.0 %) of KV blocks in use."
    assert said in text(report(trace)).splitlines()


def test_load_that_was_told_once_or_without_blocks_is_what_it_is() -> None:
    (load,) = report(replace(made_trace(*lockstep_run(2)), counters=(counter(REQUESTS, (5, 3, 1)),))).load
    assert (load.running_mean, load.waiting_mean, load.blocks_share_mean) == (3.0, 1.0, None)


def test_with_several_devices_there_is_a_column_for_each_and_one_for_all() -> None:
    _, one = lockstep_run(2)
    shown = text(report(made_trace(one, replace(one, name="worker 1", device="cuda:1"))))
    head = next(line for line in shown.splitlines() if line.startswith("|"))
    assert [cell.strip() for cell in head.split("|")[1:-1]] == [
        "",
        "worker 0 (cpu)",
        "worker 1 (cuda:1)",
        "together, device time",
    ]
    assert "1.00 ms, worker 1" in shown


def test_the_command_prints_text_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_trace(tmp_path / "run.json.gz", *lockstep_run(3))
    assert main(["report", str(path)]) == 0
    assert capsys.readouterr().out.startswith("run.json.gz: 3.05 ms")
    assert main(["report", "--json", str(path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["devices"][0]["idle_ns"] == 400 * US
    assert printed == json.loads(json.dumps(asdict(report(read_trace(path)))))


def test_a_warm_up_can_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps of 800 µs begin at 200 µs, and then each ms; of the second, only the end of its copy is later than 2 ms."""
    path = write_trace(tmp_path / "run.json", *lockstep_run(5))
    assert main(["report", str(path), "--from", "0.0012", "--to", "0.004", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["from_ns"], printed["to_ns"]) == (1200 * US, 4000 * US)
    (device,) = printed["devices"]
    assert (device["steady_ns"], device["busy_ns"], device["gaps"]["count"]) == (2800 * US, 2400 * US, 2)
    assert sum(steps["count"] for steps in device["steps"]) == 3
    assert main(["report", str(path), "--from", "0.0013"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("run.json from 1.30 ms: ")
    assert row_of(shown, "decode steps") == ["3"], "the second step began before"
    assert row_of(shown, "decode step, p50 / p99") == ["800 µs / 800 µs"], "and so its sample counts as little"


def test_a_part_has_the_load_of_its_time() -> None:
    trace = replace(made_trace(*lockstep_run(3)), counters=(counter(REQUESTS, (0, 1, 0), (1000, 5, 2), (2000, 7, 0)),))
    (load,) = report(trace, 0.0005, 0.002).load
    assert (load.running_mean, load.running_max) == (5.0, 7)
    assert report(trace, 0.00205).load == ()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--from", "2", "--to", "1"], "timeline: --to 1 is not after --from 2\n"),
        (["--from", "7"], "timeline: run.json: nothing lies there: the run is from 0.000 s to 0.003 s\n"),
    ],
)
def test_a_part_that_is_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], reason: str
) -> None:
    assert main(["report", str(write_trace(tmp_path / "run.json", *lockstep_run(3))), *options]) == 2
    assert capsys.readouterr().err == reason


@pytest.mark.processes
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("command", ["report", "compare"])
def test_a_terminal_that_lacks_letters_gets_others(tmp_path: Path, encoding: str, command: str) -> None:
    path = str(write_trace(tmp_path / "größe ✓.json", *lockstep_run(3)))
    arguments = [sys.executable, "-m", "timeline", command, *[path] * (2 if command == "compare" else 1)]
    for options in ([], ["--json"]):
        done = subprocess.run(
            [*arguments, *options],
            cwd=ROOT,
            capture_output=True,
            timeout=20,
            env=os.environ | {"PYTHONIOENCODING": encoding},
        )
        assert (done.returncode, done.stderr) == (0, b"")
        said = done.stdout.decode(encoding)
        assert json.loads(said) if options else "200 ?s" in said or "200 µs" in said


def test_a_mistake_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "nothing.json")]) == 2
    captured = capsys.readouterr()
    assert captured.err == f"timeline: {tmp_path}/nothing.json: No such file or directory\n"
    assert captured.out == ""


@pytest.mark.processes
def test_who_reads_may_stop_early(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "run.json", *lockstep_run(3))
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "timeline", "report", str(path)]
    try:
        done = subprocess.run(command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=20)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")
