"""Clients in processes of their own that read every token of their requests as it comes.

`python -m bench.streaming_clients ADDRESS` says {} once it has reached the server there, and answers lines of JSON on
standard input: {"prompts", "output_lengths"} with {"first", "last"}, the seconds of the first token and the last by the
host's monotonic clock, or with {"error"}.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from bench.contestant import BenchmarkError
from bench.thin import Answered
from bench.workload import Workload
from client import AsyncClient, StepaheadError

CONNECT_SECONDS = 60.0
"""The first request may have to wait: a frontend is ready before its scheduler has told it what can be asked."""


class StreamingClients:
    """So many processes, connected, from construction to `close`."""

    def __init__(self, address: str, count: int) -> None:
        """Start them, and wait until each has reached the server; raises `BenchmarkError`."""
        command = [sys.executable, "-m", "bench.streaming_clients", address]
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
            for _ in range(count)
        ]
        try:
            self._answers()
        except BaseException:
            self.close()
            raise

    def run(self, workload: Workload) -> Answered:
        """Have them ask for everything at once, each for its share, and wait for the last token."""
        count = len(self._processes)
        for number, process in enumerate(self._processes):
            share = workload.prompts[number::count], workload.output_lengths[number::count]
            assert process.stdin is not None
            process.stdin.write(json.dumps(dict(zip(("prompts", "output_lengths"), share, strict=True))) + "\n")
            process.stdin.flush()
        moments = [answer for answer in self._answers() if answer]
        first, last = min(each["first"] for each in moments), max(each["last"] for each in moments)
        return Answered(first, last, workload.output_tokens)

    def _answers(self) -> list[dict[str, Any]]:
        found = []
        for process in self._processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise BenchmarkError(f"a client's process has ended, exit code {process.wait()}")
            answer = json.loads(line)
            if "error" in answer:
                raise BenchmarkError(f"a client: {answer['error']}")
            found.append(answer)
        return found

    def close(self) -> None:
        """End them."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _all(client: AsyncClient, prompts: list[list[int]], lengths: list[int]) -> dict[str, float]:
    """Return when the first token came, and when the last one; nothing of no requests."""
    moments = await asyncio.gather(*(_one(client, *each) for each in zip(prompts, lengths, strict=True)))
    if not moments:
        return {}
    return {"first": min(first for first, _ in moments), "last": max(last for _, last in moments)}


async def _one(client: AsyncClient, prompt: Sequence[int], length: int) -> tuple[float, float]:
    came, first, now = 0, None, 0.0
    async for piece in client.stream(prompt, max_tokens=length, temperature=0.0, ignore_eos=True):
        now = time.perf_counter()
        first = now if first is None else first
        came += len(piece.token_ids)
    if came != length or first is None:
        raise BenchmarkError(f"{came} tokens came, {length} were asked for")
    return first, now


async def _serve(address: str) -> None:
    async with AsyncClient(address, connect_seconds=CONNECT_SECONDS) as client:
        await client.generate([1], max_tokens=1)
        print("{}", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            ask = json.loads(line)
            try:
                answer: dict[str, Any] = await _all(client, ask["prompts"], ask["output_lengths"])
            except (BenchmarkError, StepaheadError) as error:
                answer = {"error": str(error)}
            print(json.dumps(answer), flush=True)


def main() -> None:
    """Do what the lines on standard input say until there are none."""
    try:
        asyncio.run(_serve(sys.argv[1]))
    except StepaheadError as error:
        print(json.dumps({"error": str(error)}), flush=True)


if __name__ == "__main__":
    main()
