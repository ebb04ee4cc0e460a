"""The scheduler core: what each verb does, and the cases in which systems of this kind have been wrong."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from protocol.messages import Failed, Finish, Result, RowFlag
from scheduler_proc.capacity import CapacityError
from scheduler_proc.core import MAX_DEATHS, MAX_STRIKES, Scheduler
from scheduler_proc.outbox import MOST_PIECES
from scheduler_proc.request import NEVER
from tests.core_loop import CLIENT, CoreLoop, solo, submit
from tests.stub_model import EOS, NAN_TOKEN, VOCAB, StubModel, counting, opened

CREDITS = (1, 2, 3, 5)


@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_a_length_limit_is_known_in_time_and_wastes_no_row(credit: int, max_tokens: int) -> None:
    loop = CoreLoop(opened(), credit, counting)
    loop.submit(submit(1, [7, 8, 9], max_tokens))
    loop.drain()
    assert sum(len(plan.slot) for plan in loop.plans) == max_tokens  # one prefill, the rest decodes
    assert len(loop.tokens(1)) == max_tokens
    assert loop.received[1].finish is Finish.LENGTH
    assert loop.scheduler.counters.wasted_rows == 0


@pytest.mark.parametrize("credit", CREDITS)
def test_an_end_token_wastes_at_most_the_rows_already_sent(credit: int) -> None:
    loop = CoreLoop(opened(), credit, lambda tokens, _: EOS if len(tokens) == 6 else 50)
    loop.submit(submit(1, [7, 8, 9], 20))
    loop.drain()
    assert loop.tokens(1) == [50, 50, 50, EOS]
    assert loop.received[1].finish is Finish.STOP
    assert loop.scheduler.counters.wasted_rows == credit - 1


def test_each_of_several_end_tokens_ends_and_own_stop_tokens_too() -> None:
    for ask, stop in [
        (submit(1, [1], 30), 60),
        (submit(1, [1], 30, ignore_eos=True, stop_token_ids=[63, 64]), 63),
        (submit(1, [1], 30, stop_token_ids=[55, 62]), 55),
        (submit(1, [1], 30, ignore_eos=True), None),
    ]:
        loop = CoreLoop(opened(eos=(5, 60)), 2, counting)
        loop.submit(ask)
        loop.drain()
        assert loop.tokens(1)[-1] == (stop or 50 + 30 % 40)
        assert loop.received[1].finish is (Finish.STOP if stop else Finish.LENGTH)


def test_a_plan_is_sent_before_the_result_of_the_one_before_it() -> None:
    loop = CoreLoop(opened(), 2, counting)
    loop.submit(submit(1, [1, 2], 10))
    assert loop.plan() is not None
    second = loop.plan()
    assert second is not None
    assert second.flags.tolist() == [RowFlag.CARRY | RowFlag.SAMPLE]
    assert len(second.token) == 0  # the token is on the device; nobody here knows it yet
    assert loop.plan() is None, "more unanswered plans than the credit"
    loop.settle()
    assert loop.plan() is not None


@pytest.mark.parametrize(("length", "budget"), [*itertools.product([15, 16, 17, 31, 32, 33], [1, 8, 16, 17])])
def test_chunked_prompts_give_the_tokens_of_whole_ones(length: int, budget: int) -> None:
    worker = opened(slots=1, blocks=16, block_size=16, max_batch_tokens=budget, max_model_len=256)
    loop = CoreLoop(worker)
    ask = submit(1, [(i * 7) % VOCAB for i in range(length)], 20, ignore_eos=True)
    loop.submit(ask)
    loop.drain()
    assert loop.tokens(1) == solo(ask, max_model_len=256)
    assert sum(bool(plan.flags[0] & RowFlag.CARRY) for plan in loop.plans) == 19
    assert len(loop.plans) - 19 == -(-length // budget)


def test_a_long_prompt_takes_no_step_away_from_a_running_request() -> None:
    loop = CoreLoop(opened(slots=2, blocks=1100, max_batch_tokens=256, max_model_len=4200), 2, counting)
    loop.submit(submit(1, [1, 2], 100))
    for _ in range(5):
        loop.step()
    loop.submit(submit(2, [i % VOCAB for i in range(4000)], 4))
    before = len(loop.plans)
    while not loop.tokens(2):
        loop.step()
    prefill = loop.plans[before:]
    assert all(0 in plan.slot.tolist() for plan in prefill)
    assert max(int(plan.count.sum()) for plan in prefill) == 256
    assert (
        len(prefill) == -(-4000 // 255) + 1
    )  # as few steps as the budget allows, and the one sent ahead of its answer


def test_prompts_that_share_a_budget_are_admitted_in_order_of_arrival() -> None:
    loop = CoreLoop(opened(slots=3, max_batch_tokens=10), 1, counting)
    for request in (1, 2, 3):
        loop.submit(submit(request, [request] * 8, 4))
    first = loop.plan()
    assert first is not None
    assert first.count.tolist() == [8, 2]


def test_many_short_prompts_beside_a_pending_decode_keep_everyones_tokens() -> None:
    loop = CoreLoop(opened(slots=6, blocks=80), 3)
    asks = [submit(0, [9, 9], 40, ignore_eos=True)]
    loop.submit(asks[0])
    for request in range(1, 19):
        asks.append(submit(request, [request, request + 1, request % 3], 1 + request % 4))
        loop.submit(asks[-1])
        if request % 6 == 0:
            loop.step()
    loop.drain()
    for ask in asks:
        assert loop.tokens(ask.request) == solo(ask)


@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("moment", range(1, 9))
@pytest.mark.parametrize("times", [1, 2])
def test_preemption_right_after_any_step_changes_no_token(credit: int, moment: int, times: int) -> None:
    loop = CoreLoop(opened(), credit)
    asks = [submit(1, [3, 1, 4], 12, ignore_eos=True), submit(2, [1, 5], 12, ignore_eos=True)]
    for ask in asks:
        loop.submit(ask)
    for _ in range(moment):
        loop.step()
    loop.plan()
    for _ in range(times):
        victim = next((r for r in loop.scheduler._running.requests() if r.ask.request == 1), None)
        if victim is not None:
            loop.scheduler._preempt(victim)
            loop.scheduler.check()
        while victim is not None and victim.slot < 0 and (loop.plan() is not None or loop.settle()):
            pass  # until it runs again, to be preempted once more before it gets anything
    loop.drain()
    for ask in asks:
        assert loop.tokens(ask.request) == solo(ask)
    assert loop.scheduler.plans_in_flight == 0


@pytest.mark.parametrize("credit", CREDITS)
def test_a_pool_for_one_and_a_half_finishes_both_without_thrashing(credit: int) -> None:
    def steps(asks: list[int], blocks: int) -> CoreLoop:
        loop = CoreLoop(opened(slots=2, blocks=blocks), credit)
        for request in asks:
            loop.submit(submit(request, [request] * 20, 40, ignore_eos=True))
        loop.drain()
        return loop

    serial = sum(len(steps([request], 64).plans) for request in (1, 2))
    tight = steps([1, 2], 22)
    for request in (1, 2):
        assert tight.tokens(request) == solo(submit(request, [request] * 20, 40, ignore_eos=True))
    assert len(tight.plans) < 4 * serial
    assert 1 <= tight.scheduler.counters.preemptions <= 3


def test_a_preempted_request_has_no_row_in_the_plan_that_preempts_it() -> None:
    loop = CoreLoop(opened(slots=4, blocks=16, max_batch_tokens=16), 2, counting)
    for request in range(4):
        loop.submit(submit(request, [request + 1] * 6, 40, ignore_eos=True))
    preemptions = 0
    while loop.scheduler.running or loop.scheduler.waiting:
        before = loop.scheduler._running.slots.epoch.copy()
        plan = loop.plan()
        if plan is not None:
            lost = np.flatnonzero(loop.scheduler._running.slots.epoch != before)
            preemptions += len(lost)
            assert not np.isin(plan.slot, lost).any()
        if len(loop.sent) == 2 or plan is None:
            loop.settle()
        loop.deliver()
    assert preemptions > 0


def test_a_request_that_can_never_fit_is_refused_and_blocks_nobody() -> None:
    loop = CoreLoop(opened(blocks=16, max_model_len=64), 2, counting)
    loop.submit(submit(1, [1] * 64, 4))
    loop.submit(submit(2, [1] * 30, 200))
    loop.submit(submit(3, [1] * 10, 3))
    loop.drain()
    assert loop.received[1].finish is Finish.REFUSED
    assert "64" in loop.received[1].error
    assert len(loop.tokens(2)) == 64 - 30, "max_tokens is clamped to the context"
    assert loop.received[2].finish is Finish.LENGTH
    assert len(loop.tokens(3)) == 3


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("min_tokens", {"min_tokens": 9}),
        ("stop_token_ids", {"stop_token_ids": [3] * 300}),
        ("prompt_logprobs", {"prompt_logprobs": 20}),
        ("logprobs", {"logprobs": 20}),
    ],
)
def test_a_refusal_begins_with_the_name_of_the_field_that_is_wrong(field: str, wrong: dict[str, Any]) -> None:
    loop = CoreLoop(replace(opened(), vocab_size=19, eos_token_ids=np.array([1], np.uint32)))
    loop.submit(submit(1, [3, 4], 8, **wrong))
    loop.deliver()
    assert loop.received[1].finish is Finish.REFUSED
    assert loop.received[1].error.startswith(f"{field}: ")


@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
def test_whatever_is_accepted_fits_the_smallest_pool_there_may_be(block_size: int) -> None:
    context = 20
    worker = opened(slots=1, blocks=-(-(context - 1) // block_size), block_size=block_size, max_model_len=context)
    with pytest.raises(CapacityError):
        Scheduler(replace(worker, blocks=worker.blocks - 1), 2, 1)
    loop = CoreLoop(worker, 2, counting)
    for length in range(1, context + 2):
        loop.submit(submit(length, [length] * length, 2**31 - 1, ignore_eos=True))
        loop.drain()
        assert loop.received[length].finish is (Finish.LENGTH if length < context else Finish.REFUSED)
        assert len(loop.tokens(length)) == max(0, context - length)


def test_a_pool_too_small_for_one_request_is_an_error_with_numbers() -> None:
    with pytest.raises(CapacityError, match=r"15 blocks of 4 = 60 tokens.*--max-model-len 64"):
        Scheduler(opened(blocks=15, max_model_len=64), 2, 1)
    Scheduler(opened(blocks=16, max_model_len=65), 2, 1)  # the last token of a request needs no place
    with pytest.raises(CapacityError, match="--max-batch-tokens 8.*--max-num-seqs 9"):
        Scheduler(opened(slots=9, max_batch_tokens=8), 2, 1)


@pytest.mark.parametrize("ask", [submit(1, []), submit(1, [VOCAB]), submit(1, [1], stop_token_ids=[VOCAB])])
def test_what_is_outside_of_the_vocabulary_is_refused(ask: object) -> None:
    loop = CoreLoop(opened())
    loop.submit(ask)  # type: ignore[arg-type]
    loop.submit(submit(2, [1], 2, ignore_eos=True))
    loop.drain()
    assert loop.received[1].finish is Finish.REFUSED
    assert loop.received[1].error
    assert len(loop.tokens(2)) == 2


@pytest.mark.parametrize("state", ["unknown", "waiting", "planned", "answered", "ended", "twice", "preempted"])
def test_an_abort_in_any_state_ends_that_request_alone(state: str) -> None:
    loop = CoreLoop(opened(slots=2), 2)
    other = submit(2, [4, 5], 10, ignore_eos=True)
    loop.submit(other)
    if state != "unknown":
        loop.submit(submit(1, [1, 2, 3], 6, ignore_eos=True))
    if state not in ("unknown", "waiting"):
        loop.plan()
        loop.plan()
    if state == "answered":
        loop.settle()
        loop.plan()
    if state == "ended":
        loop.drain()
    if state == "preempted":
        loop.settle()
        loop.scheduler._preempt(loop.scheduler._running.request(1))
    loop.abort(1)
    if state == "twice":
        loop.abort(1)
    loop.drain()
    assert loop.tokens(2) == solo(other)
    if state != "unknown":
        assert loop.received[1].finish is (Finish.LENGTH if state == "ended" else Finish.ABORT)
    assert loop.scheduler.plans_in_flight == 0


def test_an_aborted_requests_rows_count_as_wasted_and_its_blocks_are_free_at_once() -> None:
    loop = CoreLoop(opened(), 2, counting)
    loop.submit(submit(1, [1] * 10, 10))
    loop.plan()
    loop.plan()
    loop.abort(1)
    assert loop.scheduler.free_blocks == 64
    loop.submit(submit(2, [2] * 10, 3, ignore_eos=True))  # takes the same slot and blocks behind the wasted rows
    loop.drain()
    assert loop.tokens(2) == solo(submit(2, [2] * 10, 3, ignore_eos=True), counting)
    assert loop.scheduler.counters.wasted_rows == 2


def test_a_second_submit_of_a_live_request_changes_nothing() -> None:
    loop = CoreLoop(opened())
    ask = submit(1, [1, 2, 3], 8, ignore_eos=True)
    loop.submit(ask)
    loop.step()
    loop.submit(ask)
    loop.drain()
    assert loop.tokens(1) == solo(ask)


@pytest.mark.parametrize("known", range(9))
def test_a_request_goes_on_where_its_output_ends(known: int) -> None:
    whole = solo(submit(1, [2, 7, 1], 8, ignore_eos=True, temperature=1.0, seed=9))
    loop = CoreLoop(opened())
    loop.submit(submit(1, [2, 7, 1], 8, output=whole[:known], ignore_eos=True, temperature=1.0, seed=9))
    loop.drain()
    assert loop.tokens(1) == whole
    assert loop.received[1].finish is Finish.LENGTH
    assert (len(loop.plans) == 0) == (known == 8), "one that has all its tokens is not computed again"


def test_a_request_whose_output_has_its_end_token_ends_at_once() -> None:
    loop = CoreLoop(opened())
    loop.submit(submit(1, [2, 7, 1], 8, output=[9, EOS]))
    loop.drain()
    assert loop.received[1].finish is Finish.STOP
    assert not loop.plans


def test_a_row_of_nan_ends_its_request_alone() -> None:
    loop = CoreLoop(opened(), 2, lambda tokens, _: NAN_TOKEN if tokens[0] == 1 and len(tokens) == 4 else 50)
    loop.submit(submit(1, [1, 2], 9))
    loop.submit(submit(2, [2, 2], 9))
    loop.drain()
    assert loop.received[1].finish is Finish.ERROR
    assert "NaN" in loop.received[1].error
    assert loop.tokens(1) == [50, 50]
    assert loop.tokens(2) == [50] * 9


@pytest.mark.parametrize("credit", CREDITS)
def test_a_failed_step_costs_time_and_no_token(credit: int) -> None:
    loop = CoreLoop(opened(), credit)
    asks = [submit(request, [request, 3], 9, ignore_eos=True) for request in (1, 2, 3)]
    for ask in asks:
        loop.submit(ask)
    for moment in range(24):
        while loop.plan() is not None:
            pass
        if moment in (2, 7):
            loop.fail()
        else:
            loop.settle()
        loop.deliver()
    loop.drain()
    for ask in asks:
        assert loop.tokens(ask.request) == solo(ask)
    assert loop.scheduler.counters.failed_steps >= 2


def test_a_request_that_makes_steps_fail_gets_an_error_and_the_others_go_on() -> None:
    loop = CoreLoop(opened(), 2)
    asks = [submit(request, [request, 3], 9, ignore_eos=True) for request in (1, 2, 3)]
    for ask in asks:
        loop.submit(ask)
    for _ in range(200):
        while loop.plan() is not None:
            pass
        if not loop.sent:
            break
        plan = loop.sent[0][0]
        poisoned = [s for s in plan.slot.tolist() if _runs(loop, s, request=2) and plan.position[0] >= 4]
        late = len(loop.received[2].tokens) >= 3 and any(_runs(loop, s, request=2) for s in plan.slot.tolist())
        if poisoned or late:
            loop.fail()
        else:
            loop.settle()
        loop.deliver()
    loop.drain()
    assert loop.received[2].finish is Finish.ERROR
    assert "out of luck" in loop.received[2].error
    assert loop.tokens(1) == solo(asks[0])
    assert loop.tokens(3) == solo(asks[2])
    assert loop.scheduler.counters.failed_steps <= 2 * MAX_STRIKES + 2


def _runs(loop: CoreLoop, slot: int, request: int) -> bool:
    found = loop.scheduler._running.slots.request[slot]
    return found is not None and found.ask.request == request


@pytest.mark.parametrize("what", ["session", "step", "count", "nothing in flight"])
def test_an_answer_to_something_else_is_dropped_and_counted(what: str) -> None:
    loop = CoreLoop(opened(), 2, counting)
    loop.submit(submit(1, [1], 4))
    if what != "nothing in flight":
        loop.plan()
    good = loop.sent[0][1] if loop.sent else Result(77, 1, np.zeros(1, np.uint32), np.zeros(1, np.uint8))
    bad = {
        "session": Result(78, good.step, good.token, good.status),
        "step": Result(77, good.step + 1, good.token, good.status),
        "count": Result(77, good.step, np.zeros(2, np.uint32), np.zeros(2, np.uint8)),
        "nothing in flight": good,
    }[what]
    assert not loop.scheduler.settle(bad, 0.0)
    assert not loop.scheduler.settle(Failed(78, 1, True, ""), 0.0)
    loop.scheduler.check()
    assert loop.scheduler.counters.dropped_answers == 2
    loop.drain()
    assert loop.tokens(1) == solo(submit(1, [1], 4), counting)


def test_a_client_that_lags_gets_the_rest_in_one_piece() -> None:
    loop = CoreLoop(opened(slots=2, blocks=32), 2)
    asks = [submit(1, [1, 2], 20, ignore_eos=True), submit(2, [2], 5, ignore_eos=True)]
    for ask in asks:
        loop.submit(ask)
    for turn in range(18):
        while loop.plan() is not None:
            pass
        loop.settle()
        loop.deliver(withhold=[CLIENT] if turn % 6 else [])
    loop.drain()
    for ask in asks:
        assert loop.tokens(ask.request) == solo(ask)


def test_tokens_of_a_preempted_request_reach_its_client_before_it_runs_again() -> None:
    loop = CoreLoop(opened(slots=1), 1)
    loop.submit(submit(1, [1, 2], 20, ignore_eos=True))
    for _ in range(3):
        loop.plan()
        loop.settle()
    loop.scheduler._preempt(loop.scheduler._running.request(0))
    loop.scheduler.check()
    loop.deliver()
    assert loop.tokens(1) == solo(submit(1, [1, 2], 20, ignore_eos=True))[:3]


def test_a_deadline_ends_a_request_waiting_or_running() -> None:
    loop = CoreLoop(opened(slots=1), 2, counting)
    loop.submit(submit(1, [1], 50, timeout=5.0))
    loop.submit(submit(2, [1], 50, timeout=4.0))
    loop.submit(submit(3, [1], 5))
    assert loop.scheduler.next_deadline == 4.0
    while loop.step():
        loop.scheduler.expire(loop.now)
        loop.scheduler.check()
    assert loop.received[1].finish is Finish.TIMEOUT
    assert loop.received[2].finish is Finish.TIMEOUT
    assert 0 < len(loop.tokens(1)) <= 5
    assert loop.tokens(2) == []
    assert len(loop.tokens(3)) == 5


def test_the_times_of_a_request_never_go_back() -> None:
    loop = CoreLoop(opened(slots=1, blocks=16), 2, counting)
    loop.now = 100.0
    loop.submit(submit(1, [1] * 9, 5))
    loop.submit(submit(2, [1] * 9, 1))
    loop.submit(submit(3, [1] * 9, 5))
    loop.abort(3)
    for _ in range(4):
        loop.step()
    loop.plan()
    assert loop.fail()  # and begins again from its tokens
    loop.drain()
    for request in (1, 2):
        planned, first, last, end = loop.received[request].timing
        assert 0 <= planned <= first <= last <= end
    assert loop.received[3].timing[:3] == (NEVER, NEVER, NEVER)


def test_requests_with_many_stop_tokens_stop_at_each_of_them_beside_others() -> None:
    many = list(range(70, 90))
    loop = CoreLoop(opened(slots=3), 2, counting)
    loop.submit(submit(1, [1], 60, ignore_eos=True, stop_token_ids=many))
    loop.submit(submit(2, [1, 2], 30, ignore_eos=True))
    loop.submit(submit(3, [1], 60, ignore_eos=True, stop_token_ids=[75]))
    loop.submit(submit(4, [1], 30, ignore_eos=True))  # in a slot that had many
    loop.submit(submit(5, [1], 4, stop_token_ids=[1] * 257))
    loop.drain()
    assert loop.tokens(1)[-1] == 70
    assert len(loop.tokens(2)) == 30
    assert loop.tokens(3)[-1] == 75
    assert len(loop.tokens(4)) == 30
    assert loop.received[5].finish is Finish.REFUSED


def test_only_the_very_token_ends_a_request_and_not_one_with_the_same_last_bits() -> None:
    near = EOS + 2**16
    loop = CoreLoop(opened(vocab_size=2**17), 2, lambda tokens, _: near if len(tokens) < 9 else EOS)
    loop.submit(submit(1, [1], 30))
    loop.submit(submit(2, [1], 30, stop_token_ids=[near]))
    loop.drain()
    assert loop.tokens(1) == [near] * 8 + [EOS]
    assert loop.tokens(2) == [near]


def test_ended_requests_do_not_pile_up_behind_their_deadlines_or_in_the_queue() -> None:
    loop = CoreLoop(opened(slots=1), 2, counting)
    loop.submit(submit(0, [1], 60, ignore_eos=True))  # holds the slot
    loop.plan()
    for request in range(1, 1000):
        loop.scheduler.submit(CLIENT, submit(request, [1], 5, timeout=1e6), 0.0)
        loop.scheduler.abort(CLIENT, request, 0.0)
    loop.scheduler.check()  # it bounds both heaps


def test_a_flood_of_endings_comes_in_messages_of_bounded_size() -> None:
    loop = CoreLoop(opened(), 2, counting)
    for request in range(2500):
        loop.scheduler.submit(CLIENT, submit(request, []), 0.0)
    sizes = []
    while deltas := loop.scheduler.take_deltas():
        sizes.append(sum(len(message.request) for _, message in deltas))
    assert sum(sizes) == 2500
    assert max(sizes) <= MOST_PIECES


def test_a_lost_worker_costs_time_and_no_token() -> None:
    loop = CoreLoop(opened(slots=3), 2)
    asks = [submit(request, [request, 3], 12, ignore_eos=True) for request in range(5)]
    for ask in asks:
        loop.submit(ask)
    for _ in range(6):
        loop.step()
    loop.plan()
    loop.scheduler.lose_worker(loop.now)
    loop.scheduler.check()
    assert loop.plan() is None
    worker = opened(slots=2, session=78)
    loop.sent.clear()
    loop.model = StubModel(worker)
    loop.scheduler.reopen(worker, loop.now)
    loop.scheduler.check()
    loop.drain()
    for ask in asks:
        assert loop.tokens(ask.request) == solo(ask)


def test_a_request_that_saw_two_workers_die_gets_an_error() -> None:
    loop = CoreLoop(opened(slots=1), 2, counting)
    loop.submit(submit(1, [1, 3], 12))
    loop.submit(submit(2, [2, 3], 3))
    for death in range(MAX_DEATHS):
        loop.step()
        loop.scheduler.lose_worker(loop.now)
        loop.sent.clear()
        worker = opened(slots=1, session=100 + death)
        loop.model = StubModel(worker, counting)
        loop.scheduler.reopen(worker, loop.now)
    loop.drain()
    assert loop.received[1].finish is Finish.ERROR
    assert loop.received[2].finish is Finish.LENGTH


def test_requests_of_a_lost_worker_move_to_another_scheduler() -> None:
    first, second = CoreLoop(opened(), 2), CoreLoop(opened(slots=2, session=78), 2)
    asks = [submit(request, [request, 3], 12, ignore_eos=True) for request in range(5)]
    for ask in asks:
        first.submit(ask)
    for _ in range(5):
        first.plan()
        first.settle()  # and nothing is delivered
    first.scheduler.lose_worker(9.0)
    second.scheduler.adopt(first.scheduler.abandon(), 9.0)
    first.scheduler.check()
    second.scheduler.check()
    second.drain()
    for ask in asks:
        assert second.tokens(ask.request) == solo(ask)


def test_a_vanished_client_takes_only_its_own_requests_along() -> None:
    loop = CoreLoop(opened())
    loop.submit(submit(1, [1], 9, ignore_eos=True))
    loop.scheduler.submit(2, submit(1, [2], 9, ignore_eos=True), 0.0)
    loop.step()
    loop.scheduler.drop_client(2, 1.0)
    loop.scheduler.check()
    assert loop.scheduler.running == 1
    loop.drain()
    assert loop.tokens(1) == solo(submit(1, [1], 9, ignore_eos=True))


def test_a_request_whose_last_row_is_sent_is_never_preempted() -> None:
    loop = CoreLoop(opened(slots=2), 3, counting)
    loop.submit(submit(1, [1] * 4, 20, ignore_eos=True))
    loop.submit(submit(2, [2] * 4, 1, ignore_eos=True))
    loop.plan()  # both prompts, and with that the last row of request 2
    pool = loop.scheduler._running.blocks
    held = pool.take(pool.free)
    assert loop.scheduler.plan(0.0) is None, "request 1 needs a block, and there is none"
    assert loop.scheduler.running == 2
    pool.give_back(held)
    loop.drain()
    assert len(loop.tokens(1)) == 20


def test_a_resumed_request_is_preempted_only_after_it_has_got_a_token() -> None:
    loop = CoreLoop(opened(slots=2), 3, counting)
    loop.submit(submit(1, [1] * 4, 20, ignore_eos=True))
    loop.submit(submit(2, [2] * 4, 20, output=[56], ignore_eos=True))
    loop.plan()
    pool = loop.scheduler._running.blocks
    held = pool.take(pool.free)
    plan = loop.scheduler.plan(0.0)
    assert loop.scheduler.running == 2, "it would have gained nothing from being resumed"
    assert plan is not None
    assert plan.slot.tolist() == [1]  # request 1 stands back, for want of a block
    loop.sent.append((plan, loop.model.run(plan)))
    pool.give_back(held)
    loop.settle()
    held = pool.take(pool.free)
    assert loop.scheduler.plan(0.0) is not None
    assert loop.scheduler.running == 1
    assert loop.scheduler.counters.preemptions == 1


def test_failures_count_against_a_request_only_when_they_come_in_a_row() -> None:
    loop = CoreLoop(opened(), 2, counting)
    loop.submit(submit(1, [1, 2], 12, ignore_eos=True))
    for _ in range(5):
        for _ in range(MAX_STRIKES - 1):
            while loop.plan() is not None:
                pass
            loop.fail()
        for _ in range(2):
            loop.step()
    loop.drain()
    assert loop.received[1].finish is Finish.LENGTH
    assert len(loop.tokens(1)) == 12
    assert loop.scheduler.counters.failed_steps >= 5 * (MAX_STRIKES - 1)
