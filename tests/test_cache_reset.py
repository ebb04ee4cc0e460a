"""POST /reset_prefix_cache: 200 once every scheduler has forgotten what it had cached, and never before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import frontend.http.cache
from frontend.config import ServeConfig
from frontend.http.cache import MOST_RESETS
from protocol.messages import PrefixCacheReset, ResetPrefixCache, Unattached
from tests.core_loop import submit
from tests.fleet_loop import FleetLoop
from tests.frontend_driver import only
from tests.http_driver import HttpDriver
from tests.http_server import HttpServer
from tests.stub_scheduler import CACHED_BLOCKS, StubScheduler
from tests.stub_worker import StubWorker
from tests.test_http import error_of
from tests.test_scheduler_process import scheduler
from tests.thin_client import ThinClient
from tests.word_model import write_word_model
from tests.word_tokenizer import EOS, word_text

PATH = "/reset_prefix_cache"

Serve = Callable[..., HttpDriver]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Make drivers; nothing of a request may be left in them at the end."""
    drivers: list[HttpDriver] = []

    def make(**settings: Any) -> HttpDriver:
        drivers.append(HttpDriver(word_text(), lambda _: [EOS], **settings))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.check()
        await driver.client.aclose()


async def ask(it: HttpDriver) -> asyncio.Task[Any]:
    """Ask, and wait until the schedulers have heard of it."""
    before = len(it.resets)
    task = asyncio.create_task(it.client.post(PATH))
    while len(it.resets) == before and not task.done():
        await asyncio.sleep(0)
    return task


async def test_the_answer_waits_for_every_scheduler_and_has_the_blocks_of_all(serve: Serve) -> None:
    it = serve(schedulers=2)
    task = await ask(it)
    (number,) = it.resets
    assert only(it.it.said_to_scheduler(1), ResetPrefixCache) == [ResetPrefixCache(number)]
    for stranger in (PrefixCacheReset(100, number + 1, 9), PrefixCacheReset(99, number, 9)):
        it.it.scheduler(1, stranger)
    for _ in range(2):  # the second says nothing by it
        it.it.scheduler(0, PrefixCacheReset(100, number, 3))
        await it.idle()
        assert not task.done()
    it.it.scheduler(1, PrefixCacheReset(101, number, 4))
    answer = await task
    assert (answer.status_code, answer.json()) == (200, {"blocks": 7})
    it.it.scheduler(1, PrefixCacheReset(101, number, 4))


async def test_of_several_each_gets_the_answer_to_its_own(serve: Serve) -> None:
    it = serve()
    tasks = [await ask(it), await ask(it)]
    for number, blocks in zip(reversed(it.resets), (2, 1), strict=True):
        it.it.scheduler(0, PrefixCacheReset(100, number, blocks))
    assert [(await task).json() for task in tasks] == [{"blocks": 1}, {"blocks": 2}]


async def test_a_scheduler_that_does_not_answer_in_time_is_named_in_a_503(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert frontend.http.cache.ANSWER_SECONDS == 1
    monkeypatch.setattr(frontend.http.cache, "ANSWER_SECONDS", 0.02)
    it = serve(schedulers=2)
    task = await ask(it)
    it.it.scheduler(0, PrefixCacheReset(100, it.resets[0], 3))
    error = error_of(await task, 503)
    assert "scheduler 1:" in error["message"]
    assert "scheduler 0" not in error["message"]
    it.it.scheduler(1, PrefixCacheReset(101, it.resets[0], 3))  # too late for anybody


async def test_where_a_scheduler_is_missing_none_is_asked(serve: Serve) -> None:
    it = serve(schedulers=2)
    it.it.scheduler(1, Unattached(101))
    assert "scheduler 1 is not attached" in error_of(await it.client.post(PATH), 503)["message"]
    await it.idle()
    assert it.resets == []
    error_of(await serve(attach=False).client.post(PATH), 503)


async def test_more_than_can_be_meant_are_not_asked(serve: Serve) -> None:
    it = serve()
    tasks = [await ask(it) for _ in range(MOST_RESETS)]
    assert str(MOST_RESETS) in error_of(await it.client.post(PATH), 503)["message"]
    for number in it.resets:
        it.it.scheduler(0, PrefixCacheReset(100, number, 0))
    assert {(await task).status_code for task in tasks} == {200}


async def test_it_needs_the_key_and_no_page_of_another_site_may_ask(serve: Serve) -> None:
    error_of(await serve(config=ServeConfig(api_key="secret")).client.post(PATH), 401)
    it = serve()
    error_of(await it.client.post(PATH, headers={"sec-fetch-site": "cross-site"}), 403)
    error_of(await it.client.post(PATH, headers={"origin": "http://evil.example"}), 403)
    assert it.resets == []


def test_all_workers_forget_and_a_lost_one_has_nothing_to_forget() -> None:
    loop = FleetLoop()
    for number in (0, 1):
        loop.open(number)
    for request in range(4):
        loop.ask(request)
    loop.run()
    kept = [loop.fleet._schedulers[number]._running.blocks for number in (0, 1)]
    found = [len(blocks._cached) for blocks in kept]
    assert all(found)
    loop.lose(1)
    assert loop.fleet.reset_prefix_cache() == found[0]
    loop.open(1)
    assert loop.fleet.reset_prefix_cache() == 0
    loop.fleet.check()


@pytest.mark.processes
def test_a_scheduler_process_forgets_what_it_has_computed_and_says_how_much(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path / 'worker'}"
    with StubWorker(address), scheduler(tmp_path, address) as bound, ThinClient(bound) as client:
        for request in (1, 2):
            client.submit(submit(request, list(range(6, 26)), 5, ignore_eos=True))
            client.finish(request)
            client.say(ResetPrefixCache(40 + request))
            answer = client.expect(PrefixCacheReset)
            assert answer == PrefixCacheReset(client.attached.session, 40 + request, 24 // 4)
            assert client.received[request].cached == 0


@pytest.mark.processes
def test_it_is_answered_over_http_or_within_a_second_it_is_said_why_not(tmp_path: Path) -> None:
    model = write_word_model(tmp_path / "model")
    with (
        StubScheduler(f"ipc://{tmp_path / 'scheduler'}", lambda _: [EOS], eos=(EOS,)) as stub,
        HttpServer(tmp_path, model, stub.address) as server,
    ):
        answer = server.client.post(PATH)
        assert (answer.status_code, answer.json()) == (200, {"blocks": CACHED_BLOCKS})
        stub.fall_silent()
        assert stub.address in error_of(server.client.post(PATH, timeout=5.0), 503)["message"]
