"""The live page's figures while steps are long: a step in flight is work, and what nobody has told is no pause."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.messages import Joined, Load, SpanKind, Spans, View
from timeline.last_seconds import BIN_NANOSECONDS, LATE_NANOSECONDS, SECOND, LastSeconds
from timeline.member import Member

START = 100 * SECOND
LAUNCH, FORWARD, SAMPLE, REPLY, WAIT, IDLE, PLAN = (
    SpanKind.LAUNCH, SpanKind.FORWARD, SpanKind.SAMPLE, SpanKind.REPLY, SpanKind.WAIT, SpanKind.IDLE, SpanKind.PLAN,
)  # fmt: skip
MILLISECOND = SECOND // 1000

Told = tuple[SpanKind, float, float, int]
"""Kind, start and end in seconds after START, and the step."""


class Page:
    """What somebody sees who looks on while members tell."""

    def __init__(self) -> None:
        self.last_seconds = LastSeconds()
        self.members: dict[str, Member] = {}

    def member(self, name: str) -> Member:
        role = name.split()[0]
        made = Member(len(self.members) + 1, Joined(name, role, 1, "here"), same_clock=True)
        return self.members.setdefault(name, made)

    def tell(self, name: str, *told: Told, session: int = 7) -> None:
        kind, start, end, step = zip(*told, strict=True)
        began, ended = ((START + np.round(np.array(times) * SECOND)).astype("<u8") for times in (start, end))
        none = np.zeros(len(told), "<u4")
        spans = Spans(
            np.array(kind, "u1"), began, ended, np.array(step, "<u8"), none + np.uint32(session), none, none, none,
            none, 0, 0,
        )  # fmt: skip
        self.last_seconds.take(self.member(name), spans, int(ended.max()))

    def settled(self, at: float, tokens: int) -> None:
        time = START + round(at * SECOND)
        self.last_seconds.take(self.member("scheduler"), Load(time, 1, 0, 4, 16, tokens), time)

    def look(self, at: float) -> View:
        """Return what is shown that ends `at` so many seconds after START."""
        return self.last_seconds.view(START + round(at * SECOND) + LATE_NANOSECONDS)


def busy_seconds(view: View) -> float:
    return float(view.device[: view.known].sum()) / 255 * view.bin / SECOND


@pytest.fixture
def page() -> Page:
    return Page()


def test_a_step_in_flight_is_work_from_its_launch_to_the_last_word_of_its_worker(page: Page) -> None:
    page.tell("worker", (IDLE, 0, 1, 0), (LAUNCH, 1, 1.001, 1), (WAIT, 1.001, 2.5, 0))
    shown = page.look(2.5)
    assert busy_seconds(shown) == pytest.approx(1.5, abs=0.01)
    assert shown.busy == 1.0


def test_of_steps_one_behind_another_the_first_computes_from_the_end_of_the_last_known(page: Page) -> None:
    page.tell("worker", (IDLE, 0, 1, 0), (LAUNCH, 1, 1, 1), (LAUNCH, 1.1, 1.1, 2), (WAIT, 1.1, 2, 0))
    page.tell("worker", (FORWARD, 1.01, 1.9, 1), (SAMPLE, 1.9, 2, 1), (REPLY, 2, 2, 1), (LAUNCH, 2, 2.1, 3))
    page.tell("worker", (WAIT, 2.1, 2.75, 0))
    shown = page.look(2.75)
    assert busy_seconds(shown) == pytest.approx(1.74, abs=0.01)
    assert shown.busy == pytest.approx(1.0, abs=0.01)
    assert shown.step_seconds == pytest.approx(0.99)


def test_a_step_that_waits_behind_another_does_not_compute_before_it(page: Page) -> None:
    page.tell("worker", (LAUNCH, 0, 0, 1), (FORWARD, 0, 0.5, 1), (REPLY, 0.5, 0.5, 1), (IDLE, 0.5, 1, 0))
    page.tell("worker", (LAUNCH, 1, 1, 2), (LAUNCH, 1.1, 1.1, 3), (WAIT, 1.1, 2.5, 0))
    page.tell("worker", (FORWARD, 1.5, 2.5, 2), (REPLY, 2.5, 2.5, 2), (WAIT, 2.5, 3, 0))
    assert busy_seconds(page.look(3.0)) == pytest.approx(2.0, abs=0.01)


@pytest.mark.parametrize("end", [(FORWARD, 1.0, 1.5, 2), (REPLY, 1.5, 1.5, 2)], ids=["computed", "failed"])
def test_what_ends_ends_all_that_was_launched_before_it(page: Page, end: Told) -> None:
    page.tell("worker", (IDLE, 0, 1, 0), (LAUNCH, 1, 1, 1), (LAUNCH, 1, 1, 2))
    page.tell("worker", end, (IDLE, 1.5, 3, 0))
    shown = page.look(3.0)
    assert busy_seconds(shown) == pytest.approx(0.5 if end[0] == FORWARD else 0.0, abs=0.01)
    assert shown.busy == 0.0


def test_what_was_launched_in_a_session_that_is_over_is_in_flight_no_more(page: Page) -> None:
    page.tell("worker", (IDLE, 0, 1, 0), (LAUNCH, 1, 1, 9), session=7)
    page.tell("worker", (LAUNCH, 2, 2, 1), (FORWARD, 2, 2.5, 1), (IDLE, 2.5, 4, 0), session=8)
    assert page.look(4.0).busy == 0.0


def test_before_the_first_step_of_which_anything_is_told_the_worker_waits_for_one_that_computes(page: Page) -> None:
    page.tell("worker", (WAIT, 0, 1, 0))
    assert page.look(1.0).busy == 1.0
    page.tell("worker", (REPLY, 1, 1, 1), (LAUNCH, 1, 1.1, 3), (WAIT, 1.1, 2, 0), (FORWARD, 2, 3, 3), (WAIT, 2, 4, 0))
    assert busy_seconds(page.look(4.0)) == pytest.approx(2.9, abs=0.01)


def test_what_a_worker_has_not_told_is_not_known_and_counts_for_nothing(page: Page) -> None:
    page.tell("worker", (LAUNCH, 0, 0, 1), (WAIT, 0, 2, 0))
    shown = page.look(3.0)
    assert (len(shown.device) - shown.known) * BIN_NANOSECONDS == SECOND
    assert shown.busy == 1.0
    assert not shown.device[shown.known :].any()


def test_of_several_devices_that_one_decides_of_which_least_is_told(page: Page) -> None:
    page.tell("worker 0", (LAUNCH, 0, 0, 1), (WAIT, 0, 3, 0))
    page.tell("worker 1", (LAUNCH, 0, 0, 1), (WAIT, 0, 1.5, 0))
    shown = page.look(3.0)
    assert shown.devices == 2
    assert (len(shown.device) - shown.known) * BIN_NANOSECONDS == 1.5 * SECOND
    assert shown.busy == 1.0
    page.tell("worker 1", (IDLE, 1.5, 3.0, 0), (REPLY, 1.5, 1.5, 1))
    assert page.look(3.0).busy == 0.5


def test_a_worker_without_work_is_idle_and_that_is_known(page: Page) -> None:
    page.tell("worker", (IDLE, 0, 3, 0))
    shown = page.look(3.0)
    assert shown.known == len(shown.device)
    assert not shown.device.any()
    assert shown.busy == 0.0


def test_a_step_without_samples_is_a_step_of_its_own(page: Page) -> None:
    page.tell("worker", (FORWARD, 0, 0.3, 1), (SAMPLE, 0.3, 0.31, 1), (FORWARD, 0.4, 0.7, 2), (FORWARD, 0.7, 1, 3))
    page.tell("worker", (SAMPLE, 1, 1.01, 3), (IDLE, 1.01, 1.1, 0))
    assert page.look(1.1).step_seconds == pytest.approx(0.31, abs=0.001)


def test_a_step_longer_than_a_second_has_its_time_shown_until_the_next_one_ends(page: Page) -> None:
    page.tell("worker", (LAUNCH, 0, 0, 1), (FORWARD, 0, 2, 1), (REPLY, 2, 2, 1), (LAUNCH, 2, 2, 2), (WAIT, 2, 4, 0))
    assert page.look(4.0).step_seconds == pytest.approx(2.0)


@pytest.mark.parametrize("step", [0.1, 0.3, 0.7, 1.0, 1.5, 2.5])
def test_tokens_of_long_steps_are_counted_from_step_to_step(page: Page, step: float) -> None:
    shown = []
    for number in range(1, 9 + round(1 / step)):
        end = number * step
        page.tell("worker", (FORWARD, end - step, end, number), (REPLY, end, end, number))
        for at in np.arange(end - step + 0.25, end, 0.25):
            page.settled(float(at), 8 * (number - 1))
        page.settled(end, 8 * number)
        shown.append(page.look(end + 0.01).tokens_per_second)
    settled = shown[5 + round(1 / step) :]
    assert settled == pytest.approx([8 / step] * len(settled))


def test_tokens_of_workers_that_take_turns_are_counted_of_both(page: Page) -> None:
    for number in range(10):
        for worker, end in ((0, 0.6 * number + 0.6), (1, 0.6 * number + 0.7)):
            page.tell(f"worker {worker}", (FORWARD, end - 0.6, end, number + 1), (REPLY, end, end, number + 1))
            page.settled(end, 4 * (2 * number + 1 + worker))
            if number > 5:
                assert page.look(end).tokens_per_second == pytest.approx(8 / 0.6, rel=0.2)


def test_tokens_are_shown_soon_after_the_first_ones_came(page: Page) -> None:
    for tick in range(24):
        page.settled(0.25 * tick, 10 * max(0, tick - 16))
    assert page.look(5.75).tokens_per_second == pytest.approx(40)


def test_no_tokens_are_shown_soon_after_the_last_ones_came(page: Page) -> None:
    for tick in range(20):
        page.settled(0.25 * tick, 10 * min(tick, 8))
    assert page.look(4.75).tokens_per_second == 0.0
