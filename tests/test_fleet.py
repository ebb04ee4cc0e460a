"""Several workers seen as one: where requests go, and that none is lost, doubled or left waiting."""

from __future__ import annotations

from math import inf

import pytest

from protocol.messages import Finish
from scheduler_proc.capacity import CapacityError
from scheduler_proc.core import FORGIVEN_AFTER
from scheduler_proc.fleet import PATIENCE_SECONDS
from tests.core_loop import CLIENT, solo, submit
from tests.fleet_loop import FleetLoop
from tests.stub_model import VOCAB, counting, opened


def expected(request: int, max_tokens: int = 12) -> list[int]:
    return solo(submit(request, [request % VOCAB, 5], max_tokens, ignore_eos=True))


def test_requests_go_to_the_worker_with_the_fewest_tokens_outstanding() -> None:
    loop = FleetLoop()
    loop.open(0)
    loop.open(1)
    loop.ask(0, 40)
    for request in range(1, 5):
        loop.ask(request, 10)
    assert loop.fleet._schedulers[0].waiting == 1
    assert loop.fleet._schedulers[1].waiting == 4
    loop.run()
    assert all(loop.tokens(request) == expected(request, 40 if not request else 10) for request in range(5))


def test_who_comes_while_as_many_wait_as_may_is_turned_away_and_nobody_else_is() -> None:
    loop = FleetLoop(opened(slots=2), max_waiting=3)
    loop.open(0)
    loop.open(1)
    for request in range(8):
        loop.ask(request)  # four have a slot as soon as there is a plan, three wait for them
    assert loop.finishes(*range(8)) == [Finish.RUNNING] * 7 + [Finish.BUSY]
    assert loop.received[7].error == "3 requests wait already, as many as may: try later"
    loop.turn()
    loop.ask(8)
    loop.ask(9, again=True)
    assert loop.finishes(8, 9) == [Finish.BUSY, Finish.RUNNING], "it was accepted before, and must have its end"
    for request in (4, 5):
        loop.fleet.abort(CLIENT, request, loop.now)
    loop.ask(10)
    loop.ask(11)
    assert loop.finishes(10, 11) == [Finish.RUNNING, Finish.BUSY]
    loop.run()
    assert all(loop.tokens(request) == expected(request) for request in (0, 1, 2, 3, 6, 9, 10))
    assert loop.fleet.counters(0).turned_away + loop.fleet.counters(1).turned_away == 3


def test_a_lost_workers_requests_are_not_turned_away_by_the_others() -> None:
    loop = FleetLoop(opened(slots=1), max_waiting=1)
    loop.open(0)
    loop.open(1)
    for request in range(3):
        loop.ask(request)
    loop.turn()
    loop.lose(0)
    loop.run()
    assert all(loop.tokens(request) == expected(request) for request in range(3))


def test_a_lost_workers_requests_go_on_at_another_and_the_client_sees_no_seam() -> None:
    loop = FleetLoop()
    loop.open(0)
    loop.open(1)
    for request in range(6):
        loop.ask(request)
    for _ in range(4):
        loop.turn()
    loop.plan_of(0)
    loop.lose(0)
    loop.run()
    assert all(loop.tokens(request) == expected(request) for request in range(6))
    assert all(loop.received[request].finish is Finish.LENGTH for request in range(6))


def test_requests_wait_for_the_only_worker_and_not_for_ever() -> None:
    loop = FleetLoop()
    loop.open(0)
    loop.ask(1)
    loop.ask(2)
    loop.turn()
    loop.lose(0)
    assert loop.fleet.next_deadline == loop.now + PATIENCE_SECONDS
    loop.open(0)
    assert loop.fleet.next_deadline == inf
    for _ in range(3):
        loop.turn()
    loop.lose(0)
    loop.now += PATIENCE_SECONDS
    loop.fleet.expire(loop.now)
    loop.deliver()
    for request in (1, 2):
        assert loop.received[request].finish is Finish.ERROR
        assert "no worker" in loop.received[request].error
    assert loop.fleet.next_deadline == inf, "nobody waits, and still there is a deadline"


def test_a_worker_that_opens_takes_over_what_waits_for_a_lost_one() -> None:
    loop = FleetLoop()
    loop.open(0)
    loop.ask(1)
    loop.turn()
    loop.lose(0)
    loop.open(1)
    loop.run()
    assert loop.tokens(1) == expected(1)
    assert loop.planned.keys() == {0, 1}


def test_a_worker_too_small_changes_nothing_for_those_that_wait() -> None:
    loop = FleetLoop()
    loop.open(0)
    loop.ask(1)
    loop.turn()
    loop.lose(0)
    with pytest.raises(CapacityError):
        loop.open(0, blocks=1)
    loop.fleet.check()
    loop.open(0)
    loop.run()
    assert loop.tokens(1) == expected(1)


def test_a_live_request_is_not_taken_a_second_time_by_another_worker() -> None:
    loop = FleetLoop()
    loop.open(0)
    loop.open(1)
    loop.ask(1, 30)
    loop.turn()
    loop.ask(1, 30)
    loop.run()
    assert loop.tokens(1) == expected(1, 30)


def test_an_answer_that_is_missing_is_noticed() -> None:
    loop = FleetLoop()
    loop.open(0)
    loop.ask(1)
    assert not loop.fleet.lacks_answer(0, 0)
    loop.plan_of(0)
    assert not loop.fleet.lacks_answer(0, 0)
    assert loop.fleet.lacks_answer(0, 1)
    loop.settle_of(0)
    assert not loop.fleet.lacks_answer(0, 1)


def test_only_deaths_count_as_deaths() -> None:
    loop = FleetLoop(next_token=counting)
    loop.open(0)
    loop.ask(1)
    for _ in range(5):
        loop.turn()
        loop.lose(0, died=False)
        loop.open(0)
    loop.run()
    assert loop.received[1].finish is Finish.LENGTH


def test_deaths_long_apart_are_forgiven() -> None:
    loop = FleetLoop(opened(max_model_len=1200, blocks=300), next_token=counting)
    loop.open(0)
    loop.ask(1, 900)
    for _ in range(3):
        for _ in range(FORGIVEN_AFTER + 50):
            loop.turn()
        loop.lose(0, died=True)
        loop.open(0)
    loop.run()
    assert loop.received[1].finish is Finish.LENGTH
    assert len(loop.tokens(1)) == 900
