"""No process of a system grows with the requests that it has served, nor with what nobody reads."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from client import AsyncClient
from stepahead.llm import LLM
from tests.word_model import write_word_model

pytestmark = [pytest.mark.processes, pytest.mark.long, pytest.mark.timeout(300)]

REQUESTS = 2000
AT_ONCE = 50
MOST_BYTES_A_REQUEST = 1024
MOST_BYTES_UNREAD = 20 * 2**20
OPTIONS: dict[str, Any] = {"load_format": "dummy", "max_num_seqs": AT_ONCE, "max_model_len": 64, "threads": 1}


def own_bytes(process: psutil.Process) -> int:
    """What a process holds that is nobody else's, wherever it lies: files that are mapped don't count."""
    lines = [line.split() for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()]
    return sum(1024 * int(line[1]) for line in lines if line[0] in {"RssAnon:", "VmSwap:"})


async def ask(client: AsyncClient, number: int) -> None:
    """Have one answered; every tenth is left in the middle."""
    async with client.stream([1, 2, 3], max_tokens=8, ignore_eos=True) as stream:
        async for _ in stream:
            if number % 10 == 0:
                return


async def serve(address: str, first: int, count: int) -> None:
    async with AsyncClient(address) as client:
        for start in range(first, first + count, AT_ONCE):
            await asyncio.gather(*[ask(client, number) for number in range(start, start + AT_ONCE)])


def processes_of_ours() -> dict[str, psutil.Process]:
    """By what they run."""
    children = [(each.cmdline(), each) for each in psutil.Process().children(recursive=True)]
    return {line[line.index("-m") + 1]: each for line, each in children if "-m" in line}


def test_no_process_grows_with_the_requests_it_has_served(tmp_path: Path) -> None:
    with LLM(str(write_word_model(tmp_path)), **OPTIONS) as llm:
        processes = processes_of_ours()
        assert {"frontend", "scheduler_proc", "gpu_worker"} <= processes.keys()
        asyncio.run(serve(llm.address, 0, REQUESTS))
        early = {name: own_bytes(process) for name, process in processes.items()}
        asyncio.run(serve(llm.address, REQUESTS, REQUESTS))
        grown = {name: own_bytes(process) - early[name] for name, process in processes.items()}
    assert all(size < MOST_BYTES_A_REQUEST * REQUESTS for size in grown.values()), grown


def test_a_collector_that_reads_nothing_costs_neither_answers_nor_memory(tmp_path: Path) -> None:
    with LLM(str(write_word_model(tmp_path)), **OPTIONS, timeline=str(tmp_path / "run.json.gz")) as llm:
        processes = processes_of_ours()
        asyncio.run(serve(llm.address, 0, REQUESTS))
        collector = processes.pop("timeline")
        early = {name: own_bytes(process) for name, process in processes.items()}
        collector.send_signal(signal.SIGSTOP)
        try:
            asyncio.run(serve(llm.address, REQUESTS, 2 * REQUESTS))
            grown = {name: own_bytes(process) - early[name] for name, process in processes.items()}
        finally:
            collector.send_signal(signal.SIGCONT)
    assert all(size < MOST_BYTES_UNREAD for size in grown.values()), grown
