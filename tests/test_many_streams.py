"""Hundreds of streams at once, of which some are left by their clients: nothing is lost, and nothing of them stays."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from client import AsyncClient
from frontend.config import FrontendConfig, ServeConfig, TextConfig
from protocol.endpoints import PrivateDirectory
from protocol.messages import Submit
from stepahead.family import Family
from stepahead.frontends import start_frontends
from stepahead.progress import Progress
from tests.http_server import free_port
from tests.stub_scheduler import StubScheduler
from tests.word_model import write_word_model
from tests.word_tokenizer import EOS, word

WORDS = tuple(f"Ġword{number}" for number in range(50))
TOKENS = 20
LEFT_AFTER = 3
"""Pieces that a client takes before it leaves."""

pytestmark = pytest.mark.processes


def tokens_of(number: int, count: int) -> list[int]:
    """What the answer to request `number` is made of: no two are alike."""
    return [word((number * 7 + at * (1 + number // len(WORDS))) % len(WORDS)) for at in range(count)]


def text_of(number: int, tokens: int = TOKENS) -> str:
    return "".join(WORDS[token - word(0)].replace("Ġ", " ") for token in tokens_of(number, tokens))


def script(submit: Submit) -> list[int]:
    first, second = submit.prompt[-2:].tolist()
    return tokens_of(256 * first + second, submit.max_tokens)


@dataclass
class System:
    """Some frontends as one, before a scheduler that is a stub."""

    scheduler: StubScheduler
    family: Family
    address: str
    url: str

    def descriptors(self) -> list[int]:
        return [psutil.Process(child.process.pid).num_fds() for child in self.family.children]


@pytest.fixture
def system(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[System]:
    model = write_word_model(tmp_path / "model", *WORDS)
    run, family, tell = PrivateDirectory(tmp_path), Family(), Progress()
    serve = ServeConfig(port=free_port(), drain_timeout=30.0)
    scheduler = StubScheduler(run.address("scheduler"), script, max_model_len=100_000, eos=(EOS,))
    config = FrontendConfig(scheduler=(scheduler.address,), bind=run.address("clients"), model=str(model))
    try:
        start_frontends(family, request.param, config, TextConfig(), serve, run)
        while not family.ready:
            assert family.listen(20.0, tell) is None
        yield System(scheduler, family, config.bind, f"http://127.0.0.1:{serve.port}")
        for child in family.children:
            child.ask_to_end()
        deadline = time.monotonic() + 10.0
        while not all(child.drained for child in family.children):  # at once: nobody is owed anything
            assert family.listen(deadline - time.monotonic(), tell) is None
        for child in family.children:
            child.ask_to_end(signal.SIGTERM)
            assert child.process.wait(10) == 0
    finally:
        family.stop()
        scheduler.close()
        run.remove()


def leaves(number: int) -> bool:
    return number % 10 == 3


def length(number: int) -> int:
    return 50_000 if leaves(number) else TOKENS


async def over_http(client: httpx.AsyncClient, number: int) -> str:
    body = {"prompt": [*divmod(number, 256)], "max_tokens": length(number), "stream": True, "ignore_eos": True}
    text, pieces = "", 0
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
                pieces += 1
            if leaves(number) and pieces == LEFT_AFTER:
                break  # and its connection is closed
    return text


async def over_zmq(client: AsyncClient, number: int) -> str:
    text, pieces = "", 0
    async with client.stream(divmod(number, 256), max_tokens=length(number), ignore_eos=True) as answer:
        async for piece in answer:
            text += piece.text
            pieces += 1
            if leaves(number) and pieces == LEFT_AFTER:
                break
    return text


def ends(system: System) -> dict[str, Any]:
    """How answers have ended, as /metrics says on a connection of its own."""
    lines = httpx.get(f"{system.url}/metrics", verify=False).text.splitlines()
    told = [line.split() for line in lines if line.startswith("stepahead:request_success_total")]
    return {name.partition('reason="')[2].partition('"')[0]: float(value) for name, value in told}


async def ask_all(system: System, count: int, over: str) -> list[str]:
    if over == "HTTP":
        everybody = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=system.url, limits=everybody, timeout=50.0, verify=False) as client:
            return await asyncio.gather(*(over_http(client, number) for number in range(count)))
    clients = [AsyncClient(system.address) for _ in range(4)]
    try:
        return await asyncio.gather(*(over_zmq(clients[number % 4], number) for number in range(count)))
    finally:
        for each in clients:
            await each.aclose()


MANY = pytest.param(500, marks=[pytest.mark.long, pytest.mark.timeout(300)], id="500")


@pytest.mark.parametrize("count", [40, MANY])
@pytest.mark.parametrize(("system", "over"), [(2, "HTTP"), (2, "ZeroMQ")], ids=["HTTP", "ZeroMQ"], indirect=["system"])
def test_who_stays_has_every_token_and_of_who_leaves_nothing_stays(system: System, over: str, count: int) -> None:
    before = system.descriptors()
    texts = asyncio.run(ask_all(system, count, over))
    left = [number for number in range(count) if leaves(number)]
    stayed = [number for number in range(count) if not leaves(number)]
    assert [texts[number] for number in stayed] == [text_of(number) for number in stayed]
    for number in left:
        assert (words := texts[number].count(" ")) >= LEFT_AFTER
        assert texts[number] == text_of(number, words)
    deadline = time.monotonic() + 10.0
    while system.scheduler.running or system.descriptors() != before:
        assert time.monotonic() < deadline, (system.scheduler.running, system.descriptors(), before)
        time.sleep(0.05)
    # Every frontend tells of all, whichever is asked; of the others what it was a quarter of a second ago.
    time.sleep(0.5)
    told = [ends(system) for _ in range(6)]
    assert told == [{"stop": 0, "length": len(stayed), "abort": len(left), "error": 0, "timeout": 0}] * 6
