"""What /metrics says is what happened: every token, end and duration once, whatever way a request goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from frontend.config import ServeConfig
from frontend.tally import BOUNDS, Histogram
from protocol.codec import encode
from protocol.messages import Abort, AskTotals, Cancel, Finish, Pong, Submit, Totals, Unattached
from protocol.sockets import HEARTBEAT_SECONDS
from tests.core_loop import CoreLoop, submit
from tests.fleet_loop import FleetLoop
from tests.frontend_driver import ME, Driver, ids, only
from tests.http_driver import HttpDriver
from tests.stub_model import opened
from tests.stub_worker import StubWorker
from tests.test_http import error_of
from tests.test_scheduler_process import scheduler
from tests.test_worker_link import SESSION, Pair
from tests.thin_client import ThinClient
from tests.word_tokenizer import EOS, word, word_text

DOCUMENT = (Path(__file__).parent.parent / "docs" / "http.md").read_text(encoding="utf-8")
WORDS = ("Ġone", "Ġtwo", "ĠSTOP", "Ġthree")
ONE, TWO, STOP, THREE = (word(i) for i in range(len(WORDS)))

TOTALS = Totals(
    session=100,
    running=3,
    waiting=2,
    blocks_used=5,
    blocks=20,
    steps=1000,
    rows=9000,
    wasted_rows=40,
    failed_steps=1,
    stale_results=6,
    preemptions=7,
    prefill_tokens=800,
    cached_tokens=200,
    busy=12.5,
    plan_bytes=16_000,
)

Numbers = dict[str, float]
Serve = Callable[..., HttpDriver]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Make drivers; nothing of a request may be left in them at the end."""
    drivers: list[HttpDriver] = []

    def make(script: Callable[[Submit], list[int]] = lambda _: [ONE, TWO, EOS], **settings: Any) -> HttpDriver:
        drivers.append(HttpDriver(word_text(*WORDS), script, vocab_size=300, max_model_len=64, **settings))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.check()
        await driver.client.aclose()


async def told(it: HttpDriver) -> list[Sample]:
    answer = await it.client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return [sample for family in text_string_to_metric_families(answer.text) for sample in family.samples]


async def numbers(it: HttpDriver) -> Numbers:
    """Each number by its name and the label that tells it from others, if one does."""
    found: Numbers = {}
    for sample in await told(it):
        name = sample.name.removeprefix("stepahead:")
        told_by = [sample.labels[label] for label in ("finished_reason", "le") if label in sample.labels]
        found["/".join([name, *told_by])] = sample.value
    return found


# ---------------------------------------------------------------- what the frontend counts


async def test_tokens_ends_and_durations_of_an_answer_are_counted_once(serve: Serve) -> None:
    it = serve()
    for path, body in (("completions", {"prompt": "hello"}), ("chat/completions", {"messages": [{"role": "user"}]})):
        before = await numbers(it)
        usage = (await it.post(path, **body, n=2)).json()["usage"]
        after = await numbers(it)
        assert after["prompt_tokens_total"] - before["prompt_tokens_total"] == usage["prompt_tokens"]
        assert after["generation_tokens_total"] - before["generation_tokens_total"] == usage["completion_tokens"] == 6
        assert after["request_prompt_tokens_sum"] - before["request_prompt_tokens_sum"] == 2 * usage["prompt_tokens"]
        assert after["request_generation_tokens_sum"] - before["request_generation_tokens_sum"] == 6
        grown = {name: after[name] - before[name] for name in after if after[name] != before[name]}
        assert grown["request_success_total/stop"] == 2
        assert grown["time_to_first_token_seconds_count"] == grown["e2e_request_latency_seconds_count"] == 2
        assert grown["inter_token_latency_seconds_count"] == 4


def test_durations_are_those_of_the_clock_and_tokens_that_come_together_come_at_an_even_pace() -> None:
    it = Driver(word_text(*WORDS))
    it.generate()
    (ask,) = it.submitted()
    for seconds, offset, tokens in ((0.5, 0, [ONE]), (2.0, 1, [TWO, ONE]), (1.0, 3, [TWO])):
        it.now += seconds
        it.tokens(ask, offset, tokens)
    it.now += 3.0
    it.tokens(ask, 4, [], Finish.LENGTH)
    tally = it.core.tally
    assert (tally.first_token.total, tally.first_token.cumulative[-1]) == (0.5, 1)
    assert (tally.between_tokens.total, tally.between_tokens.cumulative[-1]) == (3.0, 3)
    assert (tally.whole.total, tally.whole.cumulative[-1]) == (3.5, 1)
    assert (tally.per_token.total, tally.per_token.cumulative[-1]) == (1.0, 1)
    assert (tally.prompt_lengths.total, tally.answer_lengths.total) == (3, 4)
    assert dict(tally.ended) == {Finish.LENGTH: 1}


