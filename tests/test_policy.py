"""Whose turn is first: the policies, what they do to preemption, and that nobody starves of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from protocol.messages import Finish
from scheduler_proc.config import SchedulingConfig
from scheduler_proc.policy import FEW_USERS, FIRST_COME, Policy, PriorityFirst, RoundRobin, ShortestPrefillFirst
from tests.core_loop import CoreLoop, solo, submit
from tests.stub_model import counting, opened

LEVEL = 10.0
POLICIES: tuple[Policy, ...] = (FIRST_COME, PriorityFirst(LEVEL), ShortestPrefillFirst(1000.0))


def one_at_a_time(policy: Policy, **worker: Any) -> CoreLoop:
    """Return a loop whose one slot is taken, so that all that comes waits."""
    loop = CoreLoop(opened(slots=1, **worker), 2, counting, policy=policy)
    loop.submit(submit(0, [1], 6, ignore_eos=True))
    loop.plan()
    return loop


def served(loop: CoreLoop, *asked: int) -> list[int]:
    """Return the requests in the order in which they get their first tokens."""
    order: list[int] = []
    for _ in range(500):
        loop.step()
        order += [request for request in asked if loop.tokens(request) and request not in order]
        if len(order) == len(asked):
            break
    return order


def test_who_came_first_is_served_first_unless_told_otherwise() -> None:
    loop = one_at_a_time(SchedulingConfig().policy)
    for request in (3, 1, 2):
        loop.submit(submit(request, [1] * (9 - request), 2))
    assert served(loop, 1, 2, 3) == [3, 1, 2]


def test_lower_priorities_are_served_first_and_equal_ones_in_order_of_arrival() -> None:
    loop = one_at_a_time(SchedulingConfig(scheduling_policy="priority").policy)
    for request, priority in [(1, 5), (2, -1), (3, 0), (4, -1), (5, 0)]:
        loop.submit(submit(request, [1], 2, priority=priority))
    assert served(loop, 1, 2, 3, 4, 5) == [2, 4, 3, 5, 1]


def test_short_prompts_are_served_first_and_what_was_said_already_counts_as_prompt() -> None:
    loop = one_at_a_time(SchedulingConfig(scheduling_policy="shortest-prefill-first").policy)
    loop.submit(submit(1, [1] * 30, 2))
    loop.submit(submit(2, [1] * 10, 22, output=[3] * 15))
    loop.submit(submit(3, [1] * 20, 2))
    assert served(loop, 1, 3) == [3, 1]
    loop = one_at_a_time(ShortestPrefillFirst(1.0))
    loop.submit(submit(2, [1] * 10, 22, output=[3] * 15, ignore_eos=True))
    loop.submit(submit(3, [1] * 20, 2))
    loop.step()
    while not loop.tokens(3):
        loop.step()
    assert len(loop.tokens(2)) == 15, "3 has less to be prefilled than 2"


@pytest.mark.parametrize("policy", POLICIES[1:], ids=str)
@pytest.mark.parametrize(("waited", "overtaken"), [(0.9 * LEVEL, True), (1.1 * LEVEL, False)])
def test_waiting_outweighs_what_a_policy_goes_by(policy: Policy, waited: float, overtaken: bool) -> None:
    loop = one_at_a_time(policy)
    loop.submit(submit(1, [1] * 20, 2, priority=int(isinstance(policy, PriorityFirst))))
    loop.now += waited  # 10 tokens more, or a level, weigh 10 s
    loop.submit(submit(2, [1] * 10, 2))
    assert served(loop, 1, 2) == ([2, 1] if overtaken else [1, 2])


@pytest.mark.parametrize("policy", [FIRST_COME, ShortestPrefillFirst(1.0)], ids=str)
def test_a_priority_that_would_not_count_is_refused_and_says_what_would_make_it(policy: Policy) -> None:
    loop = CoreLoop(opened(), policy=policy)
    loop.submit(submit(1, [1], 2, priority=-3))
    loop.drain()
    assert loop.received[1].finish is Finish.REFUSED
    assert loop.received[1].error == "priority: -3 only counts with --scheduling-policy priority"


def test_requests_that_end_while_they_wait_do_not_disturb_the_order() -> None:
    loop = one_at_a_time(PriorityFirst(LEVEL))
    for request in range(1, 301):
        loop.submit(submit(request, [1], 2, priority=-request))
    for request in range(4, 301):
        loop.abort(request)
    assert served(loop, 1, 2, 3) == [3, 2, 1]


def test_who_is_last_by_the_policy_loses_its_slot_and_not_who_came_last() -> None:
    loop = CoreLoop(opened(slots=2, blocks=22), 2, policy=PriorityFirst(LEVEL))
    asks = [submit(1, [1] * 20, 40, ignore_eos=True, priority=5), submit(2, [2] * 20, 40, ignore_eos=True, priority=0)]
    loop.submit(asks[0])
    loop.step()
    loop.submit(asks[1])
    while not loop.scheduler.counters.preemptions:
        loop.step()
    assert [request.ask.request for request in loop.scheduler._running.requests()] == [2]
    loop.drain()
    for ask in asks:
        assert loop.tokens(ask.request) == solo(ask)


def test_nobody_loses_a_slot_to_one_whose_turn_is_later() -> None:
    loop = CoreLoop(opened(slots=2), 2, counting, policy=PriorityFirst(LEVEL))
    loop.submit(submit(1, [1, 1], 20, ignore_eos=True, priority=0))
    loop.submit(submit(2, [2, 2, 2], 20, output=[53], ignore_eos=True, priority=1))
    loop.plan()
    pool = loop.scheduler._running.blocks
    held = pool.take(pool.free)
    plan = loop.scheduler.plan(0.0)  # 2 needs a block, and has come back too lately to lose its own
    assert plan is not None
    assert (plan.slot.tolist(), loop.scheduler.running) == ([0], 2)
    loop.sent.append((plan, loop.model.run(plan)))
    pool.give_back(held)
    loop.drain()
    assert [len(loop.tokens(request)) for request in (1, 2)] == [20, 20]


def test_prompts_share_the_tokens_of_a_step_in_the_order_of_the_policy() -> None:
    loop = CoreLoop(opened(slots=3, max_batch_tokens=10), 1, counting, policy=PriorityFirst(LEVEL))
    loop.submit(submit(1, [1] * 30, 4, priority=1))
    loop.plan()
    loop.settle()
    loop.submit(submit(2, [2] * 8, 4, priority=0))
    loop.submit(submit(3, [3] * 8, 4, priority=0))
    plan = loop.plan()
    assert plan is not None
    assert plan.slot.tolist() == [0], "what runs goes on before anybody is let in"
    loop.settle()
    loop.plan()
    loop.settle()
    plan = loop.plan()  # 1 decodes now
    assert plan is not None
    assert plan.count.tolist() == [1, 8, 1]


@pytest.mark.parametrize("most", [1, 5, 16])
def test_a_step_has_no_more_prompt_tokens_than_it_may_and_every_running_request_has_its_row(most: int) -> None:
    loop = CoreLoop(opened(slots=4, blocks=80, max_batch_tokens=32), 2, max_prefill_tokens=most)
    asks = [submit(request, [request + 1] * 30, 30, ignore_eos=True) for request in range(4)]
    loop.submit(asks[0])
    while len(loop.tokens(0)) < 3:
        loop.step()
    before = len(loop.plans)
    for ask in asks[1:]:
        loop.submit(ask)
    loop.step()
    assert 0 in loop.plans[-1].slot.tolist()
    loop.drain()
    assert max(len(plan.token) for plan in loop.plans[before:]) == most
    for ask in asks:
        assert loop.tokens(ask.request) == solo(ask)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_nobody_starves_while_others_that_go_first_keep_coming(policy: Policy) -> None:
    loop = CoreLoop(opened(slots=1), 2, counting, policy=policy)
    levels = isinstance(policy, PriorityFirst)
    loop.submit(submit(0, [1] * 40, 2, priority=3 * levels))
    for request in range(1, 200):
        loop.submit(submit(request, [1], 2, priority=0))
        loop.step()
        loop.step()
        if loop.tokens(0):
            break
    assert loop.now < 3 * LEVEL + 20
    assert request > 1 or policy is FIRST_COME


def test_a_request_keeps_its_place_when_it_moves_to_another_worker() -> None:
    policy = PriorityFirst(LEVEL)
    first, second = (CoreLoop(opened(slots=1, session=s), 2, counting, policy=policy) for s in (77, 78))
    second.submit(submit(0, [1], 6, ignore_eos=True))
    second.plan()
    second.submit(submit(1, [1], 2, priority=1))
    for request, priority in [(2, 0), (3, 2)]:
        first.submit(submit(request, [1], 2, priority=priority))
    first.scheduler.lose_worker(0.0)
    second.scheduler.adopt(first.scheduler.abandon(), 0.0)
    second.received |= {request: replace(first.received[request]) for request in (2, 3)}
    assert served(second, 1, 2, 3) == [2, 1, 3]


def test_each_user_has_one_request_in_turn_however_many_wait() -> None:
    loop = one_at_a_time(SchedulingConfig(scheduling_policy="round-robin").policy)
    asked = [(1, "Ann"), (2, "Ann"), (3, "Ann"), (4, "Ann"), (5, "Bob"), (6, "Cid"), (7, "Bob")]
    for request, user in asked:
        loop.submit(submit(request, [1], 2, user=user))
    assert served(loop, *range(1, 8)) == [1, 5, 6, 2, 7, 3, 4]


def test_who_comes_later_joins_the_round_that_has_begun_and_saves_up_none_while_away() -> None:
    loop = one_at_a_time(RoundRobin())
    for request in range(1, 9):
        loop.submit(submit(request, [1], 2, user="Ann"))
    assert served(loop, 1, 2, 3) == [1, 2, 3]
    for request in range(11, 15):
        loop.submit(submit(request, [1], 2, user="Bob"))
    assert served(loop, *range(4, 9), *range(11, 15)) == [11, 4, 12, 5, 13, 6, 14, 7, 8]


def test_a_request_that_ends_while_it_waits_costs_its_user_no_turn() -> None:
    loop = one_at_a_time(RoundRobin())
    for request in range(1, 100):
        loop.submit(submit(request, [1], 2, user="Ann"))
        loop.abort(request)
    for request in range(101, 104):
        loop.submit(submit(request, [1], 2, user="Bob"))
    loop.submit(submit(100, [1], 2, user="Ann"))
    assert served(loop, 100, 101, 102, 103) == [101, 100, 102, 103]


def test_requests_that_end_while_they_wait_put_no_two_of_a_user_into_one_round() -> None:
    loop = one_at_a_time(RoundRobin())
    for request in range(1, 21):
        loop.submit(submit(request, [1], 2, user="Ann"))
    for oldest in range(1, 15):  # gives up, and another comes
        loop.abort(oldest)
        loop.submit(submit(20 + oldest, [1], 2, user="Ann"))
    for request in range(101, 141):
        loop.submit(submit(request, [1], 2, user="Bob"))
    turns = served(loop, *range(15, 35), *range(101, 141))
    ann = [place for place, request in enumerate(turns) if request < 100]
    assert all(after - before > 1 for before, after in pairwise(ann)), turns


def test_users_of_one_name_at_two_clients_are_two() -> None:
    policy = RoundRobin()
    ranks = [policy.rank(client, submit(1, [1], user="Ann"), 0.0) for client in (1, 1, 2)]
    assert ranks == [0, 1, 0]


def test_users_who_are_gone_are_forgotten() -> None:
    policy = RoundRobin()
    for user in range(10 * FEW_USERS):
        policy.began(policy.rank(1, submit(1, [1], user="Ann"), 0.0))
        policy.began(policy.rank(1, submit(1, [1], user=str(user)), 0.0))
    assert len(policy._next) <= 2 * FEW_USERS + 2


def test_ranks_are_not_lost_in_rounding_at_the_widest_settings() -> None:
    policy = PriorityFirst(1e6)
    for priority in (-(2**31), 2**31 - 1):
        ranks = [
            policy.rank(1, submit(1, [1], priority=priority + step), 1e6) for step in (0, 1 if priority < 0 else -1)
        ]
        assert np.isfinite(ranks).all()
        assert ranks[0] != ranks[1]
