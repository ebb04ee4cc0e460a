"""What others have computed is used again, changes no token, and is never used before it is there."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from protocol.messages import Finish, Plan, Submit
from scheduler_proc.planner import MOST_ASIDE
from scheduler_proc.prefix_index import Link
from tests.core_loop import CoreLoop, solo, submit
from tests.stub_model import EOS, NAN_TOKEN, VOCAB, StubModel, counting, hashed, opened

CREDITS = (1, 2, 3)
BLOCK = 4


def text(length: int, *, seed: int = 1) -> list[int]:
    return [(seed * 31 + place * place * 7 + place) % VOCAB for place in range(length)]


def served(loop: CoreLoop, ask: Submit) -> list[int]:
    """Serve a request to its end, beside whatever runs."""
    loop.submit(ask)
    loop.drain()
    return loop.tokens(ask.request)


def prefilled(plans: Sequence[Plan]) -> int:
    return sum(len(plan.token) for plan in plans)


@pytest.mark.parametrize(("credit", "blocks", "size"), [*itertools.product(CREDITS, [1, 2, 3], [1, 4, 16])])
def test_a_prompt_of_whole_blocks_sent_twice_computes_its_last_block_again(credit: int, blocks: int, size: int) -> None:
    loop = CoreLoop(opened(block_size=size), credit)
    first, second = (submit(request, text(blocks * size), 8, ignore_eos=True) for request in (1, 2))
    assert served(loop, first) == served(loop, second) == solo(first)
    assert [loop.received[request].cached for request in (1, 2)] == [0, (blocks - 1) * size]
    assert prefilled(loop.plans) == loop.scheduler.counters.prefill_tokens == blocks * size + size
    assert loop.scheduler.counters.cached_tokens == (blocks - 1) * size


def test_a_prompt_that_begins_alike_uses_the_blocks_that_are_wholly_alike() -> None:
    loop = CoreLoop(opened())
    served(loop, submit(1, text(18)))
    ask = submit(2, [*text(11), 3, *text(9, seed=2)], ignore_eos=True)
    before = len(loop.plans)
    assert served(loop, ask) == solo(ask)
    assert loop.received[2].cached == 8
    assert loop.plans[before].position.tolist() == [8]
    assert served(loop, submit(3, [0, *text(18)], ignore_eos=True)) == solo(submit(3, [0, *text(18)], ignore_eos=True))
    assert loop.received[3].cached == 0, "the same tokens at other positions are other KV"


@pytest.mark.parametrize("prompt", [18, 3, 4])
def test_what_is_kept_serves_requests_of_the_same_salt_alone(prompt: int) -> None:
    loop = CoreLoop(opened())
    cached = []
    for request, salt in enumerate(["", "mine", "yours", "mine", "", "yours"]):
        ask = submit(request, text(prompt), 12, ignore_eos=True, cache_salt=salt)
        assert served(loop, ask) == solo(ask)
        follow_up = [*ask.prompt.tolist(), *loop.tokens(request), 5]
        again = submit(100 + request, follow_up, 1, cache_salt=salt)
        assert served(loop, again) == solo(again)
        assert loop.received[100 + request].cached >= (len(follow_up) - 2) // BLOCK * BLOCK
        cached.append(loop.received[request].cached)
    whole = (prompt - 1) // BLOCK * BLOCK
    assert cached == [0, 0, 0, whole, whole, whole]


@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("budget", [8, 64, 300])
def test_what_requests_of_one_tick_share_is_computed_once(credit: int, budget: int) -> None:
    worker = opened(slots=8, blocks=250, block_size=16, max_batch_tokens=budget, max_model_len=100)
    loop = CoreLoop(worker, credit)
    asks = [submit(request, text(64) + [request] * request, 6, ignore_eos=True) for request in range(1, 9)]
    for ask in asks:
        loop.submit(ask)
    loop.drain()
    assert [loop.tokens(ask.request) for ask in asks] == [solo(ask, max_model_len=100) for ask in asks]
    assert prefilled(loop.plans) == 64 + sum(range(1, 9))


@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("budget", [24, 300])
@pytest.mark.parametrize("moment", ["planned", "answered"])
def test_the_first_of_many_that_share_is_aborted_and_the_others_are_right(
    credit: int, budget: int, moment: str
) -> None:
    worker = opened(slots=8, blocks=250, block_size=16, max_batch_tokens=budget, max_model_len=100)
    loop = CoreLoop(worker, credit)
    asks = [submit(request, [*text(64), request], 6, ignore_eos=True) for request in range(8)]
    for ask in asks:
        loop.submit(ask)
    loop.plan()
    loop.plan()
    if moment == "answered":
        loop.settle()
    loop.abort(0)
    loop.drain()
    for ask in asks[1:]:
        assert loop.tokens(ask.request) == solo(ask, max_model_len=100)
    assert loop.received[0].finish is Finish.ABORT
    assert prefilled(loop.plans) <= 2 * 64 + 8, "whoever is left shares what is computed instead"


@pytest.mark.parametrize("credit", CREDITS)
def test_a_request_waits_for_a_step_in_flight_and_no_longer_and_holds_up_nobody(credit: int) -> None:
    loop = CoreLoop(opened(slots=3), credit)
    alike = [submit(request, text(17), 4, ignore_eos=True) for request in (1, 2)]
    other = submit(3, text(9, seed=2), 4, ignore_eos=True)
    for ask in (*alike, other):
        loop.submit(ask)
    first = loop.plan()
    assert first is not None
    assert first.slot.tolist() == [0, 1], "the one behind it need not wait"
    assert first.count.tolist() == [17, 9]
    while loop.plan() is not None:
        pass
    assert loop.scheduler.waiting == 1
    loop.settle()
    plan = loop.plan()
    assert plan is not None
    assert len(plan.token) == 1, "with its step settled nothing keeps it"
    loop.drain()
    for ask in (*alike, other):
        assert loop.tokens(ask.request) == solo(ask)


def test_nobody_takes_the_slot_or_the_blocks_of_one_who_waits_for_a_step_in_flight() -> None:
    for worker in (opened(slots=2), opened(slots=3, blocks=16)):
        loop = CoreLoop(worker, 2)
        for ask in (submit(1, text(17), 4), submit(2, text(17), 4), submit(3, text(30, seed=2), 4)):
            loop.submit(ask)
        plans = [loop.plan(), loop.plan()]
        assert [plan.count.tolist() for plan in plans if plan is not None] == [[17], [1]]
        loop.settle()
        plan = loop.plan()
        assert plan is not None
        assert 1 in plan.slot.tolist()
        loop.drain()


def test_not_the_whole_queue_is_searched_for_somebody_who_need_not_wait() -> None:
    loop = CoreLoop(opened(slots=MOST_ASIDE + 9, blocks=6000, max_batch_tokens=200), 1)
    for request in range(MOST_ASIDE + 5):
        loop.submit(submit(request, text(17), 4, ignore_eos=True))
    loop.submit(submit(999, text(9, seed=2), 4, ignore_eos=True))
    plan = loop.plan()
    assert plan is not None
    assert plan.count.tolist() == [17]
    assert loop.scheduler.waiting == MOST_ASIDE + 5
    loop.drain()
    assert prefilled(loop.plans) == 17 + MOST_ASIDE + 4 + 9


@pytest.mark.parametrize("credit", CREDITS)
def test_prompts_whose_hashes_are_all_the_same_keep_their_own_tokens(
    credit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Link, "__hash__", lambda _: 1)
    loop = CoreLoop(opened(), credit)
    asks = [submit(request, text(21, seed=request % 3), 9, ignore_eos=True) for request in range(9)]
    asks += [submit(10, [*text(4), *text(17, seed=2)], 9, ignore_eos=True), submit(11, text(21)[4:], 9)]
    for ask in asks:
        assert served(loop, ask) == solo(ask)
    assert loop.scheduler.counters.cached_tokens == 6 * 20 + 4


@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("answers", range(4))
def test_of_a_request_aborted_between_chunks_only_what_was_computed_is_kept(credit: int, answers: int) -> None:
    loop = CoreLoop(opened(max_batch_tokens=10), credit)
    ask = submit(1, text(40), 5, ignore_eos=True)
    loop.submit(ask)
    for _ in range(answers):
        while loop.plan() is not None:
            pass
        loop.settle()
    while loop.plan() is not None:
        pass
    loop.abort(1)
    again = submit(2, text(40), 5, ignore_eos=True)
    assert served(loop, again) == solo(again)
    assert loop.received[2].cached == min(10 * answers // BLOCK * BLOCK, 36)


@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("generated", [3, 4, 5, 20])
def test_a_preempted_request_computes_only_what_is_not_in_whole_blocks(credit: int, generated: int) -> None:
    loop = CoreLoop(opened(), credit)
    ask = submit(1, text(10), 30, ignore_eos=True)
    loop.submit(ask)
    while len(loop.tokens(1)) < generated:
        loop.step()
    loop.scheduler._preempt(loop.scheduler._running.request(0))
    loop.scheduler.check()
    total = 10 + len(loop.tokens(1))
    before = len(loop.plans)
    while (plan := loop.plan()) is None:
        loop.settle()
    cached = (total - 1) // BLOCK * BLOCK
    assert (plan.position.tolist(), plan.count.tolist()) == ([cached], [total - cached])
    assert prefilled(loop.plans[before:]) == total - cached
    loop.drain()
    assert loop.tokens(1) == solo(ask)
    assert loop.received[1].cached == 0, "what it had computed itself is no present"


@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("end", ["length", "end token"])
@pytest.mark.parametrize("blocks", [2, 3])
def test_an_answer_that_ends_with_its_block_is_right_in_the_prompt_of_the_next(
    credit: int, end: str, blocks: int
) -> None:
    length = blocks * BLOCK

    def next_token(tokens: Sequence[int], seed: int) -> int:
        return EOS if end == "end token" and len(tokens) == length - 1 else hashed([*tokens, 1], seed)

    for prompt in (1, 3, BLOCK):
        loop = CoreLoop(opened(), credit, next_token)
        ask = submit(1, text(prompt), length - prompt if end == "length" else 60)
        answer = served(loop, ask)
        assert prompt + len(answer) == length
        follow_up = submit(2, [*text(prompt), *answer, 9, 8, 7], 10, ignore_eos=True)
        assert served(loop, follow_up) == solo(follow_up, next_token)
        assert loop.received[2].cached == length - BLOCK, "the last token has no KV"


@pytest.mark.parametrize("credit", CREDITS)
def test_a_failed_step_leaves_nothing_to_be_found(credit: int) -> None:
    loop = CoreLoop(opened(max_batch_tokens=12), credit)
    asks = [submit(request, text(30), 5, ignore_eos=True) for request in (1, 2)]
    for ask in asks:
        loop.submit(ask)
    loop.plan()
    loop.settle()
    while loop.plan() is not None:
        pass
    loop.fail()
    loop.drain()
    assert [loop.tokens(1), loop.tokens(2)] == [solo(ask) for ask in asks]
    assert loop.scheduler.counters.cached_tokens == 12 + 28, "the first chunk settled, and then all of it for the other"


def test_what_a_request_of_nan_has_used_is_not_found_again() -> None:
    loop = CoreLoop(opened(), 2, lambda tokens, _: NAN_TOKEN if tokens[-1] == 96 else 50)
    served(loop, submit(1, text(16), 3))
    served(loop, submit(2, [*text(16), 1, 96], 3))
    assert loop.received[2].finish is Finish.ERROR
    assert loop.received[2].cached == 16
    served(loop, submit(3, text(16), 3))
    assert loop.received[3].cached == 0
    assert len(loop.tokens(3)) == 3


def test_nan_in_one_request_leaves_others_on_the_same_blocks_alone() -> None:
    loop = CoreLoop(opened(), 2, lambda tokens, _: NAN_TOKEN if tokens[16:17] == [96] and len(tokens) > 20 else 50)
    served(loop, submit(1, text(16), 3, ignore_eos=True))
    loop.submit(submit(2, [*text(16), 96], 9, ignore_eos=True))
    loop.submit(submit(3, [*text(16), 95], 30, ignore_eos=True))
    loop.drain()
    assert loop.received[2].finish is Finish.ERROR
    assert loop.tokens(3) == [50] * 30


def test_cached_blocks_are_free_and_the_longest_unused_give_way() -> None:
    loop = CoreLoop(opened(slots=2, blocks=16, max_model_len=64), 2)
    for request in (1, 2, 3):
        served(loop, submit(request, text(17, seed=request), 4, ignore_eos=True))  # five blocks each
    served(loop, submit(4, text(17, seed=1), 4, ignore_eos=True))
    assert loop.received[4].cached == 16
    assert loop.scheduler.free_blocks == 16
    large = submit(5, text(24, seed=5), 4, ignore_eos=True)
    loop.submit(large)
    assert loop.plan() is not None, "what is only cached keeps nobody out"
    loop.drain()
    assert loop.tokens(5) == solo(large)
    cached = []
    for request, seed in ((6, 1), (7, 3), (8, 2)):
        served(loop, submit(request, text(17, seed=seed), 1))
        cached.append(loop.received[request].cached)
    assert cached == [16, 16, 0], "the second prompt was used before the others"


def test_a_requests_own_cached_blocks_are_not_free_for_it_to_take() -> None:
    loop = CoreLoop(opened(slots=2, blocks=16, max_model_len=64), 2)
    served(loop, submit(1, text(40), 1))
    asks = [submit(2, text(13, seed=2), 8, ignore_eos=True), submit(3, text(60), 2, ignore_eos=True)]
    loop.submit(asks[0])
    loop.plan()
    loop.submit(asks[1])
    loop.plan()
    assert loop.scheduler.free_blocks == 12, "five more beside its ten would be, of two blank ones"
    assert loop.scheduler.waiting == 1
    loop.drain()
    assert [loop.tokens(ask.request) for ask in asks] == [solo(ask) for ask in asks]


def test_blocks_for_the_next_step_are_cleared_while_the_device_computes() -> None:
    loop = CoreLoop(opened(slots=2, blocks=16, max_model_len=64), 1)
    for request in (1, 2, 3):
        served(loop, submit(request, text(21, seed=request), 1))
    pool = loop.scheduler._running.blocks
    asks = [submit(request, text(7, seed=request), 20, ignore_eos=True) for request in (4, 5)]
    for ask in asks:
        loop.submit(ask)
    loop.step()
    before = len(pool._cached)
    while loop.scheduler.running:
        loop.scheduler.catch_up()
        loop.scheduler.check()
        kept = len(pool._cached)
        assert loop.plan() is None or len(pool._cached) == kept, "a plan has taken the time to clear blocks"
        loop.settle()
    loop.drain()
    assert kept < before - 4
    assert [loop.tokens(ask.request) for ask in asks] == [solo(ask) for ask in asks]


def test_what_could_not_be_found_is_not_kept() -> None:
    loop = CoreLoop(opened(slots=2, blocks=16, max_model_len=64), 1)
    long = submit(2, [7], 40, ignore_eos=True)
    loop.submit(submit(1, [7], 12, ignore_eos=True))
    loop.submit(long)
    while loop.scheduler.running + loop.scheduler.waiting == 2:
        loop.step()
    pool = loop.scheduler._running.blocks
    pool.give_back(pool.take(pool.free))  # and with that the first one's, behind which the other's are named
    loop.drain()
    assert loop.tokens(2) == solo(long)
    assert len(pool._cached) == 0


def test_the_end_of_a_prompt_gives_way_before_its_beginning() -> None:
    loop = CoreLoop(opened(slots=1, blocks=16, max_model_len=64), 1)
    served(loop, submit(1, text(40), 1))
    served(loop, submit(2, text(33, seed=2), 1))  # nine blocks, of which six were blank
    served(loop, submit(3, text(40), 1))
    assert loop.received[3].cached == 28


@pytest.mark.parametrize("credit", CREDITS)
def test_without_it_nothing_is_kept(credit: int) -> None:
    loop = CoreLoop(opened(), credit, prefix_caching=False)
    for request in (1, 2):
        ask = submit(request, text(20), 5, ignore_eos=True)
        assert served(loop, ask) == solo(ask)
        assert loop.received[request].cached == 0
    assert prefilled(loop.plans) == 40
    assert loop.scheduler.counters.cached_tokens == 0


def test_a_worker_that_comes_back_has_nothing_left() -> None:
    loop = CoreLoop(opened(slots=1), 2)
    served(loop, submit(1, text(20), 3))
    loop.submit(submit(2, text(20, seed=2), 20, ignore_eos=True))
    loop.plan()
    again = submit(3, text(20), 5, ignore_eos=True)
    loop.submit(again)
    loop.scheduler._running.cache.look_up(loop.scheduler._requests[1, 3])  # it remembers blocks of the lost worker
    loop.scheduler.lose_worker(loop.now)
    worker = opened(slots=2, session=78)
    loop.sent.clear()
    loop.model = StubModel(worker)
    loop.scheduler.reopen(worker, loop.now)
    loop.drain()
    assert loop.tokens(3) == solo(again)
    assert loop.received[3].cached == 0


def test_what_is_cached_is_forgotten_by_a_reset_and_its_blocks_are_blank() -> None:
    loop = CoreLoop(opened(), 2)
    for request in (1, 2):
        served(loop, submit(request, text(18, seed=request), 1))
    waiting = submit(3, text(18), 5, ignore_eos=True)
    loop.submit(waiting)
    loop.scheduler._running.cache.look_up(loop.scheduler._requests[1, 3])  # it remembers what is forgotten then
    assert loop.reset() == 2 * 4
    assert loop.reset() == 0
    assert len(loop.scheduler._running.blocks._cached) == 0
    assert loop.scheduler.free_blocks == 64
    loop.drain()
    assert loop.tokens(3) == solo(waiting)
    assert loop.received[3].cached == 0
    served(loop, submit(4, text(18), 1))
    assert loop.received[4].cached == 16, "what was computed since is found"


@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("moment", range(12))
def test_after_a_reset_nobody_finds_what_those_compute_who_had_begun(credit: int, moment: int) -> None:
    loop = CoreLoop(opened(max_batch_tokens=12), credit)
    asks = [submit(length, text(length, seed=length), 20, ignore_eos=True) for length in (17, 14, 3)]
    for ask in asks:
        loop.submit(ask)
    for event in range(moment):
        if event % 2 or loop.plan() is None:
            loop.settle()
    if moment % 3:
        loop.scheduler.catch_up()
    begun = [request.ask for request in loop.scheduler._running.requests()]
    loop.reset()
    loop.drain()
    for ask in asks:
        assert loop.tokens(ask.request) == solo(ask)
        served(loop, submit(100 + ask.request, [*ask.prompt.tolist(), *loop.tokens(ask.request)], 1))
        assert (loop.received[100 + ask.request].cached == 0) == (ask in begun)


def test_a_plan_has_no_more_table_entries_than_there_are_blocks_however_many_are_shared() -> None:
    loop = CoreLoop(opened(slots=8, blocks=40), 2)  # the stub refuses such a plan, as the worker does
    served(loop, submit(0, text(49), 1))
    asks = [submit(request, [*text(48), request], 2, ignore_eos=True) for request in range(1, 9)]
    for ask in asks:
        loop.submit(ask)
    loop.drain()
    assert [loop.tokens(ask.request) for ask in asks] == [solo(ask) for ask in asks]
    assert {loop.received[ask.request].cached for ask in asks} == {48}


@pytest.mark.parametrize("credit", CREDITS)
def test_requests_that_say_the_same_side_by_side_keep_one_copy_of_it(credit: int) -> None:
    loop = CoreLoop(opened(), credit)
    asks = [submit(request, [7], 30, ignore_eos=True) for request in range(3)]
    for ask in asks:
        loop.submit(ask)
    loop.drain()
    said = solo(asks[0])
    assert [loop.tokens(ask.request) for ask in asks] == [said] * 3
    follow_up = submit(4, [7, *said, 1], 5, ignore_eos=True)
    assert served(loop, follow_up) == solo(follow_up)
    assert loop.received[4].cached == 28
    assert len(loop.scheduler._running.blocks._cached) == 7 + 2, (
        "two copies were given up, and the last prompt was added"
    )


def test_a_long_system_prompt_is_computed_once_for_64_requests() -> None:
    """At least five times fewer tokens are computed; here it is 38 times."""
    system = [(place * place) % 90 for place in range(1000)]
    asks = [submit(request, [*system, request % 90, request // 90, 3], 8, ignore_eos=True) for request in range(64)]
    computed = {}
    for caching in (True, False):
        worker = opened(slots=32, blocks=4096, block_size=16, max_batch_tokens=2048, max_model_len=2048)
        loop = CoreLoop(worker, 2, counting, prefix_caching=caching)
        for ask in asks:
            loop.scheduler.submit(1, ask, 0.0)
        loop.drain()
        computed[caching] = loop.scheduler.counters.prefill_tokens
        assert {len(loop.tokens(ask.request)) for ask in asks} == {8}
    assert computed == {True: 1003 + 63 * 11, False: 64 * 1003}