def test_pieces_of_streams_are_counted_and_those_that_a_slow_reader_gets_in_one() -> None:
    it = Driver(word_text(*WORDS))
    it.generate(1)
    it.generate(2, stream=False)
    streamed, whole = it.submitted()
    it.tokens(streamed, 0, [ONE])
    it.chunks()
    tally = it.core.tally
    assert (tally.pieces, tally.crowded_pieces) == (1, 0)
    it.tokens(streamed, 1, [TWO])
    it.tokens(streamed, 2, [ONE])  # before its reader took the last one
    it.tokens(whole, 0, [ONE, TWO], Finish.LENGTH)
    it.chunks()
    assert (tally.pieces, tally.crowded_pieces) == (2, 1)
    it.tokens(streamed, 3, [], Finish.LENGTH)
    it.chunks()
    assert (tally.pieces, tally.crowded_pieces) == (2, 1), "a piece without a token is none"


async def test_pieces_of_streams_are_told(serve: Serve) -> None:
    it = serve()
    before = await numbers(it)
    await it.events("completions", prompt="hello")
    after = await numbers(it)
    assert after["stream_pieces_total"] - before["stream_pieces_total"] == 3
    assert after["stream_pieces_of_several_tokens_total"] == before["stream_pieces_of_several_tokens_total"] == 0


def phases(it: Driver) -> list[tuple[float, int]]:
    """Seconds and number of queue, prefill, decode and inference."""
    tally = it.core.tally
    histograms = (tally.queue, tally.prefill, tally.decode, tally.inference)
    return [(histogram.total, histogram.cumulative[-1]) for histogram in histograms]


def test_the_parts_of_an_answers_time_are_those_that_its_scheduler_tells() -> None:
    it = Driver(word_text(*WORDS))
    it.generate(1, n=2)
    first, second = it.submitted()
    it.tokens(first, 0, [ONE, TWO], Finish.LENGTH, timing=(0.25, 1.0, 3.0, 3.0))
    it.tokens(second, 0, [ONE], Finish.STOP, timing=(0.5, 2.0, 2.0, 2.5))
    assert phases(it) == [(0.75, 2), (2.25, 2), (2.0, 2), (4.25, 2)]


def test_of_what_a_stop_string_ended_they_come_with_the_schedulers_last_word() -> None:
    it = Driver(word_text(*WORDS))
    it.generate(1, stop=("STOP",))
    (ask,) = it.submitted()
    it.tokens(ask, 0, [ONE, STOP])
    assert phases(it) == [(0, 0)] * 4
    for _ in range(2):  # the second time it is about nobody
        it.tokens(ask, 2, [TWO], Finish.ABORT, timing=(0.25, 1.0, 3.0, 3.5))
        assert phases(it) == [(0.25, 1), (0.75, 1), (2.0, 1), (2.75, 1)]
    it.generate(2, stop=("STOP",))
    it.tokens(it.submitted()[0], 0, [STOP])
    it.scheduler(0, Unattached(5))
    assert not it.core.links[0].stopped, "nothing more comes of it"


@pytest.mark.parametrize("how", ["aborted", "resubmitted", "never computed"])
def test_what_has_no_whole_time_at_one_scheduler_has_no_parts(how: str) -> None:
    it = Driver(word_text(*WORDS))
    it.generate(1)
    (ask,) = it.submitted()
    timing: Sequence[float] = (0.25, 1.0, 3.0, 3.5)
    known = 0
    if how == "aborted":
        it.client(Cancel(1))
    elif how == "resubmitted":
        it.tokens(ask, 0, [ONE])
        it.scheduler(0, Unattached(5))
        it.attach()
        (ask,), known = it.submitted(), 1
    else:
        timing = (-1, -1, -1, 0.0)
    it.tokens(ask, known, [], Finish.LENGTH, timing=timing)
    assert phases(it) == [(0, 0)] * 4


