"""The ring of spans: what goes in comes out, in order, and what there is no room for is counted."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec import decode, encode
from protocol.messages import RowFlag, SpanKind, Spans
from tests.test_codec import plan
from timeline.recorder import MOST_AT_ONCE, NOTHING, About, Recorder, nanoseconds


def recorder(capacity: int = 64) -> Recorder:
    made = Recorder(capacity)
    made.on = True
    return made


def taken(ring: Recorder) -> tuple[list[int], int]:
    """Return the starts of all spans that can be taken, and how many were lost."""
    starts: list[int] = []
    lost = 0
    while (spans := ring.take()) is not None:
        starts += spans.start.tolist()
        lost += spans.lost
    return starts, lost


def test_off_it_records_nothing_and_asks_no_clock() -> None:
    ring = Recorder()
    assert ring.add(SpanKind.PLAN, 5) == 5
    assert ring.about(plan(3)) is NOTHING
    assert ring.take() is None


def test_a_span_comes_out_as_it_went_in() -> None:
    ring = recorder()
    about = About(step=2**40, rows=1, tokens=2, decodes=3, wasted=4)
    assert ring.add(SpanKind.SETTLE, 10, 2**63, about) == 2**63
    spans = ring.take(clock_error=7)
    assert spans is not None
    same = decode(encode(spans), Spans)
    assert isinstance(same, Spans)
    assert (same.kind[0], same.start[0], same.end[0], same.step[0]) == (SpanKind.SETTLE, 10, 2**63, 2**40)
    assert (same.rows[0], same.tokens[0], same.decodes[0], same.wasted[0]) == (1, 2, 3, 4)
    assert (same.lost, same.clock_error) == (0, 7)


def test_a_span_ends_now_unless_it_is_told_otherwise() -> None:
    before = nanoseconds()
    end = recorder().add(SpanKind.PLAN, before)
    assert before <= end <= nanoseconds()


def test_of_a_plan_its_rows_tokens_and_decodes_are_told() -> None:
    step = plan(3)
    about = recorder().about(step)
    assert about == About(step.step, step.session % 2**32, rows=3, tokens=3, decodes=3)
    flags = np.array([RowFlag.CARRY | RowFlag.SAMPLE, RowFlag.SAMPLE, 0], np.uint8)
    assert recorder().about(replace(step, flags=flags)).decodes == 1


def test_a_message_has_a_bounded_number_of_spans() -> None:
    ring = recorder(MOST_AT_ONCE + 10)
    for start in range(MOST_AT_ONCE + 1):
        ring.add(SpanKind.PLAN, start, start)
    first, second = ring.take(), ring.take()
    assert first is not None
    assert second is not None
    assert (len(first.kind), len(second.kind)) == (MOST_AT_ONCE, 1)


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(1, 20))
def test_the_newest_spans_are_kept_and_the_others_counted(bursts: list[int], capacity: int) -> None:
    ring = recorder(capacity)
    number = 0
    for burst in bursts:
        kept: deque[int] = deque(maxlen=capacity)
        for _ in range(burst):
            ring.add(SpanKind.PLAN, number, number)
            kept.append(number)
            number += 1
        assert taken(ring) == (list(kept), max(0, burst - capacity))
