"""The scheduler's core under whatever may happen to it, in any order: hypothesis looks for the order that breaks it.

An example that fails is printed as a scenario, one event a line, and made as short as it can be:

    state = CoreEvents()
    state.start(credit=2, slots=1, ...)
    state.submit(own=1, max_tokens=2, ...)
    state.plan(worker=0)
    state.abort(which=0)
    state.teardown()
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from protocol.messages import Finish, Submit
from scheduler_proc.core import MAX_DEATHS, MAX_STRIKES, Scheduler
from scheduler_proc.policy import PolicyName, PriorityFirst, policy_of
from tests.core_loop import CLIENT, solo, submit
from tests.fleet_loop import FleetLoop
from tests.stub_model import EOS, VOCAB, hashed, opened

POLICIES: list[PolicyName] = ["fcfs", "priority", "shortest-prefill-first", "round-robin"]
WORKERS = st.sampled_from([0, 1])
MOST_REQUESTS = 16
STOPS = list(range(60, 70))

SEEN: Counter[str] = Counter()
"""What has happened in all examples of a run."""


class CoreEvents(RuleBasedStateMachine):
    """A fleet, and what may happen to it: clients come and give up, steps fail, workers die, time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.asks: list[Submit] = []
        self.aborted: set[int] = set()
        self.lost: Counter[int] = Counter()  # how often each request lost its slot to another
        self.failures = self.deaths = 0
        self.without_worker = False  # at any time
        self.went_well = True

    @contextlib.contextmanager
    def event(self) -> Iterator[None]:
        """What comes after an event that went wrong says nothing more."""
        self.went_well = False
        yield
        self.went_well = True

    @initialize(
        credit=st.sampled_from([1, 2, 3, 5]),
        slots=st.integers(1, 6),
        block_size=st.sampled_from([1, 3, 4, 16]),
        context=st.sampled_from([20, 40, 64]),
        spare_blocks=st.integers(0, 9),
        spare_tokens=st.sampled_from([0, 3, 30]),
        most_prefill=st.sampled_from([None, 3]),
        policy=st.sampled_from(POLICIES),
    )
    def start(
        self,
        credit: int,
        slots: int,
        block_size: int,
        context: int,
        spare_blocks: int,
        spare_tokens: int,
        most_prefill: int | None,
        policy: PolicyName,
    ) -> None:
        worker = opened(
            slots=slots,
            blocks=-(-(context - 1) // block_size) + spare_blocks,
            block_size=block_size,
            max_batch_tokens=slots + spare_tokens,
            max_model_len=context,
        )
        self.policy = policy_of(policy, 10.0 if policy == "priority" else None)
        self.loop = FleetLoop(worker, credit, policy=self.policy, max_prefill_tokens=most_prefill)
        with self.event():
            self.open_worker(0)

    @precondition(lambda self: len(self.asks) < MOST_REQUESTS)
    @rule(
        like=st.integers(0, MOST_REQUESTS),
        shared=st.integers(0, 40),
        own=st.integers(1, 20),
        max_tokens=st.integers(1, 30),
        hot=st.booleans(),
        stops=st.booleans(),
        timeout=st.sampled_from([0.0, 0.0, 30.0]),
        level=st.sampled_from([0, 1, -2, 7]),
        user=st.sampled_from(["Ann", "Bob"]),
    )
    def submit(
        self,
        like: int,
        shared: int,
        own: int,
        max_tokens: int,
        hot: bool,
        stops: bool,
        timeout: float,
        level: int,
        user: str,
    ) -> None:
        """A prompt of `shared` tokens of an earlier request, with its answer behind it, and some of its own."""
        context = self.loop.worker.max_model_len
        earlier = self.asks[like % len(self.asks)] if self.asks else None
        known = earlier.prompt.tolist() + solo(earlier, hashed, context) if earlier else []
        with self.event():
            self.accept(
                known[:shared] + self.own_tokens(own),
                max_tokens,
                temperature=float(hot),
                seed=len(self.asks),
                ignore_eos=not stops,
                stop_token_ids=STOPS if stops else [],
                timeout=timeout,
                priority=level,
                user=user,
            )

    @precondition(lambda self: len(self.asks) < MOST_REQUESTS)
    @rule(size=st.integers(1, 6))
    def crowd(self, size: int) -> None:
        """So many that want as long answers as there may be."""
        with self.event():
            for _ in range(size):
                self.accept(self.own_tokens(2), 64, ignore_eos=True)

    def own_tokens(self, count: int) -> list[int]:
        return [(7 * len(self.asks) + 3 * place) % VOCAB for place in range(count)]

    def accept(self, prompt: list[int], max_tokens: int, priority: int = 0, **what: Any) -> None:
        level = priority if isinstance(self.policy, PriorityFirst) else 0
        ask = submit(len(self.asks), prompt[: self.loop.worker.max_model_len - 1], max_tokens, priority=level, **what)
        self.asks.append(ask)
        self.loop.submit(ask)

    @precondition(lambda self: self.asks)
    @rule(which=st.integers(0, MOST_REQUESTS - 1))
    def abort(self, which: int) -> None:
        request = which % len(self.asks)
        with self.event():
            if self.loop.received[request].finish is Finish.RUNNING:
                self.aborted.add(request)
            self.loop.abort(request)

    @rule(worker=WORKERS)
    def plan(self, worker: int) -> None:
        with self.event():
            if worker in self.loop.models:
                self.loop.plan_of(worker)

    @rule(worker=WORKERS)
    def settle(self, worker: int) -> None:
        with self.event():
            self.loop.settle_of(worker)

    @rule(times=st.integers(1, 5))
    def turns(self, times: int) -> None:
        """So many turns in which nothing goes wrong."""
        with self.event():
            for _ in range(times):
                self.loop.turn()

    @rule(worker=WORKERS)
    def fail(self, worker: int) -> None:
        with self.event():
            if self.loop.flying.get(worker):
                self.failures += 1
                self.loop.fail_of(worker)

    @rule(withhold=st.booleans())
    def deliver(self, withhold: bool) -> None:
        with self.event():
            self.loop.deliver([CLIENT] if withhold else [])

    @rule(seconds=st.integers(1, 31))
    def wait(self, seconds: int) -> None:
        with self.event():
            self.loop.now += seconds
            self.loop.expire()

    @rule()
    def reset_prefix_cache(self) -> None:
        with self.event():
            self.loop.reset()

    @rule(worker=WORKERS, died=st.booleans())
    def lose_worker(self, worker: int, died: bool) -> None:
        with self.event():
            if worker in self.loop.models:
                self.deaths += died
                self.loop.flying[worker].clear()
                self.loop.lose(worker, died=died)
                self.without_worker |= not self.loop.models

    @rule(worker=WORKERS, fewer_slots=st.booleans())
    def worker_comes(self, worker: int, fewer_slots: bool) -> None:
        with self.event():
            if worker not in self.loop.models:
                self.open_worker(worker, slots=1 if fewer_slots else self.loop.worker.slots)

    def open_worker(self, number: int, **changes: int) -> None:
        self.loop.open(number, **changes)
        scheduler = self.loop.fleet._schedulers[number]
        planner, choose = scheduler._planner, scheduler._planner.victim
        planner.victim = lambda needy: self.victim(scheduler, needy, choose(needy))  # type: ignore[method-assign]

    def victim(self, scheduler: Scheduler, needy: int, chosen: int | None) -> int | None:
        """Judge by the rule in words who is to lose its slot to `needy`."""
        running, slots = scheduler._running, scheduler._running.slots
        place = {r.slot: (r.rank, r.order) for r in running.requests()}
        may_lose = [
            slot
            for slot in place
            if place[slot] > place[needy]
            and slots.planned_len[slot] + 1 < slots.final_len[slot]
            and not (running.request(slot).resumed and slots.settled_len[slot] == slots.known_len[slot])
        ]
        assert chosen == max(may_lose, key=place.__getitem__, default=None), "another's turn is later"
        if chosen is not None:
            self.lost[running.request(chosen).ask.request] += 1
        return chosen

    def teardown(self) -> None:
        if not self.went_well:
            return
        if not self.loop.models:
            self.open_worker(0)
        self.loop.run()
        for ask in self.asks:
            self.judge(ask)
        counters = [scheduler.counters for scheduler in self.loop.fleet._schedulers.values()]
        assert all(self.loop.fleet._schedulers[worker].running == 0 for worker in self.loop.models)
        assert all(each.free_blocks == each.worker.blocks for each in self.loop.fleet._schedulers.values())
        SEEN.update(
            events=self.loop.events,
            cached_tokens=sum(each.cached_tokens for each in counters),
            preemptions=sum(each.preemptions for each in counters),
            wasted_rows=sum(each.wasted_rows for each in counters),
            failures=self.failures,
            deaths=self.deaths,
        )

    def judge(self, ask: Submit) -> None:
        """A request has ended once, for a reason that there is, with the tokens that it has when it is alone."""
        received = self.loop.received[ask.request]
        expected = solo(ask, hashed, self.loop.worker.max_model_len)
        SEEN[received.finish.name] += 1
        assert self.lost[ask.request] <= ask.max_tokens
        match received.finish:
            case Finish.STOP | Finish.LENGTH:
                assert received.tokens == expected
                stopped = not ask.ignore_eos and expected[-1] in (EOS, *STOPS)
                assert received.finish is (Finish.STOP if stopped else Finish.LENGTH)
                return
            case Finish.ABORT:
                assert ask.request in self.aborted
            case Finish.TIMEOUT:
                assert ask.timeout
            case Finish.ERROR:
                assert self.failures >= MAX_STRIKES or self.deaths >= MAX_DEATHS or self.without_worker
            case _:
                raise AssertionError(f"request {ask.request} came to no end, or was refused")
        assert received.tokens == expected[: len(received.tokens)]


@pytest.mark.timeout(1200)  # a long run has twenty times as many examples
@pytest.mark.parametrize(("length", "least"), [(10, 0), (40, 20_000)], ids=["few", "many"])
def test_whatever_happens_every_request_ends_once_with_the_tokens_of_a_solo_run(length: int, least: int) -> None:
    """What shows in a few events is found there, and soon made readable; the rest takes many."""
    SEEN.clear()
    rules = settings(stateful_step_count=length, suppress_health_check=list(HealthCheck), report_multiple_bugs=False)
    run_state_machine_as_test(CoreEvents, settings=rules)
    assert SEEN["events"] >= least, SEEN
    for what in ("cached_tokens", "preemptions", "wasted_rows", "failures", "deaths", "STOP", "ABORT", "TIMEOUT"):
        assert SEEN[what] >= (5 if least else 0), f"{what}: {SEEN[what]}, too few to say anything"