async def test_no_answer_ends_for_a_numbers_sake(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    it = serve()

    def broken(*_: object) -> None:
        raise ZeroDivisionError("no such bucket")

    monkeypatch.setattr(Histogram, "observe", broken)
    answer = (await it.post("completions", prompt="hello")).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 3
    assert "a number for /metrics was dropped, no. 1: ZeroDivisionError('no such bucket')" in caplog.text


def test_two_seconds_after_all_have_gone_nothing_runs_or_waits() -> None:
    it, loop = Driver(word_text(*WORDS)), FleetLoop(opened(slots=2))
    loop.open(0)
    for request in range(4):
        it.generate(request, n=2, max_tokens=50, ignore_eos=True)

    def let_scheduler_hear() -> None:
        for message in it.said_to_scheduler():
            if isinstance(message, Submit):
                loop.fleet.submit(7, message, it.now)
            elif isinstance(message, Abort):
                for number in message.request.tolist():
                    loop.fleet.abort(7, number, it.now)
            elif isinstance(message, AskTotals):
                it.scheduler(0, replace(loop.fleet.totals(0.0, 0), session=100))

    let_scheduler_hear()
    loop.turn()
    it.wait(HEARTBEAT_SECONDS, alive=[0])
    let_scheduler_hear()
    totals = it.core.links[0].totals
    assert totals is not None
    assert (totals.running, totals.waiting) == (2, 6)
    it.core.client_gone(ME)
    gone = it.now
    while totals.running + totals.waiting + totals.blocks_used:
        it.wait(0.25, alive=[0])
        let_scheduler_hear()
        totals = it.core.links[0].totals
        assert totals is not None
        assert it.now - gone < 2.0


def test_a_bucket_has_what_is_at_most_its_bound() -> None:
    histogram = Histogram()
    for seconds in (0.0, 0.001, 0.0011, 400.0, 1e6):
        histogram.observe(seconds)
    histogram.observe(2.5, 3)
    counts = dict(zip([*BOUNDS, float("inf")], histogram.cumulative, strict=True))
    assert (counts[0.001], counts[0.0025], counts[1.0], counts[2.5]) == (2, 3, 3, 6)
    assert (counts[250.0], counts[500.0], counts[float("inf")]) == (6, 7, 8)
    assert histogram.total == pytest.approx(0.0021 + 400 + 1e6 + 7.5)
    assert list(BOUNDS) == sorted(BOUNDS)


@pytest.mark.parametrize("how", ["cancel", "gone", "stop string", "timeout", "error", "refused"])
def test_whatever_ends_an_answer_it_counts_as_far_as_it_came_and_ends_once(how: str) -> None:
    it = Driver(word_text(*WORDS))
    it.generate(1, n=2, stop=("STOP",))
    first, second = it.submitted()
    it.tokens(first, 0, [ONE, TWO])
    it.tokens(second, 0, [TWO], Finish.LENGTH)
    ends = {"timeout": Finish.TIMEOUT, "error": Finish.ERROR, "refused": Finish.REFUSED}
    if how == "cancel":
        it.client(Cancel(1))
        it.client(Cancel(1))
    elif how == "gone":
        it.core.client_gone(ME)
    elif how == "stop string":
        it.tokens(first, 2, [STOP, ONE, ONE])
    else:
        it.tokens(first, 2, [], ends[how], error="why" if how != "timeout" else "")
    it.tokens(first, 2, [ONE, ONE], Finish.LENGTH)  # what was on its way
    tally, counters = it.core.tally, it.core.counters
    end = ends.get(how, Finish.STOP if how == "stop string" else Finish.ABORT)
    assert dict(tally.ended) == {Finish.LENGTH: 1, end: 1}
    assert tally.generation_tokens == 3 + (how == "stop string")
    assert tally.prompt_tokens == 3
    assert tally.first_token.cumulative[-1] == 2
    assert tally.whole.cumulative[-1] == 1 + (how == "stop string")
    assert counters["refused"] == (how == "refused")


def test_a_refusal_of_samples_is_one_refusal_and_no_abort() -> None:
    it = Driver(word_text(*WORDS))
    it.generate(1, n=3)
    it.tokens(it.submitted()[1], 0, [], Finish.REFUSED, error="why")
    it.generate(2, token_ids=ids(*range(64)))
    assert dict(it.core.tally.ended) == {Finish.REFUSED: 3}
    assert it.core.counters["refused"] == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_is_an_abort_and_no_number_ever_falls(serve: Serve, stream: bool) -> None:
    it = serve(lambda _: [ONE, TWO] * 30, pace=0.01)
    asking = asyncio.create_task(it.post("completions", prompt="hello", max_tokens=50, n=3, stream=stream))
    before: Numbers = {}
    while not before.get("generation_tokens_total"):
        before = await numbers(it)
        await it.idle()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await it.idle()
    after = await numbers(it)
    assert after["request_success_total/abort"] == 3
    assert after["e2e_request_latency_seconds_count"] == 0
    assert all(after[name] >= before[name] for name in before)


async def test_every_way_to_end_is_told_before_there_is_one(serve: Serve) -> None:
    found = await numbers(serve())
    ends = {name: value for name, value in found.items() if name.startswith("request_success_total/")}
    assert ends == {f"request_success_total/{reason}": 0 for reason in ("stop", "length", "abort", "error", "timeout")}


# ---------------------------------------------------------------- what schedulers have told


async def test_what_schedulers_count_is_told_of_each_by_itself(serve: Serve) -> None:
    it = serve(schedulers=2)
    it.it.scheduler(0, TOTALS)
    it.it.scheduler(1, replace(TOTALS, session=101, running=9, blocks=0, blocks_used=0))
    found = {
        (sample.name.removeprefix("stepahead:"), sample.labels.get("engine")): sample.value for sample in await told(it)
    }
    of_first = {name: value for (name, engine), value in found.items() if engine == "0"}
    assert of_first == {
        "num_requests_running": 3,
        "num_requests_waiting": 2,
        "kv_cache_usage_perc": 0.25,
        "kv_cache_blocks": 20,
        "kv_cache_blocks_used": 5,
        "prefix_cache_queries_total": 1000,
        "prefix_cache_hits_total": 200,
        "num_preemptions_total": 7,
        "steps_total": 1000,
        "step_rows_total": 9000,
        "plan_bytes_total": 16_000,
        "wasted_rows_total": 40,
        "failed_steps_total": 1,
        "stale_results_total": 6,
        "device_busy_seconds_total": 12.5,
    }
    assert found["num_requests_running", "1"] == 9
    assert found["kv_cache_usage_perc", "1"] == 0
    assert all(sample.labels["model_name"] == "words" for sample in await told(it) if "healthy" not in sample.name)


async def test_of_a_scheduler_that_is_gone_or_another_than_it_was_nothing_old_is_told(serve: Serve) -> None:
    it = serve()
    it.it.scheduler(0, replace(TOTALS, session=99))
    assert "num_requests_running" not in await numbers(it), "it is not the one that is attached"
    it.it.scheduler(0, TOTALS)
    found = await numbers(it)
    assert (found["num_requests_running"], found["healthy"]) == (3, 1)
    it.it.scheduler(0, Unattached(5))
    found = await numbers(it)
    assert "num_requests_running" not in found
    assert found["healthy"] == 0
    assert "generation_tokens_total" in found
    it.it.scheduler(0, TOTALS)
    assert "num_requests_running" not in await numbers(it)


async def test_it_is_told_before_a_scheduler_is_there_and_while_it_shuts_down(serve: Serve) -> None:
    it = serve(attach=False)
    assert await numbers(it) == {"healthy": 0}
    other = serve()
    other.it.scheduler(0, Pong(100, 0, trouble="the worker is silent"))
    assert (await numbers(other))["healthy"] == 0
    last = serve()
    last.it.core.draining = True
    assert (await numbers(last))["healthy"] == 0


def test_a_scheduler_is_asked_once_a_second_and_not_again_before_it_takes_that() -> None:
    it = Driver(word_text(*WORDS))
    it.wait(3 * HEARTBEAT_SECONDS, alive=[0])
    assert len(only(it.said_to_scheduler(), AskTotals)) == 1
    asked = 0
    for _ in range(12):
        it.wait(HEARTBEAT_SECONDS / 4, alive=[0])
        asked += len(only(it.said_to_scheduler(), AskTotals))
    assert asked == 3


async def test_whoever_prefers_openmetrics_gets_it_and_the_key_is_needed_as_elsewhere(serve: Serve) -> None:
    it = serve(config=ServeConfig(api_key="secret"))
    error_of(await it.client.get("/metrics"), 401)
    wants = {"authorization": "Bearer secret", "accept": "application/openmetrics-text; version=1.0.0"}
    answer = await it.client.get("/metrics", headers=wants)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


@pytest.mark.parametrize("accept", ["text/plain; version=abc", "application/openmetrics-text; version=1..0", "*/*;q=é"])
async def test_whoever_prefers_what_is_none_gets_the_plain_form(serve: Serve, accept: str) -> None:
    told = await serve().client.get("/metrics", headers={b"accept": accept.encode()})
    assert told.status_code == 200
    assert told.headers["content-type"].startswith("text/plain")


async def test_the_document_names_every_number_and_no_other(serve: Serve) -> None:
    it = serve()
    it.it.scheduler(0, TOTALS)
    text = (await it.client.get("/metrics")).text
    there = {family.name.removeprefix("stepahead:") for family in text_string_to_metric_families(text)}
    section = DOCUMENT.partition("\n## Metrics\n")[2].partition("\n## ")[0]
    _, *rows = [line for line in section.splitlines() if line.startswith("| `")]
    named = [name.strip("`") for line in rows for name in line.split("|")[1].replace(" ", "").split(",")]
    assert sorted(name.removesuffix("_total") for name in named) == sorted(there)


# ---------------------------------------------------------------- where the numbers come from


def test_the_totals_are_the_sums_over_all_workers_lost_ones_too() -> None:
    loop = FleetLoop()
    loop.open(0)
    loop.open(1)
    for request in range(6):
        loop.ask(request)
    for _ in range(3):
        loop.turn()
    totals = loop.fleet.totals(2.5, 600)
    load = loop.fleet.load(0)
    assert (totals.running, totals.waiting, totals.blocks) == (load.running, load.waiting, load.blocks)
    assert (totals.blocks_used, totals.busy, totals.plan_bytes) == (load.blocks_used, 2.5, 600)
    assert totals.running == 6
    loop.lose(0, died=True)
    loop.run()
    after = loop.fleet.totals(3.0, 700)
    for field in fields(Totals):
        if field.name in ("steps", "rows", "wasted_rows", "prefill_tokens", "cached_tokens", "busy"):
            assert getattr(after, field.name) >= getattr(totals, field.name)
    counted = [loop.fleet.counters(worker) for worker in (0, 1)]
    assert after.steps == sum(each.steps for each in counted) > totals.steps
    assert after.prefill_tokens == sum(each.prefill_tokens for each in counted)
    assert after.running == after.waiting == after.blocks_used == 0


def test_answers_that_come_to_nothing_are_counted() -> None:
    loop = CoreLoop(opened())
    loop.submit(submit(1, [1, 2, 3], 8, ignore_eos=True))
    loop.plan()
    _, result = loop.sent[0]
    assert not loop.scheduler.settle(replace(result, step=99), 0.0)
    assert loop.scheduler.counters.dropped_answers == 1


def test_busy_seconds_of_a_worker_go_on_over_sessions_and_only_its_own_count(tmp_path: Path) -> None:
    pair = Pair(f"ipc://{tmp_path / 'worker'}")
    assert pair.link.busy == 0
    pair.link.ask_busy()
    pair.hear()
    pair.answer(Pong(SESSION, 0, busy=2.0), 0.1)
    pair.answer(Pong(SESSION + 1, 0, busy=9.0), 0.2)
    assert pair.link.busy == 2.0
    pair.link.lose("it is gone")
    pair.link.ask_busy()  # of nobody
    assert pair.link.busy == 2.0
    pair.open(SESSION + 5, 1.0)
    pair.answer(Pong(SESSION + 5, 0, busy=0.5), 1.1)
    assert pair.link.busy == 2.5
    pair.close()


@pytest.mark.processes
def test_a_scheduler_process_tells_what_it_has_counted(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path / 'worker'}"
    with StubWorker(address) as worker, scheduler(tmp_path, address) as bound, ThinClient(bound) as client:
        for request in (1, 2):
            client.submit(submit(request, list(range(6, 26)), 5, ignore_eos=True))
            client.finish(request)
        client.say(AskTotals())
        totals = client.expect(Totals)
        assert totals.session == client.attached.session
        assert totals.steps >= len(worker.plans) > 0
        assert (totals.running, totals.waiting, totals.blocks) == (0, 0, worker.worker.blocks)
        assert (totals.cached_tokens, totals.prefill_tokens) == (16, 24)
        assert totals.plan_bytes >= sum(len(encode(plan)) for plan in worker.plans) > 0
