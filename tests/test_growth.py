"""No process of a system grows with the requests that it has served, those that were given up on among them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from client import AsyncClient
from stepahead.llm import LLM
from tests.word_model import write_word_model

pytestmark = [pytest.mark.processes, pytest.mark.long, pytest.mark.timeout(300)]

REQUESTS = 2000
AT_ONCE = 50
MOST_BYTES_A_REQUEST = 1024


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


def test_no_process_grows_with_the_requests_it_has_served(tmp_path: Path) -> None:
    with LLM(
        str(write_word_model(tmp_path)), load_format="dummy", max_num_seqs=AT_ONCE, max_model_len=64, threads=1
    ) as llm:
        processes = {each.pid: each for each in psutil.Process().children(recursive=True) if each.cmdline()}
        asyncio.run(serve(llm.address, 0, REQUESTS))
        early = {pid: own_bytes(process) for pid, process in processes.items()}
        asyncio.run(serve(llm.address, REQUESTS, REQUESTS))
        grown = {
            " ".join(process.cmdline()[1:4]): own_bytes(process) - early[pid] for pid, process in processes.items()
        }
    assert len(grown) >= 3
    assert all(bytes_ < MOST_BYTES_A_REQUEST * REQUESTS for bytes_ in grown.values()), grown
